"""Where each part of a lane finds room: rows of bars and strips, labels inside, above and below. Lengths in points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .. import measure
from . import place
from .lanes import FAULT, HATCHED, POINTER, REFUSED, Bar, Lane
from .style import TEXT, width

BAR, THIN, BAR_GAP, ROW, STRIP, MARK, BASE, DENSITY = 17.0, 8.0, 2.0, 12.0, 12.0, 8.0, 14.0, 24.0  # heights
LANE_GAP, THIN_GAP = 11.0, 4.0
ABOVE_ROWS, BELOW_ROWS, BAR_ROWS = 2, 4, 6  # at most
MANY = 200  # marks or spans of one lane, above which they are drawn as their density


@dataclass(frozen=True)
class Label:
    """A text with its mark or bar at x; `left` is where its room of `width` begins, `row` counts away from the lane."""

    x: float
    text: str
    bold: bool
    left: float = 0.0
    row: int = 0

    @property
    def width(self) -> float:
        return width(self.text, TEXT, self.bold) + 6


@dataclass(frozen=True)
class StripRow:
    """Strips of one name; text_at: the left end of that name, inside the strip `parted` for it, or beside all."""

    text: str
    strips: Sequence[Bar]
    text_at: float | None = None
    parted: Bar | None = None


@dataclass
class Laid:
    """A lane with its parts in points: y from the lane's own top, x on the page."""

    lane: Lane
    bars: list[tuple[int, Bar]] = field(default_factory=list)  # (row, bar)
    strips: list[StripRow] = field(default_factory=list)
    inside: dict[int, float] = field(default_factory=dict)  # index of a bar -> centre of its text
    beside: dict[int, float] = field(default_factory=dict)  # index of a bar -> left end of its text
    above: list[Label] = field(default_factory=list)
    below: list[Label] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # of a dense lane: how many marks in each 3 points,
    refused: list[int] = field(default_factory=list)  # and how many of the refused ones
    unlabelled: int = 0
    beyond: float = 0.0  # points by which labels reach beyond the right end

    def put(self, labels: Sequence[Label], left: float, right: float, rows: int, strict=True) -> list[Label]:
        """These labels in their places; the ones without room are counted."""
        sizes = [(label.x, label.width) for label in labels]
        places = place.place(sizes, left, right, rows, strict)
        self.beyond = max(self.beyond, place.overflow(sizes, places, right))
        self.unlabelled += places.count(None)
        return [replace(label, left=p.left, row=p.row) for label, p in zip(labels, places, strict=True) if p]

    @property
    def bar_high(self) -> float:
        return THIN if self.lane.thin else BAR

    @property
    def bar_rows(self) -> int:
        return 1 + max((row for row, _ in self.bars), default=-1) or int(bool(self.lane.freezes))

    @property
    def bars_top(self) -> float:
        return ROW * (1 + max((label.row for label in self.above), default=-1))

    @property
    def bars_bottom(self) -> float:
        if self.bar_rows:
            return self.bars_top + self.bar_rows * (self.bar_high + BAR_GAP) - BAR_GAP
        return self.bars_top + (0 if self.done else THIN if self.lane.thin else BASE)

    @property
    def centre(self) -> float:
        """Of the first bar, or of the line that marks without bars stand on."""
        if self.bar_rows:
            return self.bars_top + self.bar_high / 2
        return self.bars_top + (DENSITY if self.done else THIN if self.lane.thin else BASE) / 2

    @property
    def strips_top(self) -> float:
        return self.bars_bottom + 1

    @property
    def marks_top(self) -> float:
        return self.strips_top + STRIP * len(self.strips)

    @property
    def labels_top(self) -> float:
        pointers = self.bars and any(mark.shape == POINTER for mark in self.lane.marks)
        return self.marks_top + (DENSITY if self.done else MARK if pointers else 0.0)

    @property
    def height(self) -> float:
        if self.lane.thin:
            return self.bars_bottom + THIN_GAP
        rows = 1 + max((label.row for label in self.below), default=-1)
        names = 14 + 13 * bool(self.lane.role) + 12 * bool(self.unlabelled)
        return max(self.labels_top + ROW * (rows + bool(self.done)), self.bars_top + names) + LANE_GAP


def lay(lane: Lane, x: Callable[[float], float], left: float, right: float, strict: bool = True) -> Laid:
    """Find room for everything on this lane, with times at x(t), between left and right.

    strict -- False: labels may go beyond the right end, and `beyond` says by how much, so that the scale can make room.
    """
    laid = Laid(lane)
    laid.bars = _pack(_merge(lane.bars, x))
    _place_strips(laid, x, left)
    marks = sorted(lane.marks, key=lambda m: m.t)
    if lane.dense:
        bins = max(1, int((x.end - x.start) / 3))
        groups = [[x(m.t) for m in marks if (m.shape == REFUSED) == refused] for refused in (False, True)]
        laid.done, laid.refused = (measure.density(group, x.start, x.end, bins) for group in groups)
        marks = [m for m in marks if m.shape == FAULT]
    if not lane.thin:
        _label_bars(laid, x, left, right)
        wanted = _group([Label(x(m.t), m.text, m.shape == FAULT) for m in marks if m.text])
        laid.below = laid.put(wanted, left, right, BELOW_ROWS, strict)
    return laid


