"""etcd: one member, or a cluster of them that elect a leader."""

import base64
import contextlib
import http.client
import json
import queue
import secrets

from ..errors import LabError
from ..observe import Lane
from .base import Launch, Server

_FLAGS = {
    "heartbeat-interval": 50,  # ms
    "election-timeout": 500,  # ms; with the default of 1000 no lease is shorter than 2 s
    "strict-reconfig-check": "false",  # a member that lost its data is replaced also in a cluster a second old
}


class Etcd(Server):
    kind = "etcd"
    program = command = "etcd"
    ports = {"client": 2379, "peer": 2380}
    image, image_variable = "quay.io/coreos/etcd:v3.5.16", "ETCD_IMAGE"
    warm = False  # grpc starts threads, which a fork does not take along

    def introduce(self, nodes):
        peers = {node.name: (node.host, node.port, _peer_url(node)) for node in nodes}
        token = secrets.token_hex(4)  # a port may have belonged to another lab's member a moment ago
        for node in nodes:
            node.options.update(peers=peers, token=token, state="new")

    def launch(self, place, node):
        peers = node.options["peers"]
        client = f"http://{node.host}:{node.port}"
        flags = {
            "name": node.name,
            "data-dir": f"{place.folder}/data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": f"http://{node.host}:{node.ports['peer']}",
            "initial-advertise-peer-urls": _peer_url(node),
            "initial-cluster": ",".join(f"{name}={url}" for name, (*_, url) in peers.items()),
            "initial-cluster-token": node.options["token"],
            "initial-cluster-state": node.options["state"],
            **_FLAGS,
            **node.options["config"],
        }
        env = {}
        if "proxy" in node.options:
            env = {"HTTP_PROXY": "socks5://{}:{}".format(*node.options["proxy"]), "NO_PROXY": "", "no_proxy": ""}
        return Launch([place.program, *(f"--{name}={value}" for name, value in flags.items())], env=env)

    def forget(self, node):
        """A member without its data has forgotten its votes, and etcd does not let it back in: it is made a new one."""
        peers = node.options["peers"]
        if len(peers) == 1:
            return
        url = peers[node.name][-1]
        for address in [(host, port) for name, (host, port, _) in peers.items() if name != node.name]:
            with contextlib.suppress(OSError):
                for member in _ask(address, "cluster/member/list", timeout_s=2)["members"]:
                    if url in member["peerURLs"]:
                        _ask(address, "cluster/member/remove", ID=member["ID"], timeout_s=5)
                _ask(address, "cluster/member/add", peerURLs=[url], timeout_s=5)
                node.options["state"] = "existing"
                return
        raise LabError(
            f"{node.name} cannot come back without its data now.",
            "The others must first agree to replace it, and no majority of them answers.",
            f'Wake or restart the others first, or write lab.restart({node.name}, data="kept").',
        )

    def ready(self, node):
        """A linearizable read: a majority stands behind the answer."""
        try:
            return "header" in _ask((node.host, node.port), "kv/range", key=_b64("ready"), timeout_s=0.5)
        except OSError:
            return False

    def role(self, node):
        try:
            told = _ask((node.host, node.port), "maintenance/status", timeout_s=0.25)
        except OSError:
            return None
        if len(node.options["peers"]) == 1:
            return "single"
        return "leader" if told.get("leader") == told["header"]["member_id"] else "follower"

    def client(self, host, port, *, name, timeout_s, **options):
        """A pyetcd client: the continuation of etcd3, with the same interface. Values are bytes."""
        import pyetcd

        class Client(pyetcd.MultiEndpointEtcd3Client):
            def _manage_grpc_errors(self, error):
                # When the client's time is up, the server may be the first to say so, in words that pyetcd lacks.
                if error.details() == "context deadline exceeded":
                    raise pyetcd.exceptions.ConnectionTimeoutError from None
                super()._manage_grpc_errors(error)

        settings = {
            "grpc.enable_retries": 0,
            "grpc.enable_http_proxy": 0,
            "grpc.use_local_subchannel_pool": 1,  # a new client makes a new connection, as a learner expects
            "grpc.initial_reconnect_backoff_ms": 50,
            "grpc.max_reconnect_backoff_ms": 200,  # the default grows to two minutes
            "grpc.min_reconnect_backoff_ms": 1000,
        }
        # time_retry: after one failure pyetcd would refuse to ask again for five minutes.
        endpoint = pyetcd.Endpoint(host, port, secure=False, time_retry=0, opts=list(settings.items()))
        return Client([endpoint], timeout=timeout_s, **options)

    def lease(self, client, key):
        value, about = client.get(key)
        if value is None or not about.lease_id:
            return value, None
        return value, client.get_lease_info(about.lease_id).TTL + 1  # whole seconds, rounded down

    def observe(self, w, node, key):
        """etcd's own watch tells every change, in order; a read each 0.1 s tells whether the member still answers.

        A key that ends with "/" stands for all keys below it; the oldest of them is told, as it holds the lock.
        The read is a serializable one: a member that is cut from its peers still says what it knows.
        """
        import pyetcd

        lane = Lane(w, node, key)
        while not w.stopping:
            with (
                contextlib.suppress(pyetcd.Etcd3Exception),
                contextlib.closing(self.client(node.host, node.port, name="observer", timeout_s=0.25)) as client,
            ):
                self._follow(w, client, key, lane)
            lane.silent()

    def _follow(self, w, client, key, lane):
        events = queue.SimpleQueue()
        below = key.endswith("/")
        look, follow = (
            (client.get_prefix_response, client.add_watch_prefix_callback)
            if below
            else (client.get_response, client.add_watch_callback)
        )
        now = look(key, serializable=True)
        there = {kv.key: kv for kv in now.kvs}
        told = _tell(lane, there, None, client)
        follow(key, events.put, start_revision=now.header.revision + 1)
        lane.watching()
        while not w.stopping:
            try:
                news = events.get(timeout=0.1)
            except queue.Empty:
                look(key, serializable=True)
                continue
            if not hasattr(news, "events"):  # the stream ended
                return
            for event in news.events:
                if event.version:  # 0 once it is deleted
                    there[event.key] = event
                else:
                    there.pop(event.key, None)
                told = _tell(lane, there, told, client)


