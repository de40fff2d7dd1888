"""Arrivals above, what they add up to below: a limiter's window against its limit, and a queue's backlog."""

from collections.abc import Sequence

from .. import measure
from ..record import Event, Timeline
from . import page
from .curve import Curve, Series
from .lanes import REFUSED, TICK, Lane, Mark
from .layout import MANY
from .picture import Picture
from .story import bounds, colours
from .style import INK, middle, time_text
from .timeline import draw_lanes
from .twin import Line, twin

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
    title: str | None = None,
    width_in: float = 9.0,
) -> Picture:
    """A limiter's answers, a row for each lane, and below how many were admitted within the last `window_s` seconds.

    limit -- how many may be admitted in any window of that length; what exceeds it is filled.
    admitted, refused -- the names of the marks that workers make at the limiter's answer. lanes -- None: all with such.
    verdict -- printed below the title. Counting is `measure.window`'s.
    """
    marks = _marks(timeline, (admitted, refused), lanes)
    passed = [e.t for e in marks if e.name == admitted]
    steps = measure.window(passed, window_s)
    at, most = max(steps, key=lambda step: step[1], default=(0.0, 0))
    within = time_text(window_s)
    found = f"At most {most} admitted within {within} (at {time_text(at)}), limit {limit}; {len(marks) - len(passed)} refused"
    judged = found if verdict is None else repr(verdict)
    end = _end(timeline, marks)
    window = Curve(f"admitted within the last {within}", [Series(steps)], end, limit, f"limit {limit} in {within}")
    return _picture(
        timeline,
        title,
        judged,
        [found] if verdict is not None else [],
        marks,
        refused,
        [window],
        end,
        width_in,
        most > limit,
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
    end = _end(timeline, marks)
    found = f"{len(into)} {came}, {len(out)} {went}: {len(into) - len(out)} wait at the end, at most {most} (at {time_text(at)})"
    speeds = [Series(measure.rates(times, bin_s, end), colour) for times, colour in ((into, COME), (out, GO))]
    curves = [Curve("a second", speeds, end), Curve("waiting", [Series(waiting)], end)]
    chips = [(came, COME), (went, GO)]
    return _picture(timeline, title, found, [], marks, "", curves, end, width_in, False, chips, rows=False)


def _marks(timeline: Timeline, names: Sequence[str], lanes: Sequence[str] | None) -> list[Event]:
    return [e for e in timeline.marks() if e.name in names and (lanes is None or e.lane in lanes)]


def _end(timeline: Timeline, marks: Sequence[Event]) -> float:
    return timeline.seconds if marks else 0.0


def _picture(
    timeline, title, judged, more, marks, refused, curves, end, width_in, alarm, chips=(), rows=True
) -> Picture:
    title = title or timeline.title or "Arrivals"
    fills = colours(timeline)
    lanes = [lane for lane in timeline.lanes if any(e.lane == lane for e in marks)]
    lines, drawn = [], []
    for lane in lanes:
        mine = [e for e in marks if e.lane == lane]
        dots = [Mark(e.t, "", REFUSED if e.name == refused else TICK, fills.get(lane, INK)) for e in mine]
        counts = ", ".join(
            f"{sum(e.name == name for e in mine)} {name}" for name in dict.fromkeys(e.name for e in mine)
        )
        drawn.append(Lane(lane, middle(lane), counts, marks=dots, dense=" " if len(mine) > MANY else ""))
        if len(mine) > MANY:
            lines.append(Line(mine[0].t, mine[-1].t, f"{lane}: {counts}"))
        else:
            lines += [Line(e.t, None, f"{lane}: {e.name}") for e in mine]
    head = page.Head(title, judged, width_in * 72, alarm, chips)
    times = [e.t for e in marks]
    limits = (bounds(times)[0], end) if marks else (0.0, 1e-3)
    sheet = draw_lanes(drawn if rows else [], head, limits, under=curves if marks else ())
    return Picture(sheet, title, ". ".join([title, judged, *more]), twin([title, judged, *more], lines))
