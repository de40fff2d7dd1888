"""A server's wall clock, moved: a small preloaded library adds to what the system says, for one process alone.

Jumps and a wrong rate are both real faults of machines (a time service that steps, a clock that drifts). Why our own
library and not libfaketime: see docs/design.md.
"""

import hashlib
import os
import platform
import struct
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from .. import programs
from ..session import home

_SOURCE = Path(__file__).with_name("shim.c")
_LAYOUT = struct.Struct("=Qqqqq")  # struct deviation in shim.c
_VERSION = struct.Struct("=Q")


@cache
def _word() -> str:
    return hashlib.sha256(_SOURCE.read_bytes() + platform.machine().encode()).hexdigest()[:12]


def library() -> Path | None:
    """The compiled library, or None where there is no C compiler. Compiled once; safe for many labs at once."""
    made = home() / f"clock-{_word()}.so"
    if made.exists():
        return made
    compiler = programs.find("cc")
    if not compiler:
        return None
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        new = Path(folder) / made.name
        command = [compiler.path, "-O2", "-shared", "-fPIC", "-o", new, _SOURCE, "-ldl"]
        if subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode:
            return None
        new.replace(made)  # whole or not at all, whoever does the same now
    return made


class Clock:
    """The deviation of one server's wall clock: a file, written in place, as the server has it mapped.

    also -- called with each change before the file is: [(place in the file, bytes), …], to be written in this order.
    """

    def __init__(self, path: Path, also=None):
        self.path, self._also = path, also
        if not path.exists():
            path.write_bytes(_LAYOUT.pack(0, 0, 0, 0, 0))

    @property
    def jump_s(self) -> float:
        """The sum of its jumps, in seconds."""
        return self._read()[1] / 1e9

    @property
    def rate(self) -> float:
        """Its seconds in a true second."""
        return 1 + self._read()[4] / 1e9

    @property
    def right(self) -> bool:
        """It shows the true time, at the true pace."""
        return not any(self._read()[1:])

    def jump(self, seconds: float) -> None:
        """Put it forwards (backwards: a negative number)."""
        version, jump, drift, since, extra = self._read()
        self._write(version, jump + round(seconds * 1e9), drift, since, extra)

    def run_at(self, rate: float) -> None:
        """From now on it makes `rate` seconds in a true second; what it is off by now, it keeps."""
        version, jump, drift, since, extra = self._read()
        now = time.monotonic_ns()
        self._write(version, jump, drift + (now - since) * extra // 10**9, now, round((rate - 1) * 1e9))

    def reset(self) -> None:
        """Put it right: the true time at the true rate."""
        self._write(self._read()[0], 0, 0, 0, 0)

    def _read(self) -> tuple[int, ...]:
        return _LAYOUT.unpack(self.path.read_bytes())

    def pieces(self) -> list[tuple[int, bytes]]:
        """What to write, in this order, into a file that missed changes of this one."""
        return _pieces(*self._read())

    def _write(self, version: int, *fields: int) -> None:
        pieces = _pieces(version, *fields)
        if self._also:
            self._also(pieces)
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)  # the same inode: another one would not be the mapped one
        try:
            for at, piece in pieces:
                os.pwrite(file, piece, at)
        finally:
            os.close(file)

    def __repr__(self) -> str:
        """'clock +60 s', 'clock x10', 'clock +60 s x10'; 'clock' is right, or drifted and now runs true."""
        jump = f" {self.jump_s:+g} s" if self.jump_s else ""
        rate = f" x{self.rate:g}" if self.rate != 1 else ""
        return f"clock{jump}{rate}"


def _pieces(version: int, *fields: int) -> list[tuple[int, bytes]]:
    """The version is odd while the rest is written, so nobody takes half of it."""
    rest = _LAYOUT.pack(version + 1, *fields)[_VERSION.size :]
    return [(0, _VERSION.pack(version + 1)), (_VERSION.size, rest), (0, _VERSION.pack(version + 2))]
