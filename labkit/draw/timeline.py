"""The timeline: what each worker believes, what each server says, what was written, and the faults, on one axis."""

from collections.abc import Sequence
from itertools import count

from ..record import Event, Span, Timeline
from . import page, paint
from .lanes import (
    DEAD, DOUBTFUL, FAILED, FAULT, FROZEN, LANE_GAP, MANY, POINT, READ, REFUSED, SOLID, WRITE,
    Bar, Lane, Laid, Mark, label_column, lay, said,
)  # fmt: skip
from .picture import Picture
from .sheet import Sheet
from .style import UNKNOWN, fill, middle, shorten, time_text, width
from .twin import Line, details, twin

WORKER, SERVER, RESOURCE, NODE = range(4)  # kinds of lanes, in the order in which they are drawn
MOST_LANES = 40
MOST_LINES = 400  # of a lane, in the text


def timeline(
    timeline: Timeline, verdict=None, *, axis: str = "time", title: str | None = None,
    lanes: Sequence[str] | None = None, width_in: float = 9.0,
) -> Picture:  # fmt: skip
    """A run as a picture: workers by order of creation, then what servers say, what was written, and faults of nodes.

    verdict -- a Verdict of `labkit.check`: printed below the title, its evidence banded over the lanes it names.
    axis -- "time", or "order": one equal step an event, for races shorter than a dot.
    title -- None: the run's own. lanes -- only these, e.g. ["A", "lock (redis-1 says)"]; None: all (40 at most).
    width_in -- inches; the height follows from the lanes.

    A filled mark was accepted, a hollow cross refused, a triangle read. Hatched: frozen, cross-hatched: dead. A torn end:
    its process died; a pointed one: still going on. Hollow: failed; pale with a broken edge: outcome unknown.
    """
    if axis not in ("time", "order"):
        raise ValueError(f"axis must be 'time' or 'order', not {axis!r}")
    story = Story(timeline, lanes)
    title = title or timeline.title or "Timeline"
    said_of = repr(verdict) if verdict is not None else ""
    alt = ". ".join(part for part in (title, said_of, story.summary()) if part)
    evidence = verdict.evidence if verdict is not None else ()
    lines = story.lines + [Line(e.start, e.end, f"EVIDENCE {', '.join(e.lanes)}: {e.label}") for e in evidence]
    text = twin([title, said_of, story.left_out], lines) if lines else twin([title, said_of, story.summary()], [])
    sheet = draw(
        story.lanes, title, said_of, story.bounds, width_in,
        moments=story.moments if axis == "order" else None, note=story.left_out,
        bands=[paint.Band(e.start, e.end, tuple(e.lanes), e.label) for e in evidence],
        alarm=verdict is not None and verdict.status == "violated",
    )  # fmt: skip
    return Picture(sheet, title, alt, text)


def draw(
    lanes: Sequence[Lane], title: str, subtitle: str, bounds: tuple[float, float], width_in: float, *,
    bands: Sequence[paint.Band] = (), moments: Sequence[float] | None = None, alarm: bool = False, note: str = "",
    chips: Sequence[tuple[str, str]] = (), caption: str = "",
) -> Sheet:  # fmt: skip
    """Lay the lanes out for the width, then draw them on a sheet of the height that they need."""
    across = width_in * 72
    head = page.Head(title, subtitle, alarm, across, chips)
    left = page.MARGIN + label_column(lanes)
    scale, laid = _fit(lanes, bounds, moments, left, across - page.MARGIN - 6)
    first_lane = head.height + (20 if bands else 8)
    bottom = first_lane + sum(lane.height for lane in laid) - LANE_GAP / 2 if laid else first_lane + 18
    sheet = Sheet(across, bottom + (page.AXIS + (14 if note else 0) if laid else 8))
    head.draw(sheet)
    if not laid:
        sheet.text(page.MARGIN, first_lane + 10, note or "No events yet: nothing was recorded.", opacity=page.MUTED)
        return sheet
    page.axis_below(sheet, scale, head.height, bottom, caption)
    paint.evidence(sheet, bands, laid, scale, head.height, first_lane)
    paint.lanes(sheet, laid, scale, first_lane, left - 10)
    if note:
        sheet.text(page.MARGIN, bottom + page.AXIS + 6, note, opacity=page.MUTED)
    return sheet


