"""What the laboratory needs to know about a server, whatever the driver."""

from dataclasses import dataclass, field
from functools import cache

from .. import programs
from ..errors import Unsupported

need = cache(programs.need)  # it asks the program for its version, which takes as long as starting it


@dataclass(frozen=True)
class Place:
    """Where a node is to run, as its server will see it.

    program -- the command, or the path of it; folder -- where it is started, and all its files lie; new -- nothing of
    an earlier start is there; contained -- in a container of its image, and else as a process of this machine.
    """

    program: str
    folder: str
    new: bool = True
    contained: bool = False


@dataclass(frozen=True)
class Launch:
    """How to start one server process.

    argv -- the command; env -- more environment; files -- to write first, {path in the node's folder: text};
    before -- commands to run to their end first.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    before: tuple[list[str], ...] = ()


class Server:
    """One row of the table. Subclasses are stateless; a node carries the state (ports, role, options, pid)."""

    kind: str  # also the beginning of its nodes' names
    program: str  # a name in labkit.programs
    ports: dict[str, int]  # purpose -> the usual number; the first is the clients'
    image: str  # the official container image, with its exact tag
    image_variable: str  # the environment variable that names another
    command: str  # its program in that image
    user = "1000:1000"  # who runs it there: a name of that image's own, or any number
    folder: str | None = None  # that image's own for its data, which belongs to that user; None: one is made
    memory_mb = 256  # the most it may take in a container
    tree = False  # one node is several processes: signals go to all of them
    warm = True  # the keeper loads the client before it forks workers; not one that starts threads (grpc)
    start_s = 15.0  # how long a start may take, with all nodes that belong together
    linked = True  # its clients can be led over links
    clock = False  # its wall clock can be moved: the program asks the C library for the time (no Go, no JVM)

    def where(self) -> str:
        """The path of its program on this machine. Raises Unsupported if it is missing or too old."""
        return str(need(self.program).path)

    def introduce(self, nodes) -> None:
        """Tell nodes that belong together of each other (in `node.options`): ports are known, nothing runs yet."""

    def launch(self, place: Place, node) -> Launch:
        """The command that starts `node` at its host and the ports of `node.ports`, with `node.options`."""
        raise NotImplementedError

    def ready(self, node) -> bool:
        """One quick look, without waiting: does it really serve (and, together with others, know them)?"""
        raise NotImplementedError

    def form(self, nodes) -> None:
        """Once, when all nodes that belong together are ready for the first time: what makes them one."""

    def formed(self, node) -> bool:
        """One quick look after `form`: has the node found those it belongs with?"""
        return True

    def forget(self, node) -> None:
        """Before what a node has on disk is removed: let the others agree. Raises LabError if they do not."""

    def role(self, node) -> str | None:
        """What the node is now among those it belongs with, from itself; None: it cannot change, or gives no answer."""

    def names_primary(self, node, key: str | None) -> tuple[str, int] | None:
        """(host, port) of the node that this one takes for the primary (of `key`); None: it bears no witness."""

    def client(self, host: str, port: int, *, name: str, timeout_s: float, **options):
        """An ordinary client that waits `timeout_s` for an answer and never retries by itself."""
        raise NotImplementedError

    def observe(self, w, node, key: str) -> None:
        """Run in an observer: record on a lane of its own what the server says about `key`, until `w.stopping`."""
        raise self._has_no("observer", "Let a worker ask it, and record the answer with w.mark(...).")

    def lease(self, client, key: str) -> tuple[str | None, float | None]:
        """(value now, seconds it has left) of a key; (None, None): no such key; (value, None): it never expires."""
        raise self._has_no("TTL", 'Wait for something else: lab.until("what it is", lambda: ...).')

    def must_be_linked(self) -> None:
        """Raises Unsupported where no link can lead to it."""
        if not self.linked:
            raise Unsupported(
                f"No link can lead to {self.kind}.",
                "It tells its clients its own address, and they go there, past any link.",
                "Write w.client(node, direct=True); and freeze, kill or restart it rather than cut the way to it.",
            )

    def _has_no(self, what: str, todo: str) -> Unsupported:
        return Unsupported(f"There is no {what} for {self.kind}.", "This server keeps no such thing.", todo)
