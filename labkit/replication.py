"""The faults of servers that belong together: a replica cut off or late, a primary alone, a promotion by hand.

Verbs of the Lab, like those of faults.py. They work on the servers themselves, by taking rights away (see
servers/redis.py), so that they need no rights on the machine and hit exactly one connection.
"""

from collections import Counter

from . import links, servers
from .errors import LabError, Unsupported
from .node import Node

_CUT, _ALONE = "replication cut", "isolated"


class Replication:
    """The part of Lab for a primary with its replicas."""

    # -- who is primary
    def primary(self, nodes, key: str | None = None) -> Node | None:
        """The node that is primary now, None while none is. Servers that answer are asked, each for 0.25 s at most.

        Where Sentinels are among the nodes, it is the one that most of them name. Without them, raises LabError when
        two say so (a split brain). In a Cluster, the one that most members name for `key`.
        """
        self._check_open()
        nodes = list(nodes)
        awake = [node for node in nodes if node.state == "running"]
        witnesses = [node for node in awake if servers.of(node.kind).names_primary]
        told = Counter(servers.of(node.kind).named_primary(node, key) for node in witnesses)
        if told:
            (address, _), *_ = told.most_common()
            return next((node for node in awake if [node.host, node.port] == address and node.role == "primary"), None)
        found = [node for node in awake if node.role == "primary"]
        if len(found) > 1:
            raise LabError(
                f"Two say that they are primary: {' and '.join(node.name for node in found)}.",
                "That is a split brain, or these nodes do not belong together.",
                "Ask each for itself: [node.role for node in nodes]",
            )
        return found[0] if found else None
