"""Arrivals above, what they add up to below: a limiter's window against its limit, and a queue's backlog."""

from collections.abc import Sequence

from .. import measure
from ..record import Event, Timeline
from . import page
from .curve import HIGH, Curve, Series
from .lanes import REFUSED, TICK, Lane, Mark
from .layout import MANY
from .picture import Picture
from .story import bounds, colours
from .style import middle, time_text
from .timeline import draw_lanes
from .twin import Line, sentences, twin

GO, COME = "#009E73", "#0072B2"


def band(
    timeline: Timeline,
    verdict=None,
    *,
    limit: int,
    window_s: float,
    admitted: str = "admitted",
    refused: str = "refused",
    lanes: Sequence[str] | None = None,
    each: bool = False,
    title: str | None = None,
    width_in: float = 9.0,
) -> Picture:
    """A limiter's answers, a row for each lane, and below how many were admitted within the last `window_s` seconds.

    limit -- how many may be admitted in any window of that length; what exceeds it is filled.
    admitted, refused -- the names of the marks that workers make at the limiter's answer. lanes -- only these, in this
    order; None: all with such marks.
    each -- every lane is a limiter of its own and gets its own window, to compare them on the same arrivals.
    verdict -- printed below the title. Counting is `measure.window`'s.
    """
    marks = _marks(timeline, (admitted, refused), lanes)
    there = dict.fromkeys(e.lane for e in marks)
    names = [lane for lane in lanes or there if lane in there]
    within, fills = time_text(window_s), colours(timeline)
    curves, most = [], {}
    for name in names if each else [""]:
        passed = [e.t for e in marks if e.name == admitted and name in ("", e.lane)]
        steps = measure.window(passed, window_s)
        at, most[name] = max(steps, key=lambda step: step[1], default=(0.0, 0))
        caption, high = f"admitted within the last {within}", HIGH
        if each:
            caption, high = f"{middle(name)}: {caption}", HIGH / 2
        series = Series(steps, fills[name]) if each else Series(steps)
        curves.append(Curve(caption, [series], timeline.seconds, limit, f"limit {limit} in {within}", high))
    if each:
        counts = ", ".join(f"{name} {count}" for name, count in most.items())
        found = f"Admitted within {within}, at most: {counts}; limit {limit}"
    else:
        found = f"At most {most['']} admitted within {within} (at {time_text(at)}), limit {limit}"
        found += f"; {len(marks) - len(passed)} refused"
    head = page.head(title or timeline.title or "Arrivals", verdict, width_in, found=found)
    head.alarm |= any(count > limit for count in most.values())
    rows, lines = [], []
    for lane in names:
        mine = [e for e in marks if e.lane == lane]
        told = ", ".join(f"{sum(e.name == name for e in mine)} {name}" for name in (admitted, refused))
        shapes = [Mark(e.t, "", REFUSED if e.name == refused else TICK, fills.get(lane)) for e in mine]
        if len(mine) > MANY:
            rows.append(Lane(lane, middle(lane), marks=shapes, dense=told))
            lines.append(Line(mine[0].t, mine[-1].t, f"{lane}: {told}"))
        else:
            rows.append(Lane(lane, middle(lane), told, marks=shapes))
            lines += [Line(e.t, None, f"{lane}: {e.name}") for e in mine]
    sheet = draw_lanes(rows, head, _bounds(timeline, marks), under=curves if marks else ())
    more = "" if verdict is None else found
    return Picture(
        sheet, head.words, sentences(head.words, head.judged, more), twin([head.words, head.judged, more], lines)
    )


def backlog(
    timeline: Timeline,
    *,
    came: str = "sent",
    went: str = "done",
    bin_s: float = 0.1,
    title: str | None = None,
    width_in: float = 9.0,
) -> Picture:
    """A queue over time: how many a second came and went (in bins of `bin_s`), and below how many waited.

    came, went -- the names of the marks at a message's two ends, made by any worker. Counting is `measure`'s.
    """
    marks = _marks(timeline, (came, went), None)
    into, out = ([e.t for e in marks if e.name == name] for name in (came, went))
    waiting = measure.backlog(into, out)
    at, most = max(waiting, key=lambda step: step[1], default=(0.0, 0))
    end = timeline.seconds
    left = f"{len(into) - len(out)} wait at the end, at most {most} (at {time_text(at)})"
    head = page.head(title or timeline.title or "Backlog", None, width_in, [(came, COME), (went, GO)], found=left)
    fast, slow = (measure.rates(times, bin_s, end) for times in (into, out))
    curves = [
        Curve(f"a second, in steps of {time_text(bin_s)}", [Series(slow, GO, filled=True), Series(fast, COME)], end),
        Curve("waiting", [Series(waiting)], end),
    ]
    sheet = draw_lanes([], head, _bounds(timeline, marks), under=curves if marks else ())
    lines = [Line(t, None, f"{n} waiting") for t, n in waiting[:: max(1, len(waiting) // MANY)]]
    told = [head.words, f"{len(into)} {came}, {len(out)} {went}", left]
    return Picture(sheet, head.words, sentences(*told), twin(told, lines))


def _marks(timeline: Timeline, names: Sequence[str], lanes: Sequence[str] | None) -> list[Event]:
    return [e for e in timeline.marks() if e.name in names and (lanes is None or e.lane in lanes)]


def _bounds(timeline: Timeline, marks: Sequence[Event]) -> tuple[float, float]:
    first, last = bounds([e.t for e in marks])
    return first, max(last, timeline.seconds) + (last - first) * 0.02
