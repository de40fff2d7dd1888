"""ZooKeeper: one server, or an ensemble of them that elect a leader."""

import contextlib
import logging
import socket
import threading
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from ..observe import Lane
from .base import Launch, Server, need

# Small and quick to start: the ordinary defaults of Java are for a server that runs for months.
_JAVA = ["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"]
_CONFIG = {
    "tickTime": 200,  # ms, the unit of the limits below; a session is two of them at least
    "initLimit": 50,
    "syncLimit": 25,
    "maxSessionTimeout": 60_000,  # ms
    "dataDir": "./data",  # in the node's folder, where it is started
    "maxClientCnxns": 0,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}
_ROLES = {"standalone": "single", "leader": "leader", "follower": "follower"}


class ZooKeeper(Server):
    kind = "zookeeper"
    program = "zookeeper"
    ports = {"client": 2181, "quorum": 2888, "election": 3888}
    image, image_variable, command = "zookeeper:3.9.3", "ZOOKEEPER_IMAGE", "zkServer.sh"
    memory_mb = 320
    start_s = 30.0

    def introduce(self, nodes):
        peers = {node.name: f"{node.host}:{node.ports['quorum']}:{node.ports['election']}" for node in nodes}
        for node in nodes:
            node.options["peers"] = peers

    def launch(self, place, node):
        peers = node.options["peers"]
        config = {**_CONFIG, "clientPort": node.port, "clientPortAddress": node.host, **node.options["config"]}
        if len(peers) > 1:
            config |= {f"server.{number}": address for number, address in enumerate(peers.values(), 1)}
        files = {
            "zoo.cfg": "".join(f"{name}={value}\n" for name, value in config.items()),
            "data/myid": str(list(peers).index(node.name) + 1),
        }
        settings = list(_JAVA)
        if "proxy" in node.options:  # of itself, Java goes to loopback without one
            host, port = node.options["proxy"]
            settings += [f"-DsocksProxyHost={host}", f"-DsocksProxyPort={port}", "-DsocksNonProxyHosts="]
        if place.contained:
            env = {"SERVER_JVMFLAGS": " ".join(settings), "JMXDISABLE": "true", "ZOO_LOG_DIR": f"{place.folder}/log"}
            return Launch([place.program, "start-foreground", f"{place.folder}/zoo.cfg"], env=env, files=files)
        classes = f"{place.program}:{Path(place.program).with_name('slf4j-simple.jar')}"
        settings += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return Launch([str(need("java").path), *settings, main, "zoo.cfg"], files=files)

    def ready(self, node):
        return self.role(node) is not None

    def role(self, node):
        """From `srvr`. A server without a majority answers too, but tells no mode: it serves nobody."""
        with contextlib.suppress(OSError), socket.create_connection((node.host, node.port), 0.25) as sock:
            sock.sendall(b"srvr")
            with sock.makefile("r", encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("Mode:"):
                        return _ROLES[line.split()[1]]
        return None

    def client(self, host, port, *, name, timeout_s, **options):
        """A kazoo client, connected. Commands are never repeated, and wait `timeout_s` for their answer.

        timeout -- kazoo's own word for the length of the session, in seconds (default 4); the server grants 0.4 to 60.
        also -- further addresses of the ensemble, [(host, port), …]: if a member dies, the session goes on at another.
        The connection is made again and again for a minute, as the session lives on when it breaks.
        """
        how = {"timeout": 4.0, **options}
        hosts = ",".join(f"{host}:{port}" for host, port in [(host, port), *how.pop("also", ())])
        client = KazooClient(
            hosts, handler=_Impatient(timeout_s), logger=_quiet(), command_retry=KazooRetry(max_tries=1),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.3, deadline=60), **how,
        )  # fmt: skip
        client.start(timeout=timeout_s)
        return client

    def lease(self, client, key):
        """An ephemeral node goes with its session, whose length only its client knows: 60 s at most."""
        try:
            value, stat = client.get(key)
        except NoNodeError:
            return None, None
        return value.decode(errors="replace"), _CONFIG["maxSessionTimeout"] / 1e3 if stat.ephemeralOwner else None

    def observe(self, w, node, key):
        """The data of a znode; or, if it has children, of the oldest of them: whoever holds the lock of that name.

        A watch tells that something changed, what lasts shorter than a look at it (1 ms) is missed.
        """
        lane, changed = Lane(w, node, key), threading.Event()
        client = self.client(node.host, node.port, name="observer", timeout_s=0.5)

        def wake(event):
            changed.set()

        while not w.stopping:
            changed.clear()
            try:
                holder = _oldest(client, key, wake)
            except NoNodeError:  # it went between two questions
                continue
            except (KazooException, KazooTimeoutError):
                lane.silent()
            else:
                if holder is None:
                    lane.owner(None)
                else:
                    lane.owner(holder[0], czxid=holder[1])
                lane.watching()
            changed.wait(0.1)


def _oldest(client, path: str, watch) -> tuple[str, int] | None:
    """(data, or name if it has none; czxid) of the oldest child, else of the node itself; None: nobody is there."""
    if not client.exists(path, watch):
        return None
    names = client.get_children(path, watch)
    asked = {name: client.get_async(f"{path.rstrip('/')}/{name}") for name in names} or {"": client.get_async(path)}
    told = [(*answer.get(), name) for name, answer in asked.items()]
    data, stat, name = min(told, key=lambda one: one[1].czxid)
    value = data.decode(errors="replace") or name
    return (value, stat.czxid) if value else None


class _Impatient(SequentialThreadingHandler):
    """kazoo itself waits for an answer until it finds the connection lost, and sends nothing until it has a new one."""

    def __init__(self, answer_s: float):
        super().__init__()
        self.answer_s = answer_s

    def async_result(self):
        return _Answer(self)


class _Answer(AsyncResult):
    def get(self, block=True, timeout=None):
        return super().get(block, timeout or self._handler.answer_s)


def _quiet() -> logging.Logger:
    """Lost connections are what the course is about; each is an exception already, and needs no line on stderr."""
    logger = logging.getLogger("labkit.kazoo")
    logger.setLevel(logging.CRITICAL)
    return logger
