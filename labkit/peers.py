"""The faults of servers that elect a leader: a member cut off from its peers, whom clients still reach.

Verbs of the Lab, as those of faults.py. The members reach each other over links (see links.py), one for each pair and
direction, so no rights on this machine are needed.
"""

from . import links
from .errors import LabError, Unsupported
from .node import Node


class Peers:
    """The part of Lab for the members of etcd and ZooKeeper clusters."""

    def leader(self, members) -> Node | None:
        """The member that leads now, by its own word; None while none does, or two do. Each has 0.25 s to answer."""
        self._check_open()
        leading = [node for node in members if node.state == "running" and node.role == "leader"]
        return leading[0] if len(leading) == 1 else None

    def cut_peers(self, member: Node, *peers: Node) -> None:
        """Cut a member from these peers (all, if none is named), both ways: a black hole. Clients still reach all.

        Raises Unsupported for nodes that were not made with `peer_links=True`.
        """
        self._check_open()
        with self._verbs:
            for peer in self._peers_of(member, peers):
                fault = f"cut from {peer.name}"
                if (member.name, fault) in self._faults:
                    raise LabError(
                        f"{member.name} is so already: {fault}.",
                        "A cell or the panel did that before.",
                        f"End it: lab.heal_peers({member.name}, {peer.name})",
                    )
                links.cut_link(self._links, member.name, peer.name, "black hole")
                links.cut_link(self._links, peer.name, member.name, "black hole")
                self._fault(member.name, fault, lambda peer=peer: self.heal_peers(member, peer))

    def heal_peers(self, member: Node, *peers: Node) -> None:
        """Mend what `cut_peers` cut between a member and these peers (all, if none is named)."""
        self._check_open()
        with self._verbs:
            for peer in self._peers_of(member, peers):
                links.cut_link(self._links, member.name, peer.name, None)
                links.cut_link(self._links, peer.name, member.name, None)
                for one, other in ((member, peer), (peer, member)):
                    self._healed(one.name, f"cut from {other.name}")

    def _peers_of(self, member: Node, named: tuple[Node, ...]) -> list[Node]:
        if not member.options.get("peer_links"):
            raise Unsupported(
                f"{member.name} cannot be cut from its peers.",
                "Its ways to them lead over no links, which cost throughput and must be asked for; or it has no peers.",
                "Write lab.etcd(3, peer_links=True) or lab.zookeeper(3, peer_links=True); for Redis: lab.isolate(...)",
            )
        peers = [node for node in self.nodes if node.name in member.options["peers"] and node is not member]
        for node in named:
            if node not in peers:
                raise LabError(
                    f"{node.name} is no peer of {member.name}.",
                    "They belong to different clusters, or are one and the same.",
                    f"Choose from: {', '.join(peer.name for peer in peers)}",
                )
        return list(named) or peers
