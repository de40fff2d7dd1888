"""Lanes: the plain data that the timeline and the lives of messages are drawn from. Times in seconds of the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from .style import UNKNOWN

# Looks of a bar, and the ones of them that are hatched.
SOLID, FAILED, DOUBTFUL, FROZEN, DEAD, KILLED = "solid", "failed", "doubtful", "frozen", "dead", "killed"
HATCHED = (FROZEN, DEAD, KILLED)
# Shapes of a mark; a pointer stands below the bars and points at them, the others stand on the lane's middle.
POINTER, DOT, TICK, READ, REFUSED, FAULT = "pointer", "dot", "tick", "read", "refused", "fault"


@dataclass(frozen=True)
class Bar:
    """A stretch of time. frozen: parts of it (start, end) in which its process stood still."""

    start: float
    end: float
    text: str
    fill: str = UNKNOWN
    look: str = SOLID
    how: str = "ended"
    tip: str = ""
    frozen: tuple[tuple[float, float], ...] = ()

    def pieces(self) -> list[tuple[float, float, bool]]:
        """It in order, parted where it was frozen: [(start, end, frozen), …]."""
        cuts = {self.start, self.end}
        cuts.update(min(max(t, self.start), self.end) for part in self.frozen for t in part)
        ordered = sorted(cuts)
        inside = [
            any(start <= a and b <= end for start, end in self.frozen)
            for a, b in zip(ordered, ordered[1:], strict=False)
        ]
        return list(zip(ordered, ordered[1:], inside, strict=False)) or [(self.start, self.end, False)]


@dataclass(frozen=True)
class Mark:
    """A moment. fill None: the page's ink."""

    t: float
    text: str
    shape: str = POINTER
    fill: str | None = None
    tip: str = ""


@dataclass(frozen=True)
class Lane:
    """One row of the picture: spans, stretches in which it was frozen, other faults on it, and marks.

    key: what a verdict's evidence calls it; name and role: what stands at its left, one below the other.
    """

    key: str
    name: str
    role: str = ""
    bars: Sequence[Bar] = ()
    freezes: Sequence[Bar] = ()
    strips: Sequence[Bar] = ()
    marks: Sequence[Mark] = ()
    dense: str = ""  # what the many marks are, when only their density is drawn
    thin: bool = False  # half as high, and nothing but its name is written on it
