"""What a notebook function sees as `w`: one client in its own operating-system process."""

import contextlib
import os
import random
import socket
import sys
import threading
import time

import cloudpickle

from . import links, servers, shipping
from .errors import LabError
from .record import Recorder
from .wire import Wire

# After one of these the request may have been carried out or not.
# Named, not imported: a worker loads no client that it does not use.
_UNKNOWN = {
    "TimeoutError",
    "ConnectionError",
    "ConnectionLoss",
    "KazooTimeoutError",
    "RetryFailedError",
    "OperationalError",
    "AMQPConnectionError",
    "ConnectionFailedError",
    "ConnectionTimeoutError",
    "TransportError",
    "RedisClusterException",  # raised when the look round after a broken connection fails too
}


def outcome_of(error: BaseException) -> str:
    """'unknown' for a timeout or a broken connection, else 'fail'."""
    if getattr(error, "sqlstate", None):  # PostgreSQL itself said no; some of these are OperationalErrors too
        return "fail"
    return "unknown" if any(c.__name__ in _UNKNOWN for c in type(error).__mro__) else "fail"


class Within:
    """The worker's own side. Every mark and every start of a span is a place where the experiment may stop it."""

    def __init__(self, name: str, wire: Wire, recorder: Recorder, links_path: str):
        self.name = name
        self._wire, self._recorder, self._links_path = wire, recorder, links_path
        self._stops: set[str] = set()
        self._go = self._held = self._stopping = False
        self._reading = threading.Lock()  # a function may have threads of its own, and they mark too

    # -- the record
    def mark(self, name: str, **data) -> None:
        """Something happened just now. Also a stopping point."""
        self._recorder.add(self.name, "mark", name, **data)
        self._stop_here(name)

    def note(self, name: str, **data) -> None:
        """Like `mark`, but no stopping point: for a worker's helper thread, which must not wait for the experiment."""
        self._recorder.add(self.name, "mark", name, **data)

    def begin(self, name: str, **data) -> int:
        """Begin a span that does not nest; returns its id for `end`. Also a stopping point."""
        span = self._recorder.add(self.name, "begin", name, **data)
        self._stop_here(name)
        return span

    def end(self, span: int, **data) -> None:
        self._recorder.add(self.name, "end", "", span=span, **data)

    @contextlib.contextmanager
    def span(self, name: str, **data):
        """`with w.span("holds", lock="lock", token=t):` ends on exceptions too, with outcome ok, fail or unknown."""
        span = self.begin(name, **data)
        try:
            yield
        except BaseException as error:
            self.end(span, outcome=outcome_of(error), error=type(error).__name__)
            raise
        self.end(span)

    def wrote(self, resource: str, value, *, ok: bool = True, token=None, seq=None) -> None:
        """This worker's write was taken (ok) or refused by a resource; a mark on the resource's own lane.

        token -- the fencing token that came with it; seq -- the resource's own order number, if it told one.
        """
        self._touch("write", resource, value, ok, token, seq)
        self._stop_here("wrote")

    def has_read(self, resource: str, value, *, ok: bool = True, token=None, seq=None) -> None:
        """This worker read a value from a resource, perhaps registering its token there."""
        self._touch("read", resource, value, ok, token, seq)
        self._stop_here("read")

    def _touch(self, op, resource, value, ok, token, seq):
        told = {k: v for k, v in {"token": token, "seq": seq}.items() if v is not None}
        self._recorder.add(resource, "mark", str(value), by=self.name, op=op, value=value, ok=bool(ok), **told)

    # -- time
    def work(self, seconds: float) -> None:
        """Spend time as a job would: the process is alive and does nothing that the experiment looks at."""
        time.sleep(seconds)

    # -- the way to the servers
    def address(self, node) -> tuple[str, int]:
        """(host, port) of this worker's own link to a node: the way that faults can cut or delay."""
        servers.of(node.kind).must_be_linked()
        return links.LOOPBACK, links.open_link(self._links_path, self.name, node)

    def client(self, node, *, direct: bool = False, timeout_s: float = 2.0, **options):
        """An ordinary client of the node's kind (redis.Redis for Redis), through this worker's own link.

        direct -- without the link, for benchmarks: it costs about a third of the throughput.
        timeout_s -- how long the client waits for an answer. It never retries: a lesson must see each failure.
        """
        host, port = (node.host, node.port) if direct else self.address(node)
        return servers.of(node.kind).client(host, port, name=self.name, timeout_s=timeout_s, **options)

    def sentinel(self, nodes, *, timeout_s: float = 2.0):
        """redis-py's Sentinel client over this worker's links: `r = w.sentinel(nodes).primary()` follows a failover.

        nodes -- all of them: the primary, the replicas, the Sentinels.
        """
        from .servers.sentinel import SentinelClient

        return SentinelClient(nodes, self.address, name=self.name, timeout_s=timeout_s)

    def cluster(self, nodes, *, timeout_s: float = 2.0, **options):
        """redis-py's Cluster client over this worker's links. It follows redirections, and never retries by itself."""
        from .servers.cluster import cluster_client

        return cluster_client(nodes, self.address, name=self.name, timeout_s=timeout_s, **options)

    # -- stopping points
    def _stop_here(self, where: str) -> None:
        with self._reading:
            if self._held:  # another thread stands at a mark, and it alone reads; this one goes on
                return
            self._take_all()
            if where not in self._stops:
                return
            self._stops.discard(where)
            self._go, self._held = False, True
        self._wire.send("at", where)
        while not self._go:
            self._take()
        self._held = False

    @property
    def stopping(self) -> bool:
        """True once this worker was asked to come to an end (observers are)."""
        with self._reading:
            if not self._held:
                self._take_all()
        return self._stopping

    def _take_all(self) -> None:
        while self._wire.waiting() and not self._stopping:
            self._take()

    def _take(self) -> None:
        try:
            what, *rest = self._wire.recv()
        except EOFError:  # the kernel is gone; the keeper is about to end this process
            os._exit(1)
        if what == "stop_at":
            self._stops.add(rest[0])
        elif what == "go":
            self._go = True
        elif what == "stop":
            self._go = self._stopping = True

    def __reduce__(self):
        raise TypeError("w belongs to one worker's process and cannot leave it; pass values instead")


