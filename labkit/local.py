"""The local driver: real server programs as child processes of the keeper, on loopback."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from . import links, servers
from .clock import Clock, library
from .errors import LabError, ServerDied
from .session import Session

_CLOCK_LINK = "clock.so"
_IPC_RMID = 0
_POWERS = ["pause", "kill", "restart", "cut", "delay", "cut_replication", "delay_replication", "isolate", "cut_peers"]


class Local:
    """Starts, freezes, wakes and ends server processes for one session."""

    name = "local"

    def __init__(self, session: Session):
        self._session = session
        self._reserved: dict[tuple[str, str], socket.socket] = {}

    def start(self, nodes: list) -> None:
        """Start nodes that belong together (again), wait until all serve. Raises ServerDied with the last log lines."""
        server = servers.of(nodes[0].kind)
        program = server.where()
        new = [node for node in nodes if not node.ports]
        for node in new:
            node.ports = {purpose: self._reserve(node.name, purpose) for purpose in server.ports}
        if new:
            server.introduce(new)
        for node in new if new and new[0].options.get("peer_links") else ():
            peers = [peer for peer in new if peer is not node]
            node.options["proxy"] = ("127.0.0.1", links.open_proxy(f"{self._session.folder}/links.sock", node, peers))
        try:
            for node in nodes:
                self._launch(node, server, program)
            self._wait(nodes, server, server.ready)
            if new:
                server.form(new)
                self._wait(new, server, server.formed)
        except BaseException:  # an interrupted cell leaves no half-made nodes behind either
            for node in nodes:
                self.kill(node)
            raise
        for node in nodes:
            _let_go_of_shared_memory(node.pid)
            node.state = "running"

    def _launch(self, node, server, program) -> None:
        folder = self._folder(node)
        folder.mkdir(exist_ok=True, mode=0o711)
        launch = server.launch(program, node, str(folder))
        for path, text in launch.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            (folder / path).write_text(text, encoding="utf-8")
        for argv in launch.before:
            self._run_first(node, argv, folder, launch.env)
        env = {**launch.env, **(self._moved_by(self.clock(node)) if server.clock else {})}
        node.pid = self._session.ask(
            "server", name=node.name, argv=launch.argv, cwd=str(folder), env=env, log=str(self._log_path(node)),
            kind=server.kind, warm=server.warm,
        )["pid"]  # fmt: skip

    def _run_first(self, node, argv, folder, env) -> None:
        with open(self._log_path(node), "ab") as log:
            done = subprocess.run(
                argv,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=60,
            )
        if done.returncode:
            raise self._died(node, f"could not be prepared ({Path(argv[0]).name} ended with {done.returncode})")

    def _wait(self, nodes, server, ready) -> None:
        deadline, looks = time.monotonic() + server.start_s, 0
        waiting = list(nodes)
        while waiting := [node for node in waiting if not ready(node)]:
            looks += 1
            if looks % 20 == 0:
                for node in nodes:
                    if not self._session.ask("poll", pid=node.pid)["alive"]:
                        raise self._died(node, "ended while it was starting")
            if time.monotonic() > deadline:
                raise self._died(waiting[0], f"did not answer within {server.start_s:.0f} s")
            time.sleep(0.0005)

    def _died(self, node, how: str) -> ServerDied:
        lines = [line for line in self.log(node).splitlines() if line.strip()][-3:]
        return ServerDied(
            f"{node.name} {how}.",
            "Its last words: " + (" / ".join(lines) or "none") + ".",
            f"Look at its options ({node.options.get('config') or 'none'}), or run: python -m labkit doctor",
        )

    def _reserve(self, node_name: str, purpose: str) -> int:
        """A port that no other lab takes: held by a bound socket that does not listen, which the server's may join."""
        holder = socket.socket()
        holder.bind(("127.0.0.1", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved[node_name, purpose] = holder
        return holder.getsockname()[1]

    # -- faults
    def pause(self, node) -> None:
        self._signal(node, signal.SIGSTOP)

    def resume(self, node) -> None:
        self._signal(node, signal.SIGCONT)

    def kill(self, node) -> None:
        self._signal(node, signal.SIGKILL)

    def _signal(self, node, number) -> None:
        tree = servers.of(node.kind).tree
        gone = self._session.ask("signal", pid=node.pid, signal=int(number), tree=tree)["gone"]
        if gone and number != signal.SIGKILL:
            raise self._died(node, "is not running any more")

    def forget_data(self, node) -> None:
        """Remove everything the (dead) node had on disk."""
        servers.of(node.kind).forget(node)
        shutil.rmtree(self._folder(node), ignore_errors=True)

    def clock(self, node) -> Clock:
        """The node's wall clock. It belongs to the machine, so to say: it stays as it is over a restart."""
        return Clock(self._session.folder / f"{node.name}.clock")

    def _moved_by(self, its_clock: Clock) -> dict[str, str]:
        """The environment that puts a process under this clock; it costs nothing that could be measured."""
        made = library()
        if not made:
            return {}
        link = self._session.folder / _CLOCK_LINK
        if not link.is_symlink():
            link.symlink_to(made)
        preload = [f"../{_CLOCK_LINK}", *filter(None, [os.environ.get("LD_PRELOAD")])]  # paths in it can have no blanks
        return {"LD_PRELOAD": ":".join(preload), "LABKIT_CLOCK": str(its_clock.path)}

    def moves_clock(self, node) -> bool:
        """Is this very process under a clock of ours? (A static program, or a folder without exec rights, is not.)"""
        made = library()
        return bool(made) and made.name in Path(f"/proc/{node.pid}/maps").read_text(errors="replace")

    # -- looks
    def log(self, node) -> str:
        try:
            return self._log_path(node).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def banner(self) -> str:
        return "local processes"

    def can(self, power: str) -> bool:
        """The powers of this driver; see the table in docs/design.md."""
        if power == "clock":
            return library() is not None
        return power in _POWERS

    def _folder(self, node) -> Path:
        return self._session.folder / node.name

    def _log_path(self, node) -> Path:
        return self._session.folder / f"{node.name}.log"

    def close(self) -> None:
        for holder in self._reserved.values():
            holder.close()


def _let_go_of_shared_memory(pid: int) -> None:
    """Mark the System V segments that a running server made (PostgreSQL does), so that they go when it goes.

    They belong to no process: without this, each SIGKILL would leave one behind for ever.
    """
    with contextlib.suppress(OSError), open("/proc/sysvipc/shm", encoding="ascii") as table:
        for _, shmid, _, _, maker, _, attached, *_ in [line.split() for line in table][1:]:
            if int(maker) == pid and int(attached):
                ctypes.CDLL(None).shmctl(int(shmid), _IPC_RMID, None)


def choose(driver: str, session: Session):
    """The driver of a name; 'auto' takes what this machine has."""
    if driver in ("auto", "local"):
        return Local(session)
    raise LabError(
        f"There is no driver {driver!r}.",
        "A driver is how servers are run; this laboratory knows 'local' (processes), and 'auto', which chooses.",
        'Write Lab("name", driver="auto").',
    )
