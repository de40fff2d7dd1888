"""Running a chapter beside the one that needs what it measures."""

import re
import subprocess
import sys
import tempfile
import weakref

from .notebooks import find


class Beside:
    """A notebook that runs in QUICK, in a process of its own, while its caller goes on; it ends with its caller."""

    def __init__(self, which: str, driver: str = "auto"):
        """Starts it. Raises LabError when there is no such notebook. driver -- as of Lab."""
        self.name = find(which).stem
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as this object
        command = [sys.executable, "-m", "labkit", "run", self.name, "--quick", "--driver", driver]
        # In a session of its own the learner's interrupts do not reach it; a caller that is killed still ends it.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", *command],
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, start_new_session=True,
        )  # fmt: skip
        weakref.finalize(self, self._process.terminate)  # a cell that is run again starts another one

    def join(self, timeout_s: float = 300) -> str:
        """Wait until it ends, and say how that was: in one line, or in three when it failed or took too long."""
        try:
            code, last = self._process.wait(timeout_s), self._last_line()
        except subprocess.TimeoutExpired:
            code, last = None, f"it was ended after {timeout_s:g} s"
            self.end()
        if code == 0:
            return last
        return (
            f"{self.name}, which this notebook ran beside itself, failed: {last}\n"
            "It may lack a server, or the machine is too busy for both.\n"
            f"What rests on it is left out here. See it fail alone: python -m labkit run {self.name} --quick"
        )

    def end(self) -> None:
        """End it, with its kernel and its servers."""
        self._process.terminate()
        self._process.wait()

    def _last_line(self) -> str:
        self._said.seek(0)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", self._said.read().decode(errors="replace")).splitlines()
        return lines[-1] if lines else "it was ended from outside"
