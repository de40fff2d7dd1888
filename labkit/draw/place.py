"""Where labels go: rows beside a lane, so that no label touches another and no leader line crosses one."""

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 5.0  # points between two labels of a row
TOUCH = 12.0  # points of a label that lie beyond its x, or half of it: a label stands under its mark, not beside it


@dataclass(frozen=True)
class Place:
    row: int  # 0 is nearest to the lane
    left: float


def place(
    labels: Sequence[tuple[float, float]], left: float, right: float, rows: int, strict: bool = True
) -> list[Place | None]:
    """A place for each (x, width), given by rising x, between left and right; None where it does not fit in `rows`.

    strict -- False: where only the right margin is in its way, a label may go beyond it (see `overflow`).

    From right to left, each label goes into the nearest row with room. It is centred on its x, but never reaches back
    over the x of the label before it, so the leader line of that one runs down freely, whatever row it needs.
    All lengths in points.
    """
    places: list[Place | None] = [None] * len(labels)
    ends: list[float | None] = [
        None
    ] * rows  # where the label, or the line to a deeper row, begins that is next to the right
    for i in reversed(range(len(labels))):
        x, width = labels[i]
        back = max(left, labels[i - 1][0] if i else left)  # it may begin here, or later
        wish = min(max(back, x - width / 2), x)
        for row in range(rows):
            end = ends[row]
            last = (right if end is None else end) - width
            if end is None and last < back and not strict:
                last = wish
            if last < back or last + width < min(x + min(TOUCH, width / 2), right):
                continue
            places[i] = Place(row, min(wish, last))
            ends[row] = places[i].left - GAP
            for above in range(row):
                ends[above] = min(x, right if ends[above] is None else ends[above])
            break
    return places


def overflow(labels: Sequence[tuple[float, float]], places: Sequence[Place | None], right: float) -> float:
    """By how many points these labels reach beyond `right`."""
    ends = [p.left + width for (_, width), p in zip(labels, places, strict=True) if p]
    return max([0.0, *(end - right for end in ends)])
