"""The keeper: one process a lab, in its own session. It forks the workers, spawns the servers, and takes all along.

Single-threaded on purpose: a child asked to die with its parent (PDEATHSIG) dies with the *thread* that made it, and
the keeper's only thread lives as long as the keeper. When the kernel's pipe closes, when the kernel ends, or on any
error here, every child is killed, stopped ones and re-parented ones too (the keeper is a subreaper), and the
containers and the folder removed. A pid is safe to signal here, as only the keeper reaps it.
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time

from . import links, servers, within
from .processes import descendants, stat_of, stop_all, stopped
from .record import LAB, Recorder
from .session import remove_containers

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def _die_with(keeper_pid: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper_pid:  # it died before the wish was made
        os._exit(1)
    os.setsid()


class Keeper:
    def __init__(self, control: socket.socket, lock: int, folder: str, record: str, seed: int, kernel_pid: int):
        self.control, self.lock, self.folder, self.seed = control, lock, folder, seed
        self.recorder = Recorder(record)
        self.kernel = os.pidfd_open(kernel_pid)
        self.children: dict[int, dict] = {}  # pid -> name and kind, until reaped
        self.codes: dict[int, int] = {}  # pid -> wait status, once reaped
        self.engine: str | None = None  # where the container engine listens, once the session uses one
        self.wakeup, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        servers.of("redis")  # loaded once, before the forks: nearly every worker needs it
        with links.listen(f"{self.folder}/links.sock") as listener:
            self._fork("links", "links", lambda: links.serve(listener))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        events = selectors.DefaultSelector()
        for fd in (self.control, self.kernel, self.wakeup):
            events.register(fd, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in events.select()]
            if self.kernel in ready:
                return
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
                self._reap()
            if self.control in ready:
                message, fds, *_ = socket.recv_fds(self.control, 1 << 20, 4)
                if not message:
                    return
                ask = json.loads(message)
                if ask["op"] == "close":
                    return
                try:
                    answer = getattr(self, f"_do_{ask['op']}")(ask, fds)
                except OSError as error:
                    answer = {"error": str(error)}
                finally:
                    for fd in fds:
                        os.close(fd)
                self.control.send(json.dumps({"id": ask["id"], **answer}).encode())

    # -- requests
    def _do_ready(self, ask, fds):
        return {"pid": os.getpid()}

    def _do_engine(self, ask, fds):
        self.engine = ask["url"]
        return {}

    def _do_worker(self, ask, fds):
        sock = socket.socket(fileno=os.dup(fds[0]))
        pid = self._fork(
            ask["name"], "worker", lambda: within.main(ask["name"], sock, self.recorder, self.folder, self.seed)
        )
        sock.close()
        return {"pid": pid}

    def _do_server(self, ask, fds):
        # Not a fork of this process, which would copy its tables of pages: setpriv makes the wish to die with it.
        with open(ask["log"], "ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *ask["argv"]], cwd=ask["cwd"], env={**os.environ, **ask["env"]},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        process.returncode = 0  # it is reaped here, and Popen must not
        self.children[process.pid] = {"name": ask["name"], "kind": "server"}
        if ask["warm"]:
            servers.of(ask["kind"])  # its client is loaded while it starts, and no worker has to
        return {"pid": process.pid}

    def _do_signal(self, ask, fds):
        """Signal a child (`tree`: and all its descendants) and wait until it shows: stopped, running or gone."""
        self._reap()
        pid, number = ask["pid"], ask["signal"]
        if pid not in self.children:
            return {"gone": True}
        whole = [pid]
        if ask.get("tree"):
            whole = stop_all(pid) if number != signal.SIGCONT else [pid, *descendants(pid)]
        for one in whole[::-1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)
        want = {signal.SIGSTOP: stopped, signal.SIGKILL: self._gone}.get(number)
        deadline = time.monotonic() + 2
        while want and not all(map(want, whole)) and time.monotonic() < deadline:
            time.sleep(0.0001)
        self._reap()
        return {"gone": pid not in self.children}

    def _gone(self, pid: int) -> bool:
        self._reap()
        return stat_of(f"/proc/{pid}/stat") is None

    def _do_poll(self, ask, fds):
        self._reap()
        return {"alive": ask["pid"] in self.children, "status": self.codes.get(ask["pid"])}

    # -- children
    def _fork(self, name: str, kind: str, run) -> int:
        keeper_pid = os.getpid()
        pid = os.fork()
        if pid:
            self.children[pid] = {"name": name, "kind": kind}
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _die_with(keeper_pid)
            self.control.close()
            os.close(self.kernel)
            os.close(self.lock)  # what outlives a killed keeper must not look like one
            run()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self.children.pop(pid, None)
            self.codes[pid] = status
            if child:
                how = f"killed by {_signal_name(os.WTERMSIG(status))}" if os.WIFSIGNALED(status) else "ended"
                with contextlib.suppress(Exception):  # a full disk must not stop the reaping
                    self.recorder.add(LAB, "note", "exit", who=child["name"], of=child["kind"], pid=pid, how=how)


def _end_everything(folder: str, engine: str | None) -> None:
    """Kill all descendants, again and again until there are none; then remove the containers, and the folder last."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for _ in range(200):
        below = descendants(os.getpid())
        if not below:
            break
        for pid in below:  # parents first: PostgreSQL's would make new children, and shared memory that outlives them
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)
    if engine:
        remove_containers(engine, os.path.basename(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def main(control: str, lock: str, folder: str, record: str, seed: str, kernel_pid: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    keeper = None
    try:
        keeper = Keeper(socket.socket(fileno=int(control)), int(lock), folder, record, int(seed), int(kernel_pid))
        keeper.run()
    finally:
        _end_everything(folder, keeper and keeper.engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
