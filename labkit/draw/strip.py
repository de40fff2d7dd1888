"""Strips: how long things took, one row a label, on a logarithmic axis."""

import math
import random
from collections.abc import Mapping, Sequence

from .. import measure
from ..errors import LabError
from . import page
from .layout import MANY
from .picture import Picture
from .sheet import Sheet
from .style import INK, LANE, TEXT, fill, middle, time_text, width
from .twin import sentences, twin

ROW, DOTS, GAP = 52.0, 20.0, 10.0  # points: a row, the height in which its dots lie, between two labels
LEAST_S = 1e-7  # what took no measurable time stands here


def strip(
    seconds: Mapping[str, Sequence[float]], verdict=None, *, title: str = "How long it took", width_in: float = 9.0
) -> Picture:
    """Durations in seconds by label, e.g. {"SET": [0.00021, …]}: a dot each, with median and 99th percentile
    (below 100 values, which have none but the longest: with that).

    Above 200 values in a row their density is drawn instead of dots. A label without values keeps its empty row.
    Quantiles are `measure.quantiles`'. Raises LabError for a duration below zero or not a number.
    """
    for label, values in seconds.items():
        for value in values:
            if not (value >= 0 and math.isfinite(value)):
                raise LabError(
                    f"{label!r} has a duration of {value!r} s.",
                    "A duration is a number of seconds, and not below zero.",
                    "Take them from measure.durations(e.timeline, span=…), or from one clock: end - start.",
                )
    found = {label: measure.quantiles(values, (0.5, 0.99)) for label, values in seconds.items() if len(values)}
    lines = []
    for label, values in seconds.items():
        said = ", ".join(_said(values, found[label])) if label in found else "none"
        lines.append(f"{label}: {_count(values)}, {said}")
    head = page.head(title, verdict, width_in)
    left = page.MARGIN + page.column([(middle(label, 34), _count(values)) for label, values in seconds.items()], 64)
    everything = [max(value, LEAST_S) for values in seconds.values() for value in values] or [1e-3, 1.0]
    x = page.Log(min(everything), max(everything), left, head.across - page.MARGIN - 16, time_text, "logarithmic scale")
    bottom = head.height + 8 + ROW * len(seconds)
    sheet = Sheet(head.across, bottom + page.AXIS)
    head.draw(sheet)
    page.axis_below(sheet, x, head.height, bottom)
    for i, (label, values) in enumerate(seconds.items()):
        top = head.height + 8 + i * ROW
        sheet.text(left - 10, top + 28, middle(label, 34), size=LANE, anchor="right")
        sheet.text(left - 10, top + 40, _count(values), anchor="right", opacity=page.MUTED)
        if label in found:
            _values(sheet, x, top + 18, values, fill(i))
            _quantiles(sheet, x, top + 18, found[label], _said(values, found[label]))
    return Picture(sheet, title, sentences(title, head.judged, *lines), twin([title, head.judged, *lines]))


def _count(values: Sequence[float]) -> str:
    return f"{len(values)} value{'s' * (len(values) != 1)}"


def _values(sheet: Sheet, x: page.Log, top: float, values: Sequence[float], colour: str) -> None:
    if len(values) > MANY:
        bins = int((x.end - x.start) / 3)
        counts = measure.density([x(value) for value in values], x.start, x.end, bins)
        step, most = (x.end - x.start) / bins, max(counts)
        tops = [(x.start + i * step, top + DOTS * (1 - n / most)) for i, n in enumerate(counts) if n]
        sheet.rects([(a, a + step, min(y, top + DOTS - 1), top + DOTS) for a, y in tops], fill=colour)
    else:
        jitter = random.Random(0)  # the same picture every time
        spots = [(x(value), top + 3 + (DOTS - 6) * jitter.random()) for value in values]
        sheet.dots(spots, 2.4, fill=colour, opacity=0.75)
    sheet.line([(x.start, top + DOTS), (x.end, top + DOTS)], thick=0.6, opacity=0.35, layer=1)


def _said(values: Sequence[float], quantiles: Sequence[float]) -> tuple[str, str]:
    median, high = map(time_text, quantiles)
    return f"median {median}", f"{'99 %' if len(values) >= 100 else 'all'} within {high}"


def _quantiles(sheet: Sheet, x: page.Log, top: float, quantiles: Sequence[float], names: tuple[str, str]) -> None:
    """Median and 99th percentile as two lines; their labels in one row, each as near to its line as can be."""
    a, b = map(x, quantiles)
    wide_a, wide_b = (width(name, TEXT, True) for name in names)
    right = min(max(b - wide_b / 2, x.start + wide_a + GAP), x.end + 16 - wide_b)
    for left, name, at in zip((min(a - wide_a / 2, right - GAP - wide_a), right), names, (a, b), strict=True):
        sheet.line([(at, top - 4), (at, top + DOTS + 3)], stroke=INK, thick=1.8, layer=4)
        sheet.text(left, top - 7, name, bold=True)
