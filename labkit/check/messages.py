"""Was each message worked on once, and in order?

A producer marks `w.mark("sent", message=id)`; a consumer works inside `with w.span("works", message=id):`, or marks the
moment of the effect with `w.mark(..., message=id)` and names that mark. An id belongs to one message only.
"""

from collections import defaultdict

from ..record import Event, Span, Timeline
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict, count, few


def _sent(timeline: Timeline, name: str) -> dict[str, Event]:
    sent: dict[str, Event] = {}
    for e in timeline.marks(name):
        if "message" in e.data:
            sent.setdefault(str(e.data["message"]), e)
    return sent


def _attempts(timeline: Timeline, name: str) -> list[Span]:
    """The spans of this name, and its marks as spans of no length, by start."""
    marks = [Span(e.lane, e.name, e.t, e.t, e.data) for e in timeline.marks(name)]
    found = [s for s in timeline.spans(name) + marks if "message" in s.data]
    return sorted(found, key=lambda s: (s.start, s.end))


def _by_message(attempts: list[Span]) -> dict[str, list[Span]]:
    groups: dict[str, list[Span]] = defaultdict(list)
    for s in attempts:
        groups[str(s.data["message"])].append(s)
    return groups


def at_most_once(timeline: Timeline, works: str = "works") -> Verdict:
    """No message is taken up twice, whatever became of the first time: a worker that died may have done its work.

    Evidence: each time a message is taken up again.
    """
    rule = "at most once"
    groups = _by_message(_attempts(timeline, works))
    if not groups:
        return Verdict(rule, UNJUDGED, f"this record has no {works!r} with a 'message'")
    again = {message: group for message, group in groups.items() if len(group) > 1}
    if not again:
        return Verdict(rule, HOLDS, f"{count(len(groups), 'message')}, none taken up twice")
    message, group = next(iter(again.items()))
    turns = ", then ".join(f"{s.lane} {_end(s)}".strip() for s in group)
    text = f"{message!r} was taken up {len(group)} times ({turns})"
    if len(again) > 1:
        text += f", and so were {len(again) - 1} more of {len(groups)}"
    found = [
        Evidence(s.start, s.end, (s.lane,), f"{message} again, time {n}")
        for message, group in again.items()
        for n, s in enumerate(group[1:], 2)
    ]
    return Verdict(rule, VIOLATED, text, tuple(sorted(found, key=lambda e: e.start)))


def _end(s: Span) -> str:
    """How an attempt came out, in a word: nothing for ok."""
    return s.how if s.how != "ended" else "" if s.outcome == "ok" else s.outcome


def _fate(attempts: list[Span]) -> str:
    """done, unknown or lost; a process that died did not come to the end of its work."""
    if any(s.outcome == "ok" for s in attempts):
        return "done"
    return "unknown" if any(s.outcome == "unknown" and s.how != "died" for s in attempts) else "lost"


def at_least_once(timeline: Timeline, sent: str = "sent", works: str = "works") -> Verdict:
    """Every message that was sent is worked on to the end (outcome ok) at least once before the record ends.

    A worker that failed or died did not come to the end. If the only hope for a message is work that was still going
    on, or work whose outcome is unknown (a time-out), it cannot be judged.
    Evidence: where each lost message was sent, and every vain attempt at it.
    """
    rule = "at least once"
    sends, groups = _sent(timeline, sent), _by_message(_attempts(timeline, works))
    if not sends or not groups:
        missing = f"no mark {sent!r}" if not sends else f"no {works!r}"
        return Verdict(rule, UNJUDGED, f"this record has {missing} with a 'message'")
    fates = {message: _fate(groups.get(message, [])) for message in sends}
    lost, unknown = ([m for m, fate in fates.items() if fate == wanted] for wanted in ("lost", "unknown"))
    evidence = []
    for message in lost or unknown:
        e = sends[message]
        evidence.append(Evidence(e.t, e.t, (e.lane,), f"{message} {'never done' if lost else 'perhaps done'}"))
        vain = groups.get(message, [])
        evidence += [Evidence(s.start, s.end, (s.lane,), f"{message}: {_end(s)}") for s in vain]
    if lost:
        text = f"{len(lost)} of {count(len(sends), 'message')} never done: {few(lost)}"
        return Verdict(rule, VIOLATED, text, tuple(evidence))
    if unknown:
        text = f"{len(unknown)} of {count(len(sends), 'message')} may be done or not: {few(unknown)}"
        return Verdict(rule, UNJUDGED, text, tuple(evidence))
    return Verdict(rule, HOLDS, f"{count(len(sends), 'message')} sent, each done")


def order_kept(timeline: Timeline, sent: str = "sent", works: str = "works", by: str | None = None) -> Verdict:
    """Each consumer takes up the messages of one producer in the order they were sent; a repeat of an older one counts.

    by -- a datum of the messages ("partition", "key"): the order is kept for each of its values instead, whoever works.
    Two producers' messages are not compared: which of two servers' answers was written down first says nothing.
    Evidence: each message that is taken up after a later one.
    """
    rule = "order kept"
    sends = _sent(timeline, sent)
    place = {message: number for number, message in enumerate(sends)}
    newest: dict[tuple, Span] = {}
    compared, late = 0, []
    for s in _attempts(timeline, works):
        message = str(s.data["message"])
        if message not in sends:
            continue
        origin = sends[message]
        group = s.lane if by is None else {**origin.data, **s.data}.get(by)
        if group is None:
            continue
        before = newest.setdefault((str(group), origin.lane), s)
        compared += before is not s
        if place[message] < place[str(before.data["message"])]:
            late.append((s, before))
        else:
            newest[str(group), origin.lane] = s
    if not compared:
        who = "consumer" if by is None else repr(by)
        return Verdict(rule, UNJUDGED, f"no {who} has two {works!r} with messages that one producer marked {sent!r}")
    if not late:
        return Verdict(rule, HOLDS, f"{count(compared, 'message')} taken up after another, each in the order sent")
    s, before = late[0]
    text = f"{s.lane} took up {str(s.data['message'])!r} after {str(before.data['message'])!r}, which was sent later"
    if len(late) > 1:
        text += f", the first of {len(late)} such"
    found = (Evidence(s.start, s.end, (s.lane,), f"{s.data['message']} after {b.data['message']}") for s, b in late)
    return Verdict(rule, VIOLATED, text, tuple(found))
