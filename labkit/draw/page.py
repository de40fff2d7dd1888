"""What all pictures share: the title and the verdict above, a scale and its axis below, chips that explain colours."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator

from .sheet import Sheet
from .style import ALARM_INK, INK, LANE, SUBTITLE, TITLE, clean, unit, width, wrap

MARGIN = 12.0  # points round a sheet
GRID, MUTED = 0.13, 0.72  # opacities of the ink
AXIS = 36.0  # points below a plot for its ticks and its caption
SAME_STEP_S = 20e-6  # on the order axis: what is closer than this is one step


Chip = tuple[str, str]  # a word and the colour that stands for it


class Head:
    """Title, subtitle (the verdict) and chips; laid out before the sheet's height is known."""

    def __init__(self, title: str, subtitle: str, across: float, alarm: bool = False, chips: Sequence[Chip] = ()):
        room = across - 2 * MARGIN
        self.words = clean(title)
        self.title = wrap(title, room, TITLE, True)
        self.subtitle = wrap(subtitle, room, SUBTITLE) if subtitle else []
        self.judged, self.across, self.alarm, self.chips = subtitle, across, alarm, chips
        self.height = MARGIN + 17 * len(self.title) + 15 * len(self.subtitle) + (17 if chips else 0) + 6

    def draw(self, sheet: Sheet) -> None:
        y = MARGIN
        for line in self.title:
            y += 17
            sheet.text(MARGIN, y - 4, line, size=TITLE, bold=True)
        look = {"fill": ALARM_INK} if self.alarm else {"fill": INK, "opacity": MUTED}
        for line in self.subtitle:
            y += 15
            sheet.text(MARGIN, y - 3, line, size=SUBTITLE, **look)
        x, y = MARGIN, y + 17
        for name, colour in self.chips:
            if x + 12 + width(name) > sheet.width - MARGIN:
                break
            sheet.rect(x, x + 9, y - 11, y - 2, fill=colour)
            sheet.text(x + 13, y - 3, name)
            x += 13 + width(name) + 14


def head(title: str, verdict, width_in: float, chips: Sequence[Chip] = (), found: str = "") -> Head:
    """The head with a verdict as its subtitle, in alarm if it has evidence; without one, with what was `found`."""
    judged = found if verdict is None else repr(verdict)
    return Head(title, judged, width_in * 72, verdict is not None and bool(verdict.evidence), chips)


class Linear:
    """Values to points; `ticks` are round numbers. factor: what a value is multiplied by to be shown."""

    def __init__(self, low: float, high: float, start: float, end: float, caption: str = "", factor: float = 1.0):
        self.low, self.high = low, high if high > low else low + 1e-9
        self.start, self.end, self.caption, self.factor = start, end, caption, factor

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, apart: float = 62.0) -> list[tuple[float, str]]:
        """[(point, label), …], about `apart` points from one to the next."""
        low, high = self.low * self.factor, self.high * self.factor
        bins = max(2, int(abs(self.end - self.start) / apart))
        found = MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        values = [v for v in found if low <= v <= high * 1.0001]
        step = min((b - a for a, b in zip(values, values[1:], strict=False)), default=1.0)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        decimals += round(step * 10**decimals, 6) % 1 != 0
        return [(self(v / self.factor), f"{v:.{decimals}f}") for v in values]


class Log:
    """Positive values to points, by their logarithm; a tick each power of ten, written by `name`."""

    def __init__(self, low: float, high: float, start: float, end: float, name=lambda value: f"{value:g}", caption=""):
        self.low, self.high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        self.high = max(self.high, self.low + 1)
        self.start, self.end, self.name, self.caption = start, end, name, caption

    def __call__(self, value: float) -> float:
        place = math.log10(max(value, 10.0**self.low))
        return self.start + (self.end - self.start) * (min(place, self.high) - self.low) / (self.high - self.low)

    def ticks(self, apart: float = 40.0) -> list[tuple[float, str]]:
        powers = range(self.low, self.high + 1)
        every = max(1, math.ceil(apart * len(powers) / abs(self.end - self.start)))
        return [(self(10.0**p), self.name(10.0**p)) for p in powers[::every]]


def time_scale(low: float, high: float, start: float, end: float) -> Linear:
    """Seconds of a run to points, shown in s, ms or µs."""
    name, factor = unit(high)
    caption = {"s": "seconds", "ms": "milliseconds", "µs": "microseconds"}[name]
    return Linear(low, high, start, end, caption, factor)


class Order:
    """The moments of a record to points: one equal step an event, for races that are shorter than a dot."""

    caption = "milliseconds; one step an event, not to scale"

    def __init__(self, moments: Sequence[float], start: float, end: float):
        self.steps: list[float] = []
        for t in sorted(moments):
            if not self.steps or t - self.steps[-1] > SAME_STEP_S:
                self.steps.append(t)
        self.start, self.end = start, end
        self._step = (end - start) / max(1, len(self.steps))

    def __call__(self, t: float) -> float:
        i = max(0, bisect_right(self.steps, t + 1e-9) - 1)
        past = t - self.steps[i] if self.steps else 0.0
        if past > SAME_STEP_S and i + 1 < len(self.steps):
            i += past / (self.steps[i + 1] - self.steps[i])
        return self.start + self._step * (i + 0.5)

    def ticks(self, apart: float = 8.0) -> list[tuple[float, str]]:
        fine = any(b - a < 1e-4 for a, b in zip(self.steps, self.steps[1:], strict=False))
        labels = [f"{t * 1e3:.{1 + fine}f}" for t in self.steps]
        room = max((width(label) for label in labels), default=1.0) + apart
        every = max(1, math.ceil(room / self._step))
        return [(self(t), label) for t, label in list(zip(self.steps, labels, strict=True))[::every]]


def axis_below(sheet: Sheet, scale, top: float, bottom: float, caption: str = "") -> None:
    """Grid lines from top to bottom, the axis at the bottom with its ticks' labels and its caption."""
    ticks = scale.ticks()
    sheet.lines([[(x, top), (x, bottom)] for x, _ in ticks], thick=0.8, opacity=GRID, layer=0)
    sheet.line([(scale.start, bottom), (scale.end, bottom)], thick=0.8, opacity=0.5, layer=1)
    for x, label in ticks:
        sheet.text(x, bottom + 13, label, anchor="center", opacity=0.9)
    sheet.text((scale.start + scale.end) / 2, bottom + 28, caption or scale.caption, anchor="center", opacity=MUTED)


def column(names: Sequence[tuple[str, str]], least: float = 0.0) -> float:
    """Width in points of a column at the left with these names and, smaller, what stands below them."""
    return max([least, *(max(width(name, LANE), width(role)) for name, role in names)]) + 10


def axis_left(sheet: Sheet, scale, left: float, right: float) -> None:
    """Grid lines from left to right at the ticks of an upright scale, with their labels at the left."""
    ticks = scale.ticks(apart=26.0)
    sheet.lines([[(left, y), (right, y)] for y, _ in ticks], thick=0.8, opacity=GRID, layer=0)
    for y, label in ticks:
        sheet.text(left - 6, y + 3.5, label, anchor="right", opacity=0.9)
