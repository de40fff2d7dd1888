"""Worker: the kernel's handle on one client in its own process."""

import contextlib
import pickle
import signal
import socket
import time
from pathlib import Path

from . import shipping
from .errors import LabError, WaitError, WorkerError
from .wire import Wire
from .within import output_path

_TAKES_S = 10.0  # how long a worker may take nothing of what it is sent


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

    # -- the verbs
    def start(self) -> "Worker":
        """Let it run, without waiting for anything."""
        if self.state == "new":
            self._send("run", *self._payload)
        elif self.state.startswith("at "):
            self._send("go")
        if not self._over:
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
        self._await(f"reach {mark!r}", timeout_s, mark)
        if self._over:
            raise self._ended_before(mark)
        return self

    def join(self, timeout_s: float = 30):
        """Wait for its end (starting or releasing it if needed); return its result, or raise what it raised."""
        self._lab._check_open()
        if not self._over:
            self.start()
            self._await("end", timeout_s)
        if self.state == "raised":
            raise self._result.with_traceback(None)  # else each join would add its own lines to the last one's
        if self.state == "killed":
            raise self._was_killed()
        return self._result

    @property
    def output(self) -> str:
        """What it printed so far."""
        path = Path(output_path(str(self._session.folder), self.pid))
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # -- inside
    @property
    def _over(self) -> bool:
        return self.state in ("done", "raised", "killed")

    def _send(self, *message) -> None:
        self._lab._check_open()
        try:
            self._wire.send(*message, timeout_s=_TAKES_S)
        except TimeoutError:
            self.state = "running"  # it will take the rest when it can, and need not be sent it again
            raise self._late("take what it was sent", _TAKES_S) from None
        except OSError:
            self._settle()
            if self.state == "killed":
                raise self._was_killed() from None

    def _await(self, what: str, timeout_s: float, mark: str | None = None) -> None:
        """Until it is over, or stands at `mark`; from one that only an interrupted wait wanted, it is let go."""
        deadline = time.monotonic() + timeout_s
        while not self._over:
            try:
                said, *rest = self._wire.recv(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise self._late(what, timeout_s) from None
            except (EOFError, OSError):
                self.state = "killed"
                raise self._was_killed() from None
            if said == "at" and rest[0] == mark:
                self.state = f"at {mark!r}"
                return
            if said == "at":
                self._send("go")
            else:
                self._finish(said, rest)

    def _late(self, what: str, timeout_s: float) -> WaitError:
        return WaitError(
            f"{self.name} did not {what} within {timeout_s:g} s; it is {self._status}.",
            "It is frozen: nobody woke it." if self.frozen else "It may wait for something that will not come.",
            f"Look at the picture of the run, or wait longer: timeout_s={timeout_s * 3:g}",
        )

    def _finish(self, what: str, rest) -> None:
        self._print_output()
        if what == "done":
            try:
                self.state, self._result = "done", pickle.loads(rest[0])
            except Exception as error:
                self.state = "raised"
                self._result = WorkerError(
                    f"{self.name} is done, but what it returned cannot be made again here: {_in_a_word(error)}.",
                    "It refers to something that only the worker has.",
                    "Return plain values: numbers, strings, lists, dictionaries.",
                )
            return
        blob, kind, text, told = rest
        error = None
        if blob:
            with contextlib.suppress(Exception):
                error = pickle.loads(blob)
        if error is None:
            error = WorkerError(
                f"{self.name} raised {kind}{': ' if text else ''}{text}",
                "This is told in words, as only ordinary errors that can be pickled come back as themselves.",
                f"See what it printed: print({self.name}.output)",
            )
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
        how = f"it raised {_in_a_word(self._result)}" if self.state == "raised" else "it is done"
        return WaitError(
            f"{self.name} ended without reaching {mark!r}: {how}.",
            "The name may be misspelt, or its function took another way.",
            f"Marks are what the function gives to w.mark(...) and w.span(...). See more: {self.name}.join()",
        )

    def _was_killed(self) -> WorkerError:
        self._print_output()
        return WorkerError(
            f"{self.name} was killed (pid {self.pid}) before it came to its end.",
            "The end of its run or a fault did it, or something outside (the system, short of memory?).",
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
        self._settle()
        return alive and self.state == "killed"

    def _settle(self) -> None:
        """Its process is gone: how did it end?"""
        if self._over:
            return
        said, *rest = self._last_words()
        if said in ("done", "raised"):
            self._finish(said, rest)
        else:
            self.state = "killed"

    def _last_words(self) -> tuple:
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


def _in_a_word(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}".rstrip(": ")
