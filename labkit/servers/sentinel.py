"""Redis Sentinel: the servers that watch a primary, and promote a replica when it is down."""

import contextlib

import redis.sentinel

from ..errors import LabError
from ..observe import Lane
from .base import Launch
from .redis import PASSWORD, SENTINELS, Redis, client_options, say
from .redis_watch import LOST

GROUP = "main"  # what the Sentinels call the primary with its replicas
_FAILOVER_TIMEOUT_MS = 3000  # also half the time to the next try, when nobody won an election
# How often they ask and tell each other: by default every ten and two seconds, which makes starts and failovers slow.
# The period of their pings stays: a shorter one made failovers slower. A Sentinel that finds its clock odd, as after a
# stall of the machine, does nothing for the tilt period, half a minute by default.
_TUNING = "SENTINEL DEBUG INFO-PERIOD 200 PUBLISH-PERIOD 200 ASK-PERIOD 200 TILT-PERIOD 3000"


class Sentinel(Redis):
    kind = "sentinel"
    ports = {"main": 26379}

    def introduce(self, nodes):
        for node in nodes:
            node.options["sentinels"] = len(nodes)

    def launch(self, place, node):
        _, host, port = node.options["watched"][0]
        lines = [
            f"bind {node.host}",
            f"port {node.port}",
            "protected-mode no",
            f"sentinel monitor {GROUP} {host} {port} {node.options['sentinels'] // 2 + 1}",
            f"sentinel down-after-milliseconds {GROUP} {node.options['down_after_ms']:.0f}",
            f"sentinel failover-timeout {GROUP} {_FAILOVER_TIMEOUT_MS}",
            f"sentinel auth-user {GROUP} {SENTINELS}",
            f"sentinel auth-pass {GROUP} {PASSWORD}",
        ]
        name = "sentinel.conf"  # it writes there what it finds out
        files = {name: "\n".join(lines) + "\n"} if place.new else {}
        return Launch([place.program, name, "--sentinel"], files=files)

    def ready(self, node):
        return super().ready(node) and bool(say(node, _TUNING))  # Redis before 7.0 refuses, and is slower

    def formed(self, node):
        """It knows the primary, all replicas and all other Sentinels, and finds all of them well."""
        with contextlib.suppress(*LOST), contextlib.closing(node.client()) as client:
            primary = client.sentinel_master(GROUP)
            replicas = client.sentinel_slaves(GROUP)
            others = client.sentinel_sentinels(GROUP)
            return (
                primary["flags"] == "master"
                and [r["flags"] for r in replicas] == ["slave"] * (len(node.options["watched"]) - 1)
                and all(r["master-link-status"] == "ok" for r in replicas)
                and [s["flags"] for s in others] == ["sentinel"] * (node.options["sentinels"] - 1)
            )
        return False

    def form(self, nodes):
        """They find each other by themselves, over the primary."""

    def role(self, node):
        return None

    def names_primary(self, node, key):
        with contextlib.suppress(*LOST), contextlib.closing(self._observer(node)) as client:
            return client.sentinel_get_master_addr_by_name(GROUP)

    def lease(self, client, key):
        raise self._has_no("key", 'Wait for the failover: lab.until("another primary", lambda: ...).')

    def observe(self, w, node, key):
        """The owner of the lane is the node that this Sentinel takes for the primary; `key` is the group's name."""
        if key != GROUP:
            raise LabError(
                f"A Sentinel keeps no key {key!r}.",
                "It knows one thing that can be watched: which node is the primary now.",
                f'Watch that: lab.watch({node.name}, "{GROUP}")',
            )
        lane, names = Lane(w, node, key), {(host, port): name for name, host, port in node.options["watched"]}
        while not w.stopping:
            with contextlib.suppress(*LOST), contextlib.closing(self._observer(node)) as client:
                while not w.stopping:
                    lane.owner(names[client.sentinel_get_master_addr_by_name(GROUP)])
                    lane.watching()
                    w.work(0.005)
            lane.silent()


class SentinelClient(redis.sentinel.Sentinel):
    """redis-py's own Sentinel client, for one group; the addresses that Sentinels hand out lead over given ways."""

    def __init__(self, nodes, address, *, name: str, timeout_s: float):
        """address -- maps a node to the (host, port) to be used for it."""
        self._ways = {(node.host, node.port): node for node in nodes}
        self._address = address
        sentinels = [node for node in nodes if node.kind == Sentinel.kind]
        if not sentinels or len(sentinels) == len(nodes):
            raise LabError(
                "A Sentinel client needs all nodes: the primary, the replicas and the Sentinels.",
                f"Given were: {', '.join(node.name for node in nodes) or 'none'}.",
                "Give the whole list: nodes = lab.redis(replicas=2, sentinels=3), then sentinel(nodes).",
            )
        options = client_options(name, timeout_s)
        super().__init__([address(node) for node in sentinels], sentinel_kwargs=options, **options)

    def primary(self, **options) -> redis.Redis:
        """A client that asks the Sentinels for the primary each time it connects."""
        return self.master_for(GROUP, **options)

    def replica(self, **options) -> redis.Redis:
        """A client of some replica that is up; of the primary when there is none."""
        return self.slave_for(GROUP, **options)

    def discover_master(self, service_name):
        return self._address(self._ways[super().discover_master(service_name)])

    def discover_slaves(self, service_name):
        return [self._address(self._ways[told]) for told in super().discover_slaves(service_name)]