def _fit(lanes, bounds, moments, left: float, right: float) -> tuple[page.Linear | page.Order, list[Laid]]:
    """A scale that leaves as much room at the right as the last labels need, and the lanes laid out on it."""
    end = right
    for attempt in range(4):
        scale = page.time_scale(*bounds, left, end) if moments is None else page.Order(moments, left, end)
        last = attempt == 3 or end < left + (right - left) * 0.75
        laid = [lay(lane, scale, left - 6, right, strict=last) for lane in lanes]
        beyond = max((lane.beyond for lane in laid), default=0.0)
        if last or beyond < 0.5:
            break
        end = max(end - beyond, left + (right - left) * 0.74)
    return scale, laid


class Story:
    """A Timeline read for drawing: its lanes with their bars and marks, the same as lines of text, and its bounds."""

    def __init__(self, timeline: Timeline, only: Sequence[str] | None):
        self._timeline, self._spans = timeline, timeline.spans()
        chosen = [lane for lane in timeline.lanes if only is None or lane in only]
        kinds = {lane: self._kind(lane) for lane in chosen}
        chosen.sort(key=lambda lane: kinds[lane])  # stable: each kind keeps its order
        self.left_out = ""
        if len(chosen) > MOST_LANES:
            self.left_out = f"{len(chosen) - MOST_LANES} more lanes are not drawn; choose with lanes=[…]."
            chosen = chosen[:MOST_LANES]
        numbers = count()
        workers = [*timeline.workers, *(lane for lane, kind in kinds.items() if kind == WORKER)]
        self.colours = {worker: fill(next(numbers)) for worker in dict.fromkeys(workers)}
        self._holders = self._holders_of_tokens()
        self.lines: list[Line] = []
        self.lanes = [self._lane(lane, kinds[lane]) for lane in chosen]
        shown = set(chosen)
        spans = [s for s in self._spans if s.lane in shown]
        marks = [e for e in timeline.events if e.kind == "mark" and e.lane in shown]
        self.moments = sorted([t for s in spans for t in (s.start, s.end)] + [e.t for e in marks])
        self.bounds = _bounds(self.moments)

    def summary(self) -> str:
        if not self.lanes:
            return "No events yet: nothing was recorded"
        return f"Timeline of {', '.join(lane.key for lane in self.lanes)}; {time_text(self._timeline.seconds)}"

    def _kind(self, lane: str) -> int:
        events = [e for e in self._timeline.events if e.lane == lane]
        if lane in self._timeline.workers:
            return WORKER
        if any("says" in e.data for e in events):
            return SERVER
        if any("by" in e.data and e.kind == "mark" for e in events):
            return RESOURCE
        return NODE if all(e.data.get("fault") or e.kind == "end" for e in events) else WORKER

    def _holders_of_tokens(self) -> dict[str, str]:
        """token -> the worker whose span or mark carried it, so that a server's owner has a name and a colour."""
        holders = {worker: worker for worker in self.colours}
        for e in self._timeline.events:
            worker = e.data.get("by", e.lane)
            if e.data.get("token") is not None and worker in self.colours:
                holders.setdefault(str(e.data["token"]), worker)
        return holders

    # -- one lane
    def _lane(self, lane: str, kind: int) -> Lane:
        spans = [s for s in self._spans if s.lane == lane]
        marks = [e for e in self._timeline.events if e.kind == "mark" and e.lane == lane]
        faults = [s for s in spans if s.data.get("fault")]
        whole = [s for s in spans if not s.data.get("fault")]
        self._tell(lane, spans, marks)
        freezes = [s for s in faults if s.name == "frozen"] if kind == WORKER else []
        stretches = tuple((s.start, s.end) for s in freezes)
        bars = [self._bar(s, kind, stretches) for s in whole]
        if kind != WORKER:
            bars += [self._fault(s) for s in faults]
        drawn = [self._mark(e, kind) for e in marks]
        name, role = self._names(lane, kind if kind != WORKER or whole else None)
        many = len(marks) > MANY
        return Lane(
            lane, name, f"{role}" if len(whole) <= MANY else f"{role}, {len(whole)} spans", bars,
            [self._fault(s) for s in freezes], [self._fault(s) for s in faults if s not in freezes] if kind == WORKER else [],
            drawn, f"{len(marks)} marks: {said([_sort(e) for e in marks])}" if many else "",
        )  # fmt: skip

    def _names(self, lane: str, kind: int | None) -> tuple[str, str]:
        says = {e.data["says"] for e in self._timeline.events if e.lane == lane and "says" in e.data}
        for server in says:
            return middle(lane.removesuffix(f" ({server} says)")), f"{middle(server, 20)} says"
        return middle(lane), {WORKER: "believes", RESOURCE: "resource", NODE: "server", None: "worker"}[kind]

    def _bar(self, span: Span, kind: int, freezes) -> Bar:
        tip = f"{_words(span)}: {_when(span)}"
        if "owner" in span.data:
            owner = str(span.data["owner"])
            worker = self._holders.get(owner)
            text, colour = (worker, self.colours[worker]) if worker else (shorten(owner, 10), UNKNOWN)
            return Bar(span.start, span.end, shorten(text), colour, SOLID, span.how, tip)
        text, look = shorten(span.name), SOLID
        token = span.data.get("token")
        if isinstance(token, int):
            text += f" (token {token})"
        if span.how == "ended" and span.outcome != "ok":
            look = FAILED if span.outcome == "fail" else DOUBTFUL
            text += " failed" if look == FAILED else ": unknown"
        return Bar(span.start, span.end, text, self.colours.get(span.lane, UNKNOWN), look, span.how, tip, freezes)

    def _fault(self, span: Span) -> Bar:
        look = DEAD if span.name == "dead" else FROZEN
        return Bar(span.start, span.end, shorten(span.name), look=look, how=span.how, tip=f"{span.name}: {_when(span)}")

    def _mark(self, e: Event, kind: int) -> Mark:
        tip = f"{_told(e)}: at {time_text(e.t)}"
        if e.data.get("fault") or e.data.get("raised"):
            return Mark(e.t, shorten(e.name), FAULT, tip=tip)
        if "by" in e.data:
            ok, read = e.data.get("ok", True), e.data.get("op") == "read"
            shape = REFUSED if not ok else READ if read else WRITE
            return Mark(e.t, shorten(_touch(e), 40), shape, self.colours.get(e.data["by"], UNKNOWN), tip)
        owner = self._holders.get(str(e.data.get("value", e.name))) if kind == SERVER else None
        return Mark(e.t, shorten(owner or e.name), POINT, self.colours[owner] if owner else None, tip)

    def _tell(self, lane: str, spans: Sequence[Span], marks: Sequence[Event]) -> None:
        lines = [Line(s.start, s.end, f"{lane}: {_words(s)}{self._named(s)}{_ending(s)}") for s in spans]
        if len(marks) > MANY:
            lines.append(Line(marks[0].t, marks[-1].t, f"{lane}: {len(marks)} marks: {said([_sort(e) for e in marks], 12)}"))
        else:
            lines += [Line(e.t, None, f"{lane}: {_told(e)}") for e in marks]
        if len(lines) > MOST_LINES:
            rest = lines[MOST_LINES:]
            lines = lines[:MOST_LINES] + [Line(rest[0].start, None, f"{lane}: and {len(rest)} spans more")]
        self.lines += lines

    def _named(self, span: Span) -> str:
        worker = self._holders.get(str(span.data.get("owner")))
        return f" ({worker})" if worker and worker != span.data.get("owner") else ""


