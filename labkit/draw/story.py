"""A Timeline read for drawing: what each event is in the grammar of the picture, and in words."""

from collections.abc import Sequence
from dataclasses import replace

from ..record import Event, Span, Timeline
from .lanes import DEAD, DOT, DOUBTFUL, FAILED, FAULT, FROZEN, POINTER, READ, REFUSED, SOLID, Bar, Lane, Mark
from .layout import MANY
from .style import UNKNOWN, fill, middle, shorten, time_text
from .twin import Line, details, said

WORKER, SERVER, RESOURCE, NODE = range(4)  # kinds of lanes, in the order in which they are drawn
MOST_LANES = 40
MOST_LINES = 200  # spans of one lane, in the text
LEFT_S = 1e-3  # a run begins with the faults that earlier ones left on nodes; a new fault comes later than this


class Story:
    """The lanes of a Timeline with their bars and marks, the same as lines of text, and from when to when they go.

    lanes: list[Lane]. lines: list[Line]. moments: every time (s) at which something begins, ends or happens.
    bounds: (first, last) second of the axis. left_out: what was not drawn, in words.
    """

    def __init__(self, timeline: Timeline, only: Sequence[str] | None = None):
        self._timeline = timeline
        self._kinds = {lane: self._kind(lane) for lane in timeline.lanes if only is None or lane in only}
        self._spans = [self._seen(s) for s in timeline.spans() if s.lane in self._kinds]
        chosen = sorted(self._kinds, key=self._kinds.get)  # stable: each kind keeps its order
        chosen, notes = self._with_news(chosen) if only is None else (chosen, [])
        if len(chosen) > MOST_LANES:
            notes.append(f"{len(chosen) - MOST_LANES} more lanes are not drawn; choose with lanes=[…].")
        self.left_out = " ".join(notes)
        chosen = chosen[:MOST_LANES]
        self.colours = colours(timeline)
        self._holders = self._holders_of_tokens()
        self.lines: list[Line] = []
        self.lanes = [self._lane(lane) for lane in chosen]
        spans = [s for s in self._spans if s.lane in chosen]
        marks = [e.t for e in timeline.events if e.kind == "mark" and e.lane in chosen]
        self.moments = sorted([t for s in spans for t in (s.start, s.end)] + marks)
        self.bounds = bounds(self.moments)

    def summary(self) -> str:
        if not self.lanes:
            return "No events yet: nothing was recorded"
        return f"Timeline of {', '.join(lane.key for lane in self.lanes)}; {time_text(self._timeline.seconds)}"

    def _kind(self, lane: str) -> int:
        events = [e for e in self._timeline.events if e.lane == lane and e.kind != "end"]
        if lane in self._timeline.workers:
            return WORKER
        if any("says" in e.data for e in events):
            return SERVER
        if any("by" in e.data for e in events):
            return RESOURCE
        return NODE if all(e.data.get("fault") for e in events) else WORKER

    def _seen(self, span: Span) -> Span:
        """What a server says does not end with the process that asked it."""
        return replace(span, how="open") if span.how == "died" and self._kinds[span.lane] == SERVER else span

    def _with_news(self, lanes: list[str]) -> tuple[list[str], list[str]]:
        """(the lanes to draw, notes): a node whose one fault an earlier run left, all the time, is words enough."""
        told: dict[str, list[str]] = {}
        for lane in lanes:
            spans = [s for s in self._spans if s.lane == lane]
            if self._kinds[lane] == NODE and len(spans) == 1 and spans[0].how == "open" and spans[0].start < LEFT_S:
                told.setdefault(spans[0].name, []).append(lane)
        news = [lane for lane in lanes if not any(lane in names for names in told.values())]
        notes = [f"All the time {what}: {', '.join(names)}." for what, names in told.items()]
        return (news, notes) if news else (lanes, [])

    def _holders_of_tokens(self) -> dict[str, str]:
        """token -> the worker whose span or mark carried it, so that a server's owner has a name and a colour."""
        holders = {worker: worker for worker in self.colours}
        for e in self._timeline.events:
            worker = str(e.data.get("by", e.lane))
            if e.data.get("token") is not None and worker in self.colours:
                holders.setdefault(str(e.data["token"]), worker)
        return holders

    # -- one lane
    def _lane(self, lane: str) -> Lane:
        kind = self._kinds[lane]
        spans = [s for s in self._spans if s.lane == lane]
        marks = self._timeline.marks(lane=lane)
        faults = [s for s in spans if s.data.get("fault")]
        whole = [s for s in spans if s not in faults]
        freezes = [s for s in faults if s.name == "frozen" and kind == WORKER]
        beside = [s for s in faults if s not in freezes and kind == WORKER]
        stretches = tuple((s.start, s.end) for s in freezes)
        self._tell(lane, spans, marks)
        name, role = self._names(lane, bool(whole))
        return Lane(
            lane,
            name,
            role + (f", {len(whole)} spans" if len(whole) > MANY else ""),
            bars=[self._bar(s, stretches) for s in whole] + [fault(s) for s in faults if kind != WORKER],
            freezes=[fault(s) for s in freezes],
            strips=[fault(s) for s in beside],
            marks=[self._mark(e, kind, bool(whole)) for e in marks],
            dense=f"{len(marks)} marks: {said([sort_of(e) for e in marks])}" if len(marks) > MANY else "",
        )

    def _names(self, lane: str, believes: bool) -> tuple[str, str]:
        for server in {str(e.data["says"]) for e in self._timeline.events if e.lane == lane and "says" in e.data}:
            return middle(lane.removesuffix(f" ({server} says)")), f"{middle(server, 20)} says"
        worker = "believes" if believes else "worker"
        return middle(lane), {WORKER: worker, SERVER: "", RESOURCE: "resource", NODE: "server"}[self._kinds[lane]]

    def _bar(self, span: Span, freezes) -> Bar:
        tip = f"{words(span)}: {when(span)}"
        if "owner" in span.data:
            owner = str(span.data["owner"])
            worker = self._holders.get(owner)
            text, colour = (worker, self.colours[worker]) if worker else (shorten(owner, 10), UNKNOWN)
            return Bar(span.start, span.end, shorten(text), colour, SOLID, span.how, tip)
        text, look = shorten(span.name), SOLID
        if isinstance(span.data.get("token"), int):
            text += f" (token {span.data['token']})"
        if span.how == "ended" and span.outcome != "ok":
            look = FAILED if span.outcome == "fail" else DOUBTFUL
            text += " failed" if look == FAILED else ": unknown"
        return Bar(span.start, span.end, text, self.colours.get(span.lane, UNKNOWN), look, span.how, tip, freezes)

    def _mark(self, e: Event, kind: int, with_bars: bool) -> Mark:
        tip = f"{told(e)}: at {time_text(e.t)}"
        if e.data.get("fault") or e.data.get("raised"):
            return Mark(e.t, shorten(e.name), FAULT, tip=tip)
        if "by" in e.data:
            shape = {"refused": REFUSED, "read": READ, "written": DOT}[sort_of(e)]
            return Mark(e.t, shorten(_touch(e), 40), shape, self.colours.get(str(e.data["by"]), UNKNOWN), tip)
        if kind == WORKER and not with_bars:
            return Mark(e.t, shorten(e.name), DOT, self.colours.get(e.lane, UNKNOWN), tip)
        owner = self._holders.get(str(e.data.get("value", e.name))) if kind == SERVER else None
        return Mark(e.t, shorten(owner or e.name), POINTER, self.colours[owner] if owner else None, tip)

    def _tell(self, lane: str, spans: Sequence[Span], marks: Sequence[Event]) -> None:
        lines = [Line(s.start, s.end, f"{lane}: {words(s)}{self._holder(s)}{ending(s)}") for s in spans[:MOST_LINES]]
        if len(spans) > MOST_LINES:
            rest = spans[MOST_LINES:]
            lines.append(Line(rest[0].start, max(s.end for s in rest), f"{lane}: {len(rest)} more spans"))
        if len(marks) > MANY:
            counts = said([sort_of(e) for e in marks], 12)
            lines.append(Line(marks[0].t, marks[-1].t, f"{lane}: {len(marks)} marks: {counts}"))
        else:
            lines += [Line(e.t, None, f"{lane}: {told(e)}") for e in marks]
        self.lines += lines

    def _holder(self, span: Span) -> str:
        owner = str(span.data.get("owner"))
        return f" ({self._holders[owner]})" if self._holders.get(owner, owner) != owner else ""


