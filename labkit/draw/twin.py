"""The same in words: one line a span or a mark, in the order of time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .style import clean, shorten, unit

# What a line tells in other words, or not at all.
_TOLD = {"span", "says", "fault", "raised", "by", "op", "ok", "value", "owner", "outcome", "error", "ttl_ms", "left_ms"}


@dataclass(frozen=True)
class Line:
    """start, end: seconds of the run; end None: a moment."""

    start: float
    end: float | None
    text: str


def details(data: dict) -> str:
    """What a span or a mark carries, for a reader: "lock=lock, token=33"."""
    return ", ".join(f"{key}={shorten(value, 40)}" for key, value in data.items() if key not in _TOLD)


def sentences(*parts: str) -> str:
    """The parts that are not empty, as sentences: the alt text."""
    return ". ".join(clean(part) for part in parts if part)


def twin(head: Sequence[str], lines: Sequence[Line] = ()) -> str:
    """The heading, a part a line, then a table of times and what happened then."""
    name, factor = unit(max([0.0, *(line.end or line.start for line in lines)]))
    digits = {"s": 4, "ms": 3, "µs": 1}[name]
    rows = [f"{'from ' + name:>10} {'to ' + name:>10}  what"] if lines else []
    for line in sorted(lines, key=lambda line: line.start):
        end = "" if line.end is None else f"{line.end * factor:.{digits}f}"
        rows.append(f"{line.start * factor:10.{digits}f} {end:>10}  {clean(line.text)}")
    return "\n".join([*(clean(part) for part in head if part), *rows])


def said(texts: Sequence[str], most: int = 4) -> str:
    """Many texts as counts of each, the most frequent first: "tick 300, tock 12, and 3 others"."""
    counts = sorted(Counter(texts).items(), key=lambda c: (-c[1], c[0]))
    told = [f"{shorten(text, 18)} {n}" for text, n in counts[:most]]
    return ", ".join(told + ([f"and {len(counts) - most} others"] if len(counts) > most else []))
