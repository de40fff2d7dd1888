"""The lives of messages: one row a message, coloured by the worker that had it."""

from collections.abc import Sequence

from ..record import Timeline
from . import page
from .lanes import DOT, FAULT, KILLED, SOLID, Bar, Lane, Mark
from .picture import Picture
from .story import bounds, colours, ending, told, when, words
from .style import UNKNOWN, middle, shorten, time_text
from .timeline import bands, picture
from .twin import Line

FULL, MOST = 24, 120  # rows with labels; rows at all


def lives(
    timeline: Timeline,
    verdict=None,
    *,
    span: str = "works",
    by: str = "message",
    marks: Sequence[str] | None = None,
    title: str | None = None,
    width_in: float = 9.0,
) -> Picture:
    """Each message's life as a row: who worked on it and when, what was killed, what happened to it besides.

    span -- the name of the spans in which a worker has a message; by -- their datum that says which.
    marks -- names of the marks to show (None: every mark with the datum `by`), e.g. ["sent", "reclaimed"].
    verdict -- a Verdict about messages or workers: printed, its evidence banded over the messages it names.

    Work that a process's death ended is hatched and torn; work frozen with its process is pale. More than 24 messages
    are drawn thin and without labels, at most 120.
    """
    story = _Lives(timeline, span, by, marks)
    head = page.head(title or timeline.title or "Lives", verdict, width_in, story.chips)
    return picture(story, head, bands(verdict))


class _Lives:
    """Spans and marks by message: lanes, lines of text, bounds in s, and a chip for each worker."""

    def __init__(self, timeline: Timeline, span: str, by: str, marks: Sequence[str] | None):
        self._spans = [s for s in timeline.spans(span) if by in s.data]
        self._marks = [e for e in timeline.marks() if by in e.data and (marks is None or e.name in marks)]
        self._freezes = [s for s in timeline.spans("frozen") if s.data.get("fault")]
        self._by, self._fills = by, colours(timeline)
        firsts = sorted(
            [(s.start, str(s.data[by])) for s in self._spans] + [(e.t, str(e.data[by])) for e in self._marks]
        )
        self.messages = list(dict.fromkeys(message for _, message in firsts))
        shown = self.messages[:MOST]
        more = len(self.messages) - len(shown)
        self.left_out = f"{more} more are not drawn." if more else ""
        busy = {s.lane for s in self._spans}
        self.chips = [(shorten(name, 20), fill) for name, fill in self._fills.items() if name in busy]
        self.lines: list[Line] = []
        self.lanes = [self._lane(message, thin=len(shown) > FULL) for message in shown]
        moments = [t for s in self._spans for t in (s.start, s.end)] + [e.t for e in self._marks]
        self.bounds = bounds(sorted(moments))

    def summary(self) -> str:
        if not self.messages:
            return "No events yet: nothing was recorded"
        died = sum(s.how == "died" for s in self._spans)
        lost = f", {died} of them ended by a death" if died else ""
        return f"Lives of {len(self.messages)} messages; {len(self._spans)} times a worker had one{lost}"

    def _lane(self, message: str, thin: bool) -> Lane:
        spans = [s for s in self._spans if str(s.data[self._by]) == message]
        marks = [e for e in self._marks if str(e.data[self._by]) == message]
        self.lines += [Line(s.start, s.end, f"{message}: {s.lane} {words(s)}{ending(s)}") for s in spans]
        self.lines += [Line(e.t, None, f"{message}: {e.lane} {told(e)}") for e in marks]
        return Lane(
            message, middle(message), bars=[self._bar(s) for s in spans], marks=[*map(self._mark, marks)], thin=thin
        )

    def _bar(self, s) -> Bar:
        died = s.how == "died"
        text, look = (f"{s.lane} died", KILLED) if died else (s.lane, SOLID)
        frozen = tuple((f.start, f.end) for f in self._freezes if f.lane == s.lane)
        fill = self._fills.get(s.lane, UNKNOWN)
        return Bar(s.start, s.end, shorten(text, 20), fill, look, s.how, f"{s.lane}: {when(s)}", frozen)

    def _mark(self, e) -> Mark:
        bad = e.data.get("fault") or e.data.get("raised")
        return Mark(
            e.t,
            shorten(e.name),
            FAULT if bad else DOT,
            self._fills.get(e.lane),
            f"{e.lane} {told(e)}: {time_text(e.t)}",
        )
