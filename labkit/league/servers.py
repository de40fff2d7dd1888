"""The servers that locks live on: how they start, fail over, are mended, and whose clock can be set."""

from ..errors import LabError


class Servers:
    """One kind. A group of nodes is started once, and serves every lock of that kind."""

    failover_s = 30.0

    def start(self, lab) -> list:
        """The nodes. Raises LabError where its program is not here."""
        raise NotImplementedError

    def fresh(self, nodes) -> None:
        """Nobody holds the lock."""

    def prepare(self, lab, nodes) -> None:
        """Before the holder gets in that will see the failover."""

    def fail_over(self, lab, nodes):
        """Returns the node that it struck, once another serves in its place."""
        victim = lab.leader(nodes)
        lab.kill(victim)
        lab.until("another leader", lambda: lab.leader(nodes), self.failover_s)
        return victim

    def mend(self, lab, nodes, victim) -> None:
        """All is well again. victim -- what `fail_over` returned; None: it did not come to that."""
        if victim:
            lab.restart(victim, data="kept")

    def clock(self, lab, nodes):
        """The node whose clock is set; None where that moves no lock."""
        return None


class Redis(Servers):
    """A primary, a replica and three Sentinels. Before a failover the way between the two is cut: the worst case."""

    def start(self, lab):
        return lab.redis(replicas=1, sentinels=3)

    def fresh(self, nodes):
        for node in nodes:
            if node.role == "primary":
                node.client().flushall()

    def prepare(self, lab, nodes):
        self._until_even(lab, nodes)
        lab.cut_replication(next(node for node in nodes if node.role == "replica"))

    def fail_over(self, lab, nodes):
        old = lab.primary(nodes)
        lab.kill(old)
        lab.until("the replica is primary", lambda: lab.primary(nodes), self.failover_s)
        return old

    def mend(self, lab, nodes, victim):
        now_primary = lab.primary(nodes)
        lab.heal_replication(now_primary if victim else next(n for n in nodes if n.role == "replica"))
        if victim:
            lab.restart(victim, data="kept")
            lab.until("the old primary follows", lambda: victim.role == "replica", self.failover_s)
        self._until_even(lab, nodes)

    def _until_even(self, lab, nodes):
        """The replica has all that was written up to now (WAIT looks at what its own connection wrote)."""
        client = lab.primary(nodes).client()
        even = lambda: client.set("even", 1) and client.wait(1, 200) == 1  # noqa: E731
        lab.until("the replica has it all", even, self.failover_s)

    def clock(self, lab, nodes):
        return lab.primary(nodes) if lab.can("clock") else None


class Five(Servers):
    """Five Redis that know nothing of each other. A failover is one that comes back empty."""

    def start(self, lab):
        return lab.redis(n=5)

    def fresh(self, nodes):
        for node in nodes:
            node.client().flushall()

    def fail_over(self, lab, nodes):
        lab.restart(nodes[0], data="lost")
        return nodes[0]

    def mend(self, lab, nodes, victim):
        """It is back already."""

    def clock(self, lab, nodes):
        return nodes[0] if lab.can("clock") else None


class Etcd(Servers):
    """Three members, of which the leader dies."""

    def start(self, lab):
        return lab.etcd(3)

    def fresh(self, nodes):
        for key in ("lock", "/locks/lock"):  # ours, and the one that the client's own lock makes of this name
            nodes[0].client().delete(key)


class ZooKeeper(Servers):
    """Three members, of which the leader dies."""

    def start(self, lab):
        return lab.zookeeper(3)


class Postgres(Servers):
    """One server, which keeps no money. A failover is its death and its restart: all sessions end."""

    def start(self, lab):
        return [lab.postgres()]

    def fail_over(self, lab, nodes):
        lab.restart(nodes[0], data="kept")
        return nodes[0]

    def mend(self, lab, nodes, victim):
        """It is back already."""


class Bank(Postgres):
    """The lock lives with the money: the bank itself dies and is restarted."""

    def start(self, lab):
        raise LabError("The bank is started by the league itself.", "There is one for all locks.", "Take that.")


REDIS, FIVE, ETCD, ZOOKEEPER, POSTGRES, BANK = Redis(), Five(), Etcd(), ZooKeeper(), Postgres(), Bank()
