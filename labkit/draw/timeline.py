"""The timeline: what each worker believes, what each server says, what was written, and the faults, on one axis."""

from collections.abc import Sequence
from itertools import accumulate

from ..errors import LabError
from ..record import Timeline
from . import page, paint
from .curve import Curve
from .lanes import Lane
from .layout import LANE_GAP, Laid, lay
from .picture import Picture
from .sheet import Sheet
from .story import Story
from .style import TEXT, wrap
from .twin import Line, sentences, twin

MOST_EVIDENCE = 50  # lines of the text


def timeline(
    timeline: Timeline,
    verdict=None,
    *,
    axis: str = "time",
    title: str | None = None,
    lanes: Sequence[str] | None = None,
    width_in: float = 9.0,
) -> Picture:
    """A run as a picture: workers by order of creation, then what servers say, what was written, and faults of nodes.

    verdict -- a Verdict of `labkit.check`: printed below the title, its evidence banded over the lanes it names.
    axis -- "time", or "order": one equal step an event, for races shorter than a dot.
    title -- None: the run's own. lanes -- only these, e.g. ["A", "lock (redis-1 says)"]; None: all (40 at most).
    width_in -- inches; the height follows from the lanes.

    A filled mark was accepted, a hollow cross refused, a triangle is a read. Hatched: frozen; cross-hatched: dead. A
    bar with a torn end: its process died; with a pointed one: still going on. Hollow: failed; pale with a broken edge:
    outcome unknown. Raises LabError for an axis or a lane that is not there.
    """
    if axis not in ("time", "order"):
        raise LabError(
            f"A timeline has no axis {axis!r}.",
            "Time goes to scale, or each event gets one step.",
            'Write axis="time" or axis="order".',
        )
    for lane in lanes or ():
        if lane not in timeline.lanes:
            raise LabError(
                f"This record has no lane {lane!r}.",
                "The name may be misspelt, or nothing happened on it.",
                f"Choose from: {', '.join(map(repr, timeline.lanes)) or 'none, the record is empty'}",
            )
    story = Story(timeline, lanes)
    head = page.head(title or timeline.title or "Timeline", verdict, width_in)
    moments = story.moments if axis == "order" else None
    return picture(story, head, bands(verdict), moments)


def picture(story, head: page.Head, evidence: Sequence[paint.Band], moments: Sequence[float] | None = None) -> Picture:
    """What was read from a record (a Story, or Lives), drawn and told. moments: for the order axis."""
    sheet = draw_lanes(story.lanes, head, story.bounds, evidence=evidence, moments=moments, note=story.left_out)
    lines = [Line(e.start, e.end, f"EVIDENCE {', '.join(e.lanes)}: {e.text}") for e in evidence[:MOST_EVIDENCE]]
    more = f"{len(evidence) - MOST_EVIDENCE} more pieces of evidence" if len(evidence) > MOST_EVIDENCE else ""
    told = [head.words, head.judged, story.left_out, more, "" if story.lines else story.summary()]
    alt = sentences(head.words, head.judged, story.summary())
    return Picture(sheet, head.words, alt, twin(told, story.lines + lines))


def bands(verdict) -> list[paint.Band]:
    return [] if verdict is None else [paint.Band(e.start, e.end, tuple(e.lanes), e.label) for e in verdict.evidence]


def draw_lanes(
    lanes: Sequence[Lane],
    head: page.Head,
    bounds: tuple[float, float],
    *,
    evidence: Sequence[paint.Band] = (),
    moments: Sequence[float] | None = None,
    under: Sequence[Curve] = (),
    note: str = "",
) -> Sheet:
    """Lay the lanes out for the head's width, then draw all on a sheet of the height that they need.

    bounds -- from when to when (s). moments -- for the order axis: every time at which something happens (s).
    under -- what is drawn below the lanes, on the same axis.
    """
    left = page.MARGIN + page.column([(lane.name, lane.role) for lane in lanes], least=64)
    scale, laid = _fit(lanes, bounds, moments, left, head.across - page.MARGIN - 6)
    top = head.height + (20 if evidence else 8)
    lanes_end = top + sum(lane.height for lane in laid)
    ends = list(accumulate((curve.height for curve in under), initial=lanes_end))
    bottom = ends[-1] - (0 if under else LANE_GAP / 2)
    if not laid and not under:
        return _empty(head)
    notes = wrap(note, head.across - 2 * page.MARGIN, TEXT) if note else []
    sheet = Sheet(head.across, bottom + page.AXIS + 14 * len(notes))
    head.draw(sheet)
    page.axis_below(sheet, scale, head.height, bottom)
    for curve, y in zip(under, ends, strict=False):
        curve.draw(sheet, scale, y)
    paint.evidence(sheet, evidence, laid, scale, head.height, top)
    paint.lanes(sheet, laid, scale, top, left - 10)
    for i, line in enumerate(notes):
        sheet.text(page.MARGIN, bottom + page.AXIS + 6 + 14 * i, line, opacity=page.MUTED)
    return sheet


def _empty(head: page.Head) -> Sheet:
    sheet = Sheet(head.across, head.height + 34)
    head.draw(sheet)
    sheet.text(page.MARGIN, head.height + 18, "No events yet: nothing was recorded.", opacity=page.MUTED)
    return sheet


def _fit(lanes, bounds, moments, left: float, right: float) -> tuple[page.Linear | page.Order, list[Laid]]:
    """A scale that leaves as much room at the right as the last labels need, and the lanes laid out on it."""
    end, least = right, left + (right - left) * 0.75
    for attempt in range(4):
        last = attempt == 3 or end <= least
        scale = page.time_scale(*bounds, left, end) if moments is None else page.Order(moments, left, end)
        laid = [lay(lane, scale, left - 6, right, strict=last) for lane in lanes]
        beyond = max((lane.beyond for lane in laid), default=0.0)
        if last or beyond < 0.5:
            break
        end = max(end - beyond, least)
    return scale, laid
