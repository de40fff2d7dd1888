"""The faults of servers that belong together: a replica cut off or late, a primary left alone, a promotion by hand.

Verbs of the Lab, as those of faults.py. They work by taking rights away at the servers (see servers/redis.py), so they
need no rights on this machine, and hit one connection and no other.
"""

from . import links, servers
from .errors import LabError, Unsupported
from .node import Node

_CUTS = {"reset": "replication cut", "black hole": "replication cut (black hole)"}  # how -> the fault's name
_ALONE = "isolated"


class Replication:
    """The part of Lab for primaries and their replicas."""

    def primary(self, nodes, key: str | None = None) -> Node | None:
        """The node that is primary now; None while none is. Asks those that run, each for 0.25 s at most.

        With Sentinels among the nodes: the one that all of them name, as a client may ask any of them. In a Cluster:
        the one that all members name for `key`. Else raises LabError when several say that they are (a split brain).
        """
        self._check_open()
        awake = [node for node in nodes if node.state == "running"]
        named = set(filter(None, (servers.of(node.kind).names_primary(node, key) for node in awake)))
        found = [node for node in awake if node.role == "primary"]
        if named:
            return next((node for node in found if {(node.host, node.port)} == named), None)
        if len(found) > 1:
            raise LabError(
                f"Several are primary: {' and '.join(node.name for node in found)}.",
                "That is a split brain, or the shards of a Cluster, each of which has one.",
                'Ask each for itself: [node.role for node in nodes], or for a key: lab.primary(nodes, key="stock")',
            )
        return found[0] if found else None

    def sentinel(self, nodes, *, timeout_s: float = 2.0):
        """redis-py's Sentinel client for a look from the notebook, past all links: `lab.sentinel(nodes).primary()`."""
        from .servers.sentinel import SentinelClient

        return SentinelClient(nodes, _straight, name="notebook", timeout_s=timeout_s)

    def cluster(self, nodes, *, timeout_s: float = 2.0, **options):
        """redis-py's Cluster client for a look from the notebook, past all links."""
        from .servers.cluster import cluster_client

        return cluster_client(nodes, _straight, name="notebook", timeout_s=timeout_s, **options)

    # -- faults
    def cut_replication(self, replica: Node, *, how: str = "reset") -> None:
        """No write of any primary arrives at this replica any more. Clients, Sentinels and other replicas go on.

        how -- "reset": its connection is closed and it cannot log in again, which the primary notices at once.
        "black hole": bytes vanish and the connection stays, so the primary counts on the replica for some time
        (`min-replicas-max-lag`); raises Unsupported with Sentinels and in a Cluster.
        Sentinels do not promote a replica that was cut off for ten times their `down_after_ms` before the primary went.
        """
        self._check_open()
        if how not in _CUTS:
            raise LabError(
                f"Replication cannot be cut like {how!r}.",
                "It is cut in one of two ways.",
                f"Choose from: {', '.join(_CUTS)}",
            )
        with self._verbs:
            others = self._others(replica)
            for cut in _CUTS.values():
                self._must_not_be(replica, cut, "heal_replication")
            if how == "black hole":
                primary = self._send_round(replica, "cut without a trace")
                links.cut_link(self._links, replica.name, primary.name, how)
            else:
                self._must_be_replica(replica)
                for node in others:
                    node.options["cut"] = [*node.options.get("cut", ()), replica.name]
                self._settle(others, undo=lambda: self._forget_cut(replica, others))
            self._fault(replica.name, _CUTS[how], lambda: self.heal_replication(replica))

    def delay_replication(self, replica: Node, ms: float) -> None:
        """Every byte between the primary and this replica arrives `ms` later, each way.

        Raises Unsupported with Sentinels and in a Cluster.
        """
        self._check_open()
        with self._verbs:
            primary = self._send_round(replica, "delayed")
            links.delay_link(self._links, replica.name, primary.name, ms / 1e3, ms / 1e3)
            for fault in self._wrong_with(replica):
                if fault not in _CUTS.values():
                    self._healed(replica.name, fault)
            self._fault(replica.name, f"replication {ms:g} ms late", lambda: self.heal_replication(replica))

    def heal_replication(self, replica: Node) -> None:
        """Mend what `cut_replication` and `delay_replication` did to this replica. It catches up within a second."""
        self._check_open()
        with self._verbs:
            others, wrong = self._others(replica), self._wrong_with(replica)
            if not wrong:
                raise LabError(
                    f"Nothing is wrong with the replication of {replica.name}.",
                    "No cell cut or delayed it, or it was mended already.",
                    f"Cut it first: lab.cut_replication({replica.name})",
                )
            self._forget_cut(replica, others)
            self._settle(others)
            if "round" in replica.options:
                self._send_straight(replica)
            for fault in wrong:
                self._healed(replica.name, fault)

    def isolate(self, primary: Node) -> None:
        """The primary goes on serving clients, and no replica or Sentinel can reach it: one half of a split brain."""
        self._check_open()
        with self._verbs:
            self._group(primary)
            if primary.kind == "cluster":
                raise Unsupported(
                    "A member of a Cluster cannot be isolated here.",
                    "The members talk over a port of their own that knows no users; cutting that takes a firewall.",
                    f"Freeze it, lab.pause({primary.name}); or take lab.redis(replicas=2, sentinels=3).",
                )
            self._must_not_be(primary, _ALONE, "rejoin")
            self._must_run(primary)
            if primary.role != "primary":
                raise LabError(
                    f"{primary.name} is a replica now.",
                    "Only a primary takes writes that can be lost when it comes back.",
                    "Take the one that is: lab.isolate(lab.primary(nodes))",
                )
            primary.options["isolated"] = True
            self._settle([primary], undo=lambda: primary.options.pop("isolated"))
            self._fault(primary.name, _ALONE, lambda: self.rejoin(primary))

    def rejoin(self, primary: Node) -> None:
        """End the isolation. Sentinels that promoted another meanwhile make it a replica: its own writes are gone."""
        self._check_open()
        with self._verbs:
            if (primary.name, _ALONE) not in self._faults:
                raise LabError(
                    f"{primary.name} is not isolated.",
                    "No cell isolated it, or it has rejoined already.",
                    f"Isolate it first: lab.isolate({primary.name})",
                )
            primary.options.pop("isolated")
            self._settle([primary], undo=lambda: primary.options.update(isolated=True))
            self._healed(primary.name, _ALONE)

    def promote(self, replica: Node) -> None:
        """Make a replica a primary (REPLICAOF NO ONE), as somebody does by hand where no Sentinel watches.

        Raises Unsupported with Sentinels and in a Cluster: there, the servers decide.
        """
        self._check_open()
        with self._verbs:
            self._must_be_a_plain_pair(
                replica,
                f"{replica.name} cannot be promoted by hand.",
                "Its Sentinels, or the members of its Cluster, decide who is primary and would take it back.",
                "Kill or isolate the primary and wait: lab.until('another primary', lambda: lab.primary(nodes))",
            )
            self._must_be_replica(replica)
            servers.of(replica.kind).promote(replica)
            self._recorder.add(replica.name, "mark", "promoted", fault=True)

    # -- inside
    def _group(self, node: Node) -> list[Node]:
        """The node and those it replicates with."""
        if "members" not in getattr(node, "options", ()):
            raise LabError(
                f"{node.name} replicates with nobody.",
                "It was started on its own, or is no Redis server.",
                "Start a pair: primary, replica = lab.redis(replicas=1)",
            )
        return [other for other in self.nodes if other.name in node.options["members"]]

    def _others(self, node: Node) -> list[Node]:
        return [other for other in self._group(node) if other is not node]

    def _wrong_with(self, replica: Node) -> list[str]:
        return [fault for lane, fault in self._faults if lane == replica.name and fault.startswith("replication ")]

    def _send_round(self, replica: Node, what: str) -> Node:
        """Let a replica reach its primary over a link; returns the primary."""
        self._must_be_a_plain_pair(
            replica,
            f"Replication cannot be {what} here.",
            "It takes a link between the two; Sentinels, or a Cluster's members, would soon set the replica right.",
            f"Cut it the other way, lab.cut_replication({replica.name}), or take a plain pair: lab.redis(replicas=1)",
        )
        self._must_be_replica(replica)
        primary = self.primary(self._group(replica))
        if primary is None:
            raise LabError(
                f"No primary of {replica.name} is running.",
                "It is frozen or dead, so nothing comes from it anyway.",
                "Do this first, and let the primary fail then.",
            )
        if "round" not in replica.options:
            server = servers.of(replica.kind)
            here = self._driver.here
            way = (here, links.open_link(self._links, replica.name, primary, at=here))
            server.follow(replica, *way)
            self.until(f"{replica.name} follows over a link", lambda: server.in_sync(replica))
            replica.options["round"] = (way, primary.name)
        return primary

    def _send_straight(self, replica: Node) -> None:
        """Heal its link, and let it follow its primary without it, unless somebody made it follow another meanwhile."""
        way, name = replica.options["round"]
        links.delay_link(self._links, replica.name, name, 0.0, 0.0)
        links.cut_link(self._links, replica.name, name, None)
        server, primary = servers.of(replica.kind), next(node for node in self.nodes if node.name == name)
        if replica.state == "running" and server.follows(replica) == way:
            server.follow(replica, primary.host, primary.port)
        del replica.options["round"]

    def _forget_cut(self, replica: Node, others: list[Node]) -> None:
        for node in others:
            node.options["cut"] = [name for name in node.options.get("cut", ()) if name != replica.name]

    def _settle(self, nodes: list[Node], undo=None) -> None:
        """Make the servers' users what the faults leave them. One that is dead learns it when it is started again."""
        try:
            for node in nodes:
                if node.state == "frozen":
                    raise LabError(
                        f"{node.name} is frozen, and a frozen server takes no command.",
                        "This fault works by a command to it; a cell or the panel froze it before.",
                        f"Do this first and freeze then, or wake it: lab.resume({node.name})",
                    )
            for node in nodes:
                if node.state == "running":
                    servers.of(node.kind).settle_users(node)
        except LabError:
            if undo:
                undo()
            raise

    def _must_be_replica(self, node: Node) -> None:
        self._must_run(node)
        if node.role != "replica":
            raise LabError(
                f"{node.name} is no replica now.",
                "It is the primary: it was started so, or was promoted since.",
                "Take one that is: [node for node in nodes if node.role == 'replica']",
            )

    def _must_not_be(self, node: Node, fault: str, cure: str) -> None:
        if (node.name, fault) in self._faults:
            raise LabError(
                f"{node.name} is so already: {fault}.",
                "A cell or the panel did that before.",
                f"End it: lab.{cure}({node.name})",
            )

    def _must_be_a_plain_pair(self, node: Node, what: str, why: str, todo: str) -> None:
        self._group(node)
        watched = [told[0] for other in self.nodes for told in other.options.get("watched", ())]
        if node.kind == "cluster" or node.name in watched:
            raise Unsupported(what, why, todo)


def _straight(node: Node) -> tuple[str, int]:
    return node.host, node.port