def colours(timeline: Timeline) -> dict[str, str]:
    """A fill for each worker, by order of creation; for a record without workers, for each lane."""
    return {name: fill(i) for i, name in enumerate(timeline.workers or timeline.lanes)}


def fault(span: Span) -> Bar:
    look = DEAD if span.name == "dead" else FROZEN
    return Bar(span.start, span.end, shorten(span.name), look=look, how=span.how, tip=f"{span.name}: {when(span)}")


def bounds(moments: Sequence[float]) -> tuple[float, float]:
    """From when to when an axis goes (s): from 0, unless nothing happened for the first third. moments rise."""
    if not moments or moments[-1] <= 0:
        return 0.0, 1e-3
    first, last = moments[0], moments[-1]
    return (first - (last - first) * 0.04 if first > last * 0.35 else 0.0), last


# -- in words


def sort_of(e: Event) -> str:
    """What kind of mark it is, to be counted."""
    if "by" not in e.data:
        return e.name
    return "refused" if not e.data.get("ok", True) else "read" if e.data.get("op") == "read" else "written"


def _touch(e: Event) -> str:
    """What a worker did to a resource: A: 80 (token 33); A reads 100; A: 80 (token 33) refused."""
    verb = " reads" if e.data.get("op") == "read" else ":"
    token = f" (token {shorten(e.data['token'], 12)})" if "token" in e.data else ""
    refused = " refused" if sort_of(e) == "refused" else ""
    return f"{e.data['by']}{verb} {shorten(e.data.get('value', e.name), 16)}{token}{refused}"


def told(e: Event) -> str:
    if "by" in e.data:
        return _touch(e)
    more = details(e.data)
    return f"{'FAULT ' if e.data.get('fault') else ''}{e.name}{f' ({more})' if more else ''}"


def words(span: Span) -> str:
    more = details(span.data)
    owner = f" {shorten(span.data['owner'], 40)}" if "owner" in span.data else ""
    return f"{'FAULT ' if span.data.get('fault') else ''}{span.name}{owner}{f' ({more})' if more else ''}"


def ending(span: Span) -> str:
    if span.how == "died":
        return ", ended by the death of its process"
    if span.how == "open":
        return ", still going on at the end of the record"
    error = f" ({span.data['error']})" if "error" in span.data else ""
    if span.outcome == "ok":
        return ""
    return f", failed{error}" if span.outcome == "fail" else f", outcome unknown{error}"


def when(span: Span) -> str:
    return f"{time_text(span.start)} to {time_text(span.end)}, {time_text(span.seconds)}"