def main(name: str, sock: socket.socket, recorder: Recorder, folder: str, seed: int) -> None:
    """The life of a worker process, from fork to exit."""
    out = os.open(output_path(folder, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", 1, encoding="utf-8", errors="replace") for fd in (1, 2))
    random.seed(f"{seed}/{name}")
    wire = Wire(sock)
    w = Within(name, wire, recorder, f"{folder}/links.sock")
    while True:
        what, *rest = wire.recv()
        if what == "stop_at":
            w._stops.add(rest[0])
        elif what == "run":
            break
    sources = {}
    try:
        blob, sources = rest
        function, args, kwargs = shipping.unpack(blob, sources)
        reply = ("done", cloudpickle.dumps(function(w, *args, **kwargs)))
    except BaseException as error:
        reply = ("raised", *_raised(w, error, sources))
    with contextlib.suppress(OSError):  # a full disk, or nobody there to hear it
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        wire.send(*reply)


def _raised(w: Within, error: BaseException, sources: dict) -> tuple:
    with contextlib.suppress(LabError):
        w._recorder.add(w.name, "mark", f"raised {type(error).__name__}", raised=True)
    told, text, blob = shipping.traceback_text(error, sources), "", None
    error.__traceback__ = None
    with contextlib.suppress(Exception):  # not every exception can tell its own text
        text = str(error)
    if isinstance(error, Exception):  # the others, SystemExit for one, would end the notebook too
        with contextlib.suppress(Exception):
            made = cloudpickle.dumps(error)
            cloudpickle.loads(made)  # some exceptions pickle well and cannot be made again
            blob = made
    return blob, type(error).__name__, text, told


def output_path(folder: str, pid: int) -> str:
    """The file that takes what a worker prints."""
    return f"{folder}/worker-{pid}.out"
