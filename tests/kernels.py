"""Labs in Python processes of their own, which a test may kill, and looks at what is left of them."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from labkit.session import session_of

ROOT = Path(__file__).resolve().parent.parent


def eventually(look, what: str, timeout_s: float = 5):
    """Look again and again until it is true; returns what was seen. The bound decides about failure only."""
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not so within {timeout_s} s: {what}"
        time.sleep(0.002)
    return seen


def alive(pid: int) -> bool:
    """A zombie is not alive: it only waits for its parent to look."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """The letter that the system gives: R, S, D, T (stopped), Z; '' when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def processes_of(folder) -> list[int]:
    """All processes of the session with this folder."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if session_of(pid) == Path(folder)]


def gone(folder, pids) -> bool:
    """Nothing is left of a session: neither its folder, nor these processes, nor others."""
    return not (any(map(alive, pids)) or Path(folder).exists() or processes_of(folder))


class Kernel:
    """A script that runs in a process of its own, as a notebook's code does in its kernel.

    It prints what the test wants to know, and waits for the test with input(). course -- the folder of its labkit.
    """

    def __init__(self, code: str, course: Path = ROOT, **environment: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            cwd=course, env={**os.environ, "PYTHONPATH": str(course), "PYTHONUNBUFFERED": "1", **environment},
        )  # fmt: skip
        self.pid, self._unread = self.process.pid, b""

    def line(self, timeout_s: float = 60) -> str:
        """The next line it prints, but not the laboratory's own."""
        deadline = time.monotonic() + timeout_s
        while True:
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                piece = b""
                if select.select([self.process.stdout], [], [], max(0, left))[0]:
                    piece = os.read(self.process.stdout.fileno(), 1 << 16)
                assert piece, f"no line came: {self._unread} {'' if left <= 0 else self.process.stderr.read().decode()}"
                self._unread += piece
            line, _, self._unread = self._unread.partition(b"\n")
            if not line.startswith(b"Lab "):
                return line.decode()

    def say(self, line: str = "") -> None:
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def end(self, timeout_s: float = 60) -> str:
        """Let it come to its end; returns the rest of what it printed. Fails when it raised."""
        out, err = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, err.decode()
        return (self._unread + out).decode()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
