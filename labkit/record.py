"""The record: every process writes one line an event into one file; a Timeline is that file, read and frozen.

One `os.write` of one line to a file opened with O_APPEND is whole and in place, whoever else writes, and it is there
after the writer was killed. A frozen writer holds no lock. Times are CLOCK_MONOTONIC, one clock for all processes.
"""

import json
import os
import time
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

from .errors import LabError

LAB = "lab"  # the lane of the laboratory's own notes; never drawn


class Recorder:
    """One process's pen. Fork-safe: the pid is asked for at each line, so a forked child writes under its own."""

    def __init__(self, path):
        self.path = str(path)
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._numbers = count()

    def add(self, lane: str, kind: str, name: str, /, **data) -> int:
        """Write one event (kind: begin, end, mark or note); return its number, unique within this process.

        The number of a begin is its span's id: pass it to the end as `span=`.
        """
        number = next(self._numbers)
        if kind == "begin":
            data["span"] = number
        row = [time.monotonic_ns(), os.getpid(), number, lane, kind, name, data]
        # The line break comes first: a line that a full disk cut short then spoils only itself, whoever writes next.
        line = ("\n" + json.dumps(row, default=str, ensure_ascii=False)).encode()
        try:
            written = os.write(self.fd, line)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        if written != len(line):
            raise _unwritable(self.path, OSError(28, "only a part of the line was written"))
        return number

    def size(self) -> int:
        return os.fstat(self.fd).st_size


def _unwritable(path: str, error: OSError) -> LabError:
    return LabError(
        f"The record could not be written: {error.strerror}.",
        f"The disk may be full, or a limit on file sizes is set (ulimit -f); the record is {path}.",
        "Make room, or set LABKIT_HOME to a folder with room, then run the cell with Lab(...) again.",
    )


@dataclass(frozen=True)
class Event:
    """t: seconds since the start of the run. kind: begin, end, mark or note."""

    t: float
    lane: str
    kind: str
    name: str
    data: dict = field(default_factory=dict)
    pid: int = 0


@dataclass(frozen=True)
class Span:
    """A stretch of time on a lane. how: 'ended', 'died' (its process ended first), 'open' (the record ended first)."""

    lane: str
    name: str
    start: float
    end: float
    data: dict
    how: str = "ended"

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def outcome(self) -> str:
        """ok, fail or unknown: an operation whose answer never came may or may not have happened."""
        return self.data.get("outcome", "ok" if self.how == "ended" else "unknown")


def _names_the_run(e: Event) -> bool:
    return e.kind == "note" and e.name == "run" and "title" in e.data


@dataclass(frozen=True)
class Timeline:
    """The ordered record of one run. It draws itself, checks judge it, measures count it; nothing changes it."""

    events: tuple[Event, ...] = ()
    title: str = ""

    @classmethod
    def load(cls, path, start: int = 0, stop: int | None = None, title: str = "") -> "Timeline":
        """Read a record (bytes start to stop of it). Lines that a death or a full disk cut short are left out."""
        try:
            with open(path, "rb") as file:
                file.seek(start)
                blob = file.read() if stop is None else file.read(stop - start)
        except OSError as error:
            raise LabError(
                f"There is no record to read at {path}: {error.strerror}.",
                "The name may be misspelt, or the chapter has no recorded run yet.",
                "Look which there are: ls notebooks/recorded",
            ) from None
        rows = []
        for line in blob.splitlines():
            try:
                t, pid, number, lane, kind, name, data = json.loads(line)
            except (ValueError, TypeError):
                continue
            rows.append((t, pid, number, lane, kind, name, data))
        rows.sort(key=lambda row: row[:3])
        zero = rows[0][0] if rows else 0
        events = tuple(
            Event((t - zero) / 1e9, lane, kind, name, data, pid) for t, pid, _, lane, kind, name, data in rows
        )
        told = [e.data["title"] for e in events if _names_the_run(e)]
        return cls(events, title or (told[0] if told else ""))

    def save(self, path) -> Path:
        """Keep the run as a small file that `load` reads back: the offline twin of an experiment."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = ([round(e.t * 1e9), e.pid, i, e.lane, e.kind, e.name, e.data] for i, e in enumerate(self.events))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if not any(map(_names_the_run, self.events)):
            text = json.dumps([0, 0, -1, LAB, "note", "run", {"title": self.title}]) + "\n" + text
        path.write_text(text, encoding="utf-8")
        return path

    @cached_property
    def seconds(self) -> float:
        return self.events[-1].t if self.events else 0.0

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers, in order of creation."""
        return tuple(dict.fromkeys(e.name for e in self.events if e.lane == LAB and e.data.get("what") == "worker"))

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Every lane that has something to show: workers first, then the others as they appear."""
        shown = [e.lane for e in self.events if e.lane != LAB and e.kind != "note"]
        return tuple(dict.fromkeys([w for w in self.workers if w in shown] + shown))

    def marks(self, name: str | None = None, lane: str | None = None) -> list[Event]:
        return [
            e for e in self.events
            if e.kind == "mark" and (name is None or e.name == name) and (lane is None or e.lane == lane)
        ]  # fmt: skip

    def spans(self, name: str | None = None, lane: str | None = None) -> list[Span]:
        """Every begin with its end, by start. The death of a process closes what it had open."""
        done, opened = [], {}

        def close(key, at, how, data):
            begin = opened.pop(key)
            done.append(Span(begin.lane, begin.name, begin.t, at, {**begin.data, **data}, how))

        for e in self.events:
            if e.kind == "begin":
                opened[e.pid, e.data["span"]] = e
            elif e.kind == "end" and (e.pid, e.data["span"]) in opened:
                close((e.pid, e.data["span"]), e.t, "ended", e.data)
            elif e.kind == "note" and e.name == "exit" and "what" not in e.data:  # not a worker of that name
                for key in [key for key in opened if key[0] == e.data.get("pid")]:
                    close(key, e.t, "died", {})
        for key in list(opened):
            close(key, self.seconds, "open", {})
        done = [s for s in done if (name is None or s.name == name) and (lane is None or s.lane == lane)]
        return sorted(done, key=lambda s: (s.start, s.end))

    def draw(self, verdict=None, **how):
        """The timeline as a picture; see `labkit.draw.timeline`."""
        from .draw import (
            timeline,  # drawing is heavy to import, and a worker never draws
        )

        return timeline(self, verdict, **how)

    def __repr__(self) -> str:
        return f"Timeline({len(self.events)} events, {self.seconds:.1f} s, lanes {' '.join(self.lanes) or 'none'})"

    def _repr_mimebundle_(self, **how):
        return self.draw()._repr_mimebundle_(**how)
