"""Curves: how a cost grows with N, one line a label."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ..errors import LabError
from . import page
from .pairs import number
from .picture import Picture
from .sheet import Sheet
from .style import INK, LANE, fill, shorten, width
from .twin import sentences, twin

HIGH = 210.0  # points of the plot
SHAPES = 4  # circle, square, triangle, diamond


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    verdict=None,
    *,
    x: str,
    y: str,
    log: tuple[bool, bool] = (True, True),
    article: Sequence[str] = (),
    title: str = "What it costs",
    width_in: float = 9.0,
) -> Picture:
    """Lines over N: {"sorted set": [(1000, 96.0), …], …}, each named at its end and with a mark of its own shape.

    x, y -- what the axes are, with their units. log -- which of (x, y) are logarithmic: for positive numbers only.
    article -- labels of lines that are somebody's figures and not ours: drawn broken and in the page's ink.
    Raises LabError when there is nothing to draw, or a number that a logarithmic axis cannot show.
    """
    points = [point for line in lines.values() for point in line]
    if not points:
        raise LabError("There are no points to draw.", "No line has any.", 'Give {"label": [(n, value), …]}.')
    for axis, is_log in enumerate(log):
        if is_log and min(point[axis] for point in points) <= 0:
            raise LabError(
                f"A logarithmic axis cannot show {min(point[axis] for point in points):g}.",
                "It has no place for zero and below.",
                f"Leave that point out, or draw with log={(log[0] and axis != 0, log[1] and axis != 1)}.",
            )
    head = page.head(title, verdict, width_in)
    left = page.MARGIN + 64
    right = head.across - page.MARGIN - max(width(shorten(label, 28)) for label in lines) - 22
    top = head.height + 22
    sheet = Sheet(head.across, top + HIGH + page.AXIS)
    along = _scale(log[0], [p[0] for p in points], left + 8, right, x)
    up = _scale(log[1], [p[1] for p in points], top + HIGH, top + 8, y)
    head.draw(sheet)
    page.axis_below(sheet, along, top, top + HIGH)
    page.axis_left(sheet, up, left, right)
    sheet.text(page.MARGIN, head.height + 14, y, opacity=page.MUTED)
    names = []
    for i, (label, line) in enumerate(lines.items()):
        spots = [(along(n), up(value)) for n, value in sorted(line)]
        tips = [f"{label}: {number(value)} at {number(n)}" for n, value in sorted(line)]
        if spots:
            _line(sheet, spots, tips, INK if label in article else fill(i), label in article, i % SHAPES)
            names.append((spots[-1], shorten(label, 28)))
    for at, spot, label in _apart(names):
        sheet.line([(at[0] + 5, at[1]), (right + 14, spot)], thick=0.7, opacity=0.4, layer=1)
        sheet.text(right + 17, spot + 3.5, label, size=LANE - 1)
    return Picture(sheet, title, *_words(title, head.judged, lines, x, y))


def _words(title: str, judged: str, lines, x: str, y: str) -> tuple[str, str]:
    """(alt text, twin)."""
    table, ends = [f"{x}: {y}"], []
    for label, line in lines.items():
        points = sorted(line)
        table.append(f"{label}: " + ", ".join(f"{number(n)}: {number(value)}" for n, value in points))
        if points:
            ends.append(f"{label} goes from {number(points[0][1])} to {number(points[-1][1])}")
    return sentences(title, judged, f"{y} over {x}", *ends), twin([title, judged, *table])


def _scale(is_log: bool, values: Sequence[float], start: float, end: float, caption: str) -> Callable[[float], float]:
    if is_log:
        return page.Log(min(values), max(values), start, end, number, f"{caption}, logarithmic scale")
    return page.Linear(min(0.0, *values), max(values), start, end, caption)


def _line(sheet: Sheet, spots, tips, colour: str, broken: bool, shape: int) -> None:
    for (x0, y0), (x1, y1) in pairwise(spots):
        if broken:
            sheet.dashes(x0, x1, y0, y1, stroke=colour, thick=1.6)
        else:
            sheet.line([(x0, y0), (x1, y1)], stroke=colour, thick=2.0)
    for (a, b), tip in zip(spots, tips, strict=True):
        r = 4.2
        if shape == 0:
            sheet.dots([(a, b)], r, fill=colour, layer=4, tip=tip)
        else:
            corners = {
                1: [(-r, -r), (r, -r), (r, r), (-r, r)],
                2: [(0, -r * 1.2), (r * 1.2, r), (-r * 1.2, r)],
                3: [(0, -r * 1.35), (r * 1.35, 0), (0, r * 1.35), (-r * 1.35, 0)],
            }[shape]
            sheet.shape([(a + dx, b + dy) for dx, dy in corners], fill=colour, layer=4, tip=tip)


def _apart(names) -> list[tuple[tuple[float, float], float, str]]:
    """Labels at the right, from the top down, each at least 13 points below the one before."""
    spread, last = [], float("-inf")
    for at, label in sorted(names, key=lambda n: n[0][1]):
        last = max(at[1], last + 13)
        spread.append((at, last, label))
    return spread
