"""Strips: how long things took, one row a label, on a logarithmic axis."""

import math
import random
from collections.abc import Mapping, Sequence

from .. import measure
from ..errors import LabError
from . import page, place
from .layout import MANY
from .picture import Picture
from .sheet import Sheet
from .style import INK, LANE, TEXT, clean, fill, middle, time_text, width

ROW, DOTS = 52.0, 20.0  # points: a row, and the height in which its dots lie
LEAST_S = 1e-7  # what took no measurable time stands here


def strip(
    seconds: Mapping[str, Sequence[float]], verdict=None, *, title: str = "How long it took", width_in: float = 9.0
) -> Picture:
    """Durations in seconds by label, e.g. {"SET": [0.00021, …]}: a dot each, with median and 99th percentile.

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
    said = {label: f"median {time_text(m)}, 99th percentile {time_text(p)}" for label, (m, p) in found.items()}
    lines = [f"{clean(label)}: {len(seconds[label])} values, {said.get(label, 'none')}" for label in seconds]
    judged = "" if verdict is None else repr(verdict)
    head = page.Head(title, judged, width_in * 72, bool(verdict is not None and verdict.evidence))
    everything = [max(value, LEAST_S) for values in seconds.values() for value in values]
    left = page.MARGIN + page.column(
        [(middle(label), f"{len(values)} values") for label, values in seconds.items()], 64
    )
    bounds = (min(everything), max(everything)) if everything else (1e-3, 1.0)
    x = page.Log(*bounds, left, head.across - page.MARGIN - 16, time_text, "logarithmic scale")
    bottom = head.height + 8 + ROW * len(seconds)
    sheet = Sheet(head.across, bottom + page.AXIS)
    head.draw(sheet)
    page.axis_below(sheet, x, head.height, bottom)
    for i, (label, values) in enumerate(seconds.items()):
        top = head.height + 8 + i * ROW
        sheet.text(left - 10, top + 28, middle(label), size=LANE, anchor="right")
        sheet.text(
            left - 10, top + 40, f"{len(values)} value{'s' * (len(values) != 1)}", anchor="right", opacity=page.MUTED
        )
        if label in found:
            _row(sheet, x, top + 18, values, found[label], fill(i))
    text = "\n".join(part for part in (clean(title), judged, *lines) if part)
    return Picture(sheet, title, ". ".join(part for part in (title, judged, *lines) if part), text)


def _row(
    sheet: Sheet, x: page.Log, top: float, values: Sequence[float], quantiles: Sequence[float], colour: str
) -> None:
    if len(values) > MANY:
        bins = int((x.end - x.start) / 3)
        counts = measure.density([x(value) for value in values], x.start, x.end, bins)
        step, most = (x.end - x.start) / bins, max(counts)
        tops = [(x.start + i * step, top + DOTS * (1 - n / most)) for i, n in enumerate(counts) if n]
        sheet.rects([(a, a + step, min(y, top + DOTS - 1), top + DOTS) for a, y in tops], fill=colour)
    else:
        jitter = random.Random(0)  # the same picture every time
        for value in values:
            sheet.dot(
                x(value), top + 3 + (DOTS - 6) * jitter.random(), 2.4, fill=colour, opacity=0.65, tip=time_text(value)
            )
    sheet.line([(x.start, top + DOTS), (x.end, top + DOTS)], thick=0.6, opacity=0.35, layer=1)
    names = [f"{name} {time_text(value)}" for name, value in zip(("median", "99 %"), quantiles, strict=True)]
    for value in quantiles:
        sheet.line([(x(value), top - 4), (x(value), top + DOTS + 3)], stroke=INK, thick=1.8, layer=4)
    sizes = [(x(value), width(name, TEXT, True) + 6) for value, name in zip(quantiles, names, strict=True)]
    for name, spot in zip(names, _side_by_side(sizes, x), strict=True):
        sheet.text(spot + 3, top - 7, name, bold=True)


def _side_by_side(sizes: Sequence[tuple[float, float]], x: page.Log) -> list[float]:
    """Left ends of two labels in one row, each as near to its x as the other and the margins allow."""
    (a, wide_a), (b, wide_b) = sizes
    right = min(max(b - wide_b / 2, x.start + wide_a + place.GAP), x.end + 16 - wide_b)
    return [max(x.start, min(a - wide_a / 2, right - place.GAP - wide_a)), right]