def _bounds(moments: Sequence[float]) -> tuple[float, float]:
    """From where to where the time axis goes: from 0, unless nothing happened for the first third."""
    first, last = (moments[0], moments[-1]) if moments else (0.0, 0.0)
    return (first - (last - first) * 0.04 if last > 0 and first / last > 0.35 else 0.0), last or 1e-3


def _touch(e: Event) -> str:
    """ "A: 80 (token 33)", "A reads 100", "A: 80 (token 33) refused" """
    token = f" (token {e.data['token']})" if "token" in e.data else ""
    verb = " reads" if e.data.get("op") == "read" else ":"
    return f"{e.data['by']}{verb} {shorten(e.data.get('value', e.name), 16)}{token}{'' if e.data.get('ok', True) else ' refused'}"


def _sort(e: Event) -> str:
    """What kind of mark it is, to be counted."""
    if "by" not in e.data:
        return e.name
    return "refused" if not e.data.get("ok", True) else "read" if e.data.get("op") == "read" else "written"


def _told(e: Event) -> str:
    if "by" in e.data:
        return _touch(e)
    more = details(e.data)
    return f"{'FAULT ' if e.data.get('fault') else ''}{e.name}{f' ({more})' if more else ''}"


def _words(span: Span) -> str:
    more = details(span.data)
    owner = f" {shorten(span.data['owner'], 40)}" if "owner" in span.data else ""
    return f"{'FAULT ' if span.data.get('fault') else ''}{span.name}{owner}{f' ({more})' if more else ''}"


def _ending(span: Span) -> str:
    if span.how == "ended":
        return "" if span.outcome == "ok" else f", {span.data.get('error', 'it')} {'failed' if span.outcome == 'fail' else 'outcome unknown'}"
    return {"died": ", ended by its process's death", "open": ", still going on at the end of the record"}[span.how]


def _when(span: Span) -> str:
    return f"{time_text(span.start)} to {time_text(span.end)}, {time_text(span.seconds)}"
