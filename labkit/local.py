"""The local driver: real server programs as child processes of the keeper, on loopback."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from . import servers
from .clock import Clock, library
from .driver import Driver
from .session import Session

_CLOCK_LINK = "clock.so"
_IPC_RMID = 0


class Local(Driver):
    """Servers as processes of this machine."""

    name = "local"

    def __init__(self, session: Session):
        super().__init__(session)
        self._reserved: dict[tuple[str, str], socket.socket] = {}

    def _program(self, server) -> str:
        return server.where()

    def _give_address(self, node, server, together) -> None:
        node.ports = {purpose: self._reserve(node.name, purpose) for purpose in server.ports}

    def start(self, nodes: list) -> None:
        super().start(nodes)
        for node in nodes:
            _let_go_of_shared_memory(node.pid)

    def _launch(self, nodes, server, program) -> None:
        for node in nodes:
            self._launch_one(node, server, program)

    def _launch_one(self, node, server, program) -> None:
        folder = self._folder(node)
        place = servers.Place(program, str(folder), new=not folder.exists())
        folder.mkdir(exist_ok=True, mode=0o711)
        launch = server.launch(place, node)
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

    def _lives(self, node) -> bool:
        return self._session.ask("poll", pid=node.pid)["alive"]

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

    def _discard(self, node) -> None:
        self.kill(node)
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
        return library() is not None if power == "clock" else super().can(power)

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