def _tell(lane, there: dict, told: int | None, client) -> int | None:
    """Tell the oldest of the keys that are there, unless this revision of it was told; returns its revision."""
    if not there:
        lane.owner(None)
        return None
    kv = min(there.values(), key=lambda kv: kv.create_revision)
    if kv.mod_revision == told:
        return told
    value = kv.value.decode(errors="replace")
    if kv.version == 1:  # made anew: another holder, also if it is of the same name
        lane.owner(None)
    elif value == lane.value:
        lane.mark("written again", revision=kv.mod_revision)
    left_ms = client.get_lease_info(kv.lease).TTL * 1e3 if kv.lease else None
    lane.owner(value, left_ms, revision=kv.mod_revision, create_revision=kv.create_revision)
    return kv.mod_revision


def _peer_url(node) -> str:
    """Where the other members reach this one.

    Go never sends what goes to loopback through a proxy. So where the members' ways to each other lead over links, they
    are told an address that is no computer's (RFC 5737); the link process looks at the port only.
    """
    host = "192.0.2.1" if node.options["peer_links"] else node.host
    return f"http://{host}:{node.ports['peer']}"


def _ask(address: tuple[str, int], what: str, *, timeout_s: float, **body) -> dict:
    """etcd's JSON gateway, which needs no grpc. Raises OSError when there is no answer, or an error for one."""
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request("POST", f"/v3/{what}", json.dumps(body))
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(str(error)) from None
    if answer.status != 200:
        raise OSError(told.get("error", answer.status))
    return told


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
