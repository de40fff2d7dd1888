"""Redis Cluster: primaries that share the keys between them, each with one replica or none."""

import contextlib
import secrets

import redis.cluster
import redis.crc

from ..errors import LabError, Unsupported
from .base import need
from .redis import Redis, client_options
from .redis_watch import LOST

SLOTS = 16384


class Cluster(Redis):
    kind = "cluster"
    ports = {"main": 6379, "bus": 16379}

    def where(self):
        version = need(self.program).version
        if version and int(version.split(".")[0]) < 7:
            raise Unsupported(
                f"Redis {version} cannot be given a port for the Cluster's bus.",
                "Before 7.0 that port was always the clients' port and 10000, which may be taken or does not exist.",
                "Install Redis 7.0 or newer, or look at the chapter's recorded run.",
            )
        return super().where()

    def introduce(self, nodes):
        """Each member's table of the others is written beforehand, as it would be after all had met."""
        primaries = sum(node.role == "primary" for node in nodes)
        ids = [secrets.token_hex(20) for _ in nodes]
        for me, node in enumerate(nodes):
            rows = [_row(nodes, ids, i, primaries, myself=i == me) for i in range(len(nodes))]
            node.options |= {
                "members": [n.name for n in nodes],
                "replicas": [(n.host, n.port) for n in nodes[primaries:][me : me + 1]] if me < primaries else [],
                "table": "\n".join([*rows, f"vars currentEpoch {primaries} lastVoteEpoch 0", ""]),
            }

    def settings(self, node):
        return {
            **super().settings(node),
            "cluster-enabled": "yes",
            "cluster-port": node.ports["bus"],
            "cluster-node-timeout": "1000",  # milliseconds; fifteen seconds by default
        }

    def own_files(self, node):
        return {"nodes.conf": node.options["table"]}

    def form(self, nodes):
        """The table says it all."""

    def formed(self, node):
        """Every member holds the whole for served; after a start a primary waits two seconds before it does."""
        with contextlib.suppress(*LOST), contextlib.closing(node.client()) as client:
            told = client.cluster("info")
            whole = told["cluster_state"] == "ok" and told["cluster_slots_ok"] == str(SLOTS)
            return whole and super().formed(node)
        return False

    def names_primary(self, node, key):
        if key is None:
            return None
        slot = redis.crc.key_slot(key.encode())
        with contextlib.suppress(*LOST), contextlib.closing(self._observer(node)) as client:
            for first, last, (host, port, *_), *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return host, port

    def _observer(self, node):
        return super()._observer(node, redis_connect_func=_may_read)


def _row(nodes, ids: list[str], i: int, primaries: int, myself: bool) -> str:
    """A line of nodes.conf: id, address, flags, whose replica, last ping and pong, epoch, link, slots."""
    node, shard = nodes[i], i % primaries
    flags = ("myself," if myself else "") + ("master" if i == shard else "slave")
    whose = "-" if i == shard else ids[shard]
    first, end = (SLOTS * (shard + more) // primaries for more in (0, 1))
    slots = f" {first}-{end - 1}" if i == shard else ""
    return f"{ids[i]} {node.host}:{node.port}@{node.ports['bus']} {flags} {whose} 0 0 {shard + 1} connected{slots}"


def _may_read(connection) -> None:
    """A replica sends readers away who have not said that a late answer will do."""
    connection.on_connect()
    connection.send_command("READONLY")
    connection.read_response()


def cluster_client(nodes, address, *, name: str, timeout_s: float, **options) -> redis.cluster.RedisCluster:
    """redis-py's Cluster client; the addresses that members hand out lead over given ways.

    address -- maps a node to the (host, port) to be used for it.
    """
    members = {(node.host, node.port): node for node in nodes if node.kind == Cluster.kind}
    if not members:
        raise LabError(
            "A Cluster client needs the members of a Cluster.",
            f"Given were: {', '.join(node.name for node in nodes) or 'none'}.",
            "Give the whole list: nodes = lab.redis(cluster=6), then cluster(nodes).",
        )
    return redis.cluster.RedisCluster(
        startup_nodes=[redis.cluster.ClusterNode(*address(node)) for node in members.values()],
        address_remap=lambda told: address(members[told]) if told in members else told,
        dynamic_startup_nodes=False,  # a member that was down may come back
        require_full_coverage=False,  # the servers say which keys cannot be served, not the client
        **{**client_options(name, timeout_s), **options},
    )