def _merge(bars: Sequence[Bar], x) -> list[Bar]:
    """By start. Above MANY, what is drawn closer than a point becomes one block: a picture shows no more than that."""
    bars = sorted(bars, key=lambda bar: (bar.start, -bar.end))
    if len(bars) <= MANY:
        return bars
    merged: list[Bar] = []
    for bar in bars:
        last = merged[-1] if merged else None
        same = last and (last.fill, last.look, last.how) == (bar.fill, bar.look, bar.how)
        if same and x(bar.start) - x(last.end) < 1:
            merged[-1] = replace(last, end=max(last.end, bar.end), tip="", frozen=(*last.frozen, *bar.frozen))
        else:
            merged.append(replace(bar, text=""))
    return merged


def _pack(bars: Sequence[Bar]) -> list[tuple[int, Bar]]:
    """Bars by start, each in the first row that is free: nested spans come to lie under the one they are in."""
    ends: list[float] = []
    packed = []
    for bar in bars:
        row = next((i for i, taken in enumerate(ends) if taken <= bar.start), len(ends))
        row = min(row, BAR_ROWS - 1)  # more at once than can be read share the last
        ends[row : row + 1] = [bar.end]
        packed.append((row, bar))
    return packed


def _place_strips(laid: Laid, x, left: float) -> None:
    """A row for each kind of fault; its name inside the longest strip, else at the right of all, else at the left."""
    kinds: dict[str, list[Bar]] = {}
    for bar in sorted(laid.lane.strips, key=lambda bar: bar.start):
        kinds.setdefault(bar.text, []).append(bar)
    for text, bars in kinds.items():
        longest, room = max(bars, key=lambda bar: bar.end - bar.start), width(text) + 8
        first, last = x(bars[0].start), x(max(bar.end for bar in bars))
        if fits_inside(longest, x):
            at = (x(longest.start) + x(longest.end) - width(text)) / 2
            laid.strips.append(StripRow(text, bars, at, longest))
        elif last + room <= x.end or first - room >= left:
            laid.strips.append(StripRow(text, bars, last + 4 if last + room <= x.end else first - room + 4))
        else:
            laid.strips.append(StripRow(text, bars))
            laid.unlabelled += 1


def fits_inside(bar: Bar, x) -> bool:
    """A hatched bar leaves a window in its hatch for its text, with some hatch to be seen on both sides."""
    return x(bar.end) - x(bar.start) >= width(bar.text) + 30


def _label_bars(laid: Laid, x, left: float, right: float) -> None:
    wanted = []
    for i, (row, bar) in enumerate(laid.bars):
        if not bar.text:
            continue
        if bar.look in HATCHED:
            if not fits_inside(bar, x):
                wanted.append(Label((x(bar.start) + x(bar.end)) / 2, bar.text, False))
            continue
        parts = [(a, b) for a, b, frozen in bar.pieces() if not frozen]
        awake = max(parts, key=lambda part: x(part[1]) - x(part[0]), default=None)
        if awake and x(awake[1]) - x(awake[0]) >= width(bar.text, TEXT, True) + 8:
            laid.inside[i] = (x(awake[0]) + x(awake[1])) / 2
        elif row == 0:
            middle = (x(awake[0]) + x(awake[1])) / 2 if awake else x(bar.start) + 4
            wanted.append(Label(middle, bar.text, False))
        else:
            later = [x(other.start) for r, other in laid.bars if r == row and other.start >= bar.end]
            if x(bar.end) + 3 + width(bar.text) < min([right, *later]):
                laid.beside[i] = x(bar.end) + 3
            else:
                laid.unlabelled += 1
    for bar in laid.lane.freezes:
        if bar.text and not fits_inside(bar, x):
            wanted.append(Label((x(bar.start) + x(bar.end)) / 2, bar.text, False))
    wanted.sort(key=lambda label: label.x)
    laid.above = laid.put(_group(wanted), left, right, ABOVE_ROWS)


def _group(labels: Sequence[Label]) -> list[Label]:
    """Neighbours that say the same and would touch each other become one label: "tick ×5"."""
    runs: list[list[Label]] = []
    for label in labels:
        last = runs[-1][-1] if runs else None
        if last and (last.text, last.bold) == (label.text, label.bold) and label.x - last.x < label.width + place.GAP:
            runs[-1].append(label)
        else:
            runs.append([label])
    return [replace(r[len(r) // 2], text=r[0].text + f" ×{len(r)}" * (len(r) > 1)) for r in runs]
