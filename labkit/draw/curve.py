"""Counts over the time axis of a run, drawn as steps below the lanes: windows, rates, backlogs."""

from collections.abc import Sequence
from dataclasses import dataclass

from . import page
from .sheet import Sheet
from .style import ALARM, ALARM_INK, INK, width

TOP, HIGH = 24.0, 104.0  # points for the caption, and for the plot


@dataclass(frozen=True)
class Series:
    """steps: [(from t in s on, value), …]; each value holds until the next. filled: the area below it is tinted."""

    steps: Sequence[tuple[float, float]]
    fill: str = INK
    filled: bool = False


@dataclass(frozen=True)
class Curve:
    """Lines over one upright axis from 0. limit: a broken line, with `limit_text`; what exceeds it is filled.

    high -- of the plot, in points.
    """

    caption: str
    lines: Sequence[Series]
    end: float  # s, where the last value stops to hold
    limit: float | None = None
    limit_text: str = ""
    high: float = HIGH

    @property
    def height(self) -> float:
        return TOP + self.high

    def draw(self, sheet: Sheet, x, top: float) -> None:
        low, base = top + TOP, top + TOP + self.high
        values = [value for line in self.lines for _, value in line.steps]
        least, most = min([0.0, *values]), max([1.0, self.limit or 0.0, *values])
        y = page.Linear(least, most * 1.08, base, low)
        sheet.text(x.start, top + 14, self.caption, opacity=page.MUTED)
        page.axis_left(sheet, y, x.start, x.end)
        for line in self.lines:
            steps = [(t, value) for t, value in line.steps if t <= self.end]
            outline = self._outline(steps, x, y)
            sheet.line(outline, stroke=line.fill, thick=1.8, layer=3)
            if line.filled:
                sheet.shape([*outline, (x(self.end), y(0))], fill=line.fill, opacity=0.2, layer=1)
            if self.limit is not None:
                sheet.rects(self._excess(steps, x, y), fill=ALARM, opacity=0.4, layer=2)
        if self.limit is not None:
            sheet.dashes(x.start, x.end, y(self.limit), y(self.limit), stroke=ALARM, thick=1.4, layer=3)
            right = x.end - width(self.limit_text) / 2
            sheet.text(right, top + 14, self.limit_text, anchor="center", fill=ALARM_INK)

    def _outline(self, steps, x, y) -> list[tuple[float, float]]:
        points, level = [(x(x.low), y(0))], y(0)
        for t, value in steps:
            points += [(x(t), level), (x(t), y(value))]
            level = y(value)
        return [*points, (x(self.end), level)]

    def _excess(self, steps, x, y) -> list[tuple[float, float, float, float]]:
        ends = [t for t, _ in steps[1:]] + [self.end]
        over = [(t, end, value) for (t, value), end in zip(steps, ends, strict=True) if value > self.limit]
        return [(x(t), max(x(end), x(t) + 1), y(value), y(self.limit)) for t, end, value in over]
