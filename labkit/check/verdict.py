"""Verdict and Evidence: what every judge answers with."""

from dataclasses import dataclass, field

from ..errors import LabError

HOLDS, VIOLATED, UNJUDGED = "holds", "violated", "cannot be judged"


@dataclass(frozen=True)
class Evidence:
    """One stretch (or moment, if start == end) of the record that shows why; times in seconds of the run.

    lanes -- where it is to be seen, all of them lanes of the timeline.
    """

    start: float
    end: float
    lanes: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Verdict:
    """The answer of a check. It has no truth value; ask `.ok`, which raises when the record does not tell."""

    rule: str
    status: str
    text: str
    evidence: tuple[Evidence, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the rule holds. Raises LabError when it cannot be judged."""
        if self.status == UNJUDGED:
            raise LabError(
                f"{self.rule} cannot be judged: {self.text}.",
                "What the record does not tell must count neither as passed nor as failed.",
                "Look at the run: e.timeline.lanes, and at the names your worker gives its spans and marks.",
            )
        return self.status == HOLDS

    def __bool__(self):
        raise TypeError("a Verdict has no truth value: ask .ok (it raises when nothing could be judged)")

    def __repr__(self) -> str:
        status = "VIOLATED" if self.status == VIOLATED else self.status
        return f"{self.rule} {status}: {self.text}"


# -- words for the texts of the judges
def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else "an instant"


def count(n: float, noun: str) -> str:
    """'1 write', '2 writes'."""
    return f"{n:g} {noun}{'' if n == 1 else 's'}"


def few(names, most: int = 3) -> str:
    """'a, b, c and 4 more'."""
    names = list(names)
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
