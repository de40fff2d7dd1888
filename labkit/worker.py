"""Worker: the kernel's handle on one client in its own process."""

import contextlib
import pickle
import signal
import socket
from pathlib import Path

from . import shipping
from .errors import LabError, WaitError, WorkerError
from .wire import Wire
from .within import output_path


class Worker:
    """One client in its own operating-system process, so that freezing it is a real freeze.

    Made with `lab.worker(name, function, *args)`; `function(w, *args)` runs in it, and what it returns or raises comes
    back through `join`.
    """

    def __init__(self, lab, name: str, function, args, kwargs):
        self.name, self.state, self.frozen = name, "new", False
        self._lab, self._session = lab, lab._session
        self._payload = shipping.pack(function, args, kwargs)
        self._result, self._printed = None, 0
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = self._session.ask("worker", [theirs.fileno()], name=name)["pid"]
        self._wire = Wire(ours)
        self._next("start", 10)

    # -- the verbs
    def start(self) -> "Worker":
        """Let it run, without waiting for anything."""
        if self.state == "new":
            self._send("run", *self._payload)
            self.state = "running"
        elif self.state.startswith("at "):
            self._send("go")
            self.state = "running"
        return self

    def run_to(self, mark: str, timeout_s: float = 10) -> "Worker":
        """Let it run until it reaches a mark (or the start of a span) of this name, and hold it there.

        Raises WaitError when it does not get there within `timeout_s`, or ends first.
        """
        if self._over:
            raise self._ended_before(mark)
        self._send("stop_at", mark)
        self.start()
        what, *rest = self._next(f"reach {mark!r}", timeout_s)
        if what != "at":
            self._finish(what, rest)
            raise self._ended_before(mark)
        self.state = f"at {mark!r}"
        return self

    def join(self, timeout_s: float = 30):
        """Wait for its end (starting or releasing it if needed); return its result, or raise what it raised."""
        self._lab._check_open()
        if not self._over:
            self.start()
            what, *rest = self._next("end", timeout_s)
            self._finish(what, rest)
        if self.state == "raised":
            raise self._result
        if self.state == "killed":
            raise self._was_killed()
        return self._result

    @property
    def output(self) -> str:
        """What it printed so far."""
        path = Path(output_path(str(self._session.folder), self.name))
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- inside
    @property
    def _over(self) -> bool:
        return self.state in ("done", "raised", "killed")

    def _send(self, *message) -> None:
        self._lab._check_open()
        try:
            self._wire.send(*message)
        except ConnectionError:
            if not self._over:
                self.state = "killed"
            raise self._was_killed() from None

    def _next(self, what: str, timeout_s: float) -> tuple:
        try:
            return self._wire.recv(timeout_s)
        except TimeoutError:
            raise WaitError(
                f"{self.name} did not {what} within {timeout_s:g} s; it is {self._status}.",
                "It is frozen: nobody woke it." if self.frozen else "It may wait for something that will not come.",
                f"Look at the picture of the run, or wait longer: timeout_s={timeout_s * 3:g}",
            ) from None
        except (EOFError, OSError):
            self.state = "killed"
            raise self._was_killed() from None

    def _finish(self, what: str, rest) -> None:
        self._print_output()
        if what == "done":
            self.state, self._result = "done", pickle.loads(rest[0])
            return
        blob, kind, text, told = rest
        error = None
        if blob:
            with contextlib.suppress(Exception):
                error = pickle.loads(blob)
        if error is None:
            error = WorkerError(f"{self.name} raised {kind}: {text}", "Its class cannot travel between processes.")
        error.add_note(f"(raised in worker {self.name})" + (f"\n{told}" if told else ""))
        self.state, self._result = "raised", error

    def _print_output(self) -> None:
        text = self.output
        for line in text[self._printed :].splitlines():
            print(f"{self.name} | {line}")
        self._printed = len(text)

    def _ended_before(self, mark: str) -> LabError:
        if self.state == "killed":
            return self._was_killed()
        how = f"it raised {type(self._result).__name__}: {self._result}" if self.state == "raised" else "it is done"
        return WaitError(
            f"{self.name} ended without reaching {mark!r}: {how}.",
            "The name may be misspelt, or its function took another way.",
            f"Marks are what the function gives to w.mark(...) and w.span(...). Join it to see more: {self.name}.join()",
        )

    def _was_killed(self) -> WorkerError:
        self._print_output()
        return WorkerError(
            f"{self.name} was killed (pid {self.pid}) before it came to its end.",
            "A fault of this experiment did it, or something outside (the system, short of memory?).",
            "Its last events are in the picture of the run; make a new worker to go on.",
        )

    def _signal(self, number: signal.Signals) -> bool:
        """Signal it and wait until it shows; False when there is no such process any more."""
        return not self._session.ask("signal", pid=self.pid, signal=int(number))["gone"]

    def _kill(self) -> bool:
        """End it with SIGKILL; False when it had come to its end before (its result is kept)."""
        alive = self._session.ask("poll", pid=self.pid)["alive"]
        if alive:
            self._signal(signal.SIGKILL)
        self.frozen = False
        if not self._over:
            what, *rest = self._last_words()
            if what in ("done", "raised"):
                self._finish(what, rest)
                return False
            self.state = "killed"
        return alive

    def _last_words(self) -> tuple:
        """What a dead worker had said last, if anything."""
        said = ("nothing",)
        with contextlib.suppress(EOFError, TimeoutError, OSError):
            while True:
                said = self._wire.recv(0)
        return said

    def _close(self) -> None:
        self._wire.close()

    @property
    def _status(self) -> str:
        if self.frozen and not self._over:
            return f"frozen {self.state}" if self.state.startswith("at ") else "frozen"
        return self.state

    def __repr__(self) -> str:
        return f"{self.name} pid {self.pid} {self._status}"
