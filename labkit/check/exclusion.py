"""Is only one inside at a time?"""

from collections import defaultdict

from ..record import Span, Timeline
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict, count, duration, few


def mutual_exclusion(timeline: Timeline, span: str = "holds", by: str = "lock") -> Verdict:
    """At most one worker at a time is inside a span of this name, for each value of its datum `by`.

    A span that its process's death ended counts until the death, and an open one until the end of the record.
    Evidence: each overlap of two workers' spans.
    """
    rule = "mutual exclusion"
    groups: dict[str, list[Span]] = defaultdict(list)
    for s in timeline.spans(span):
        if by in s.data:
            groups[str(s.data[by])].append(s)
    if not groups:
        return Verdict(rule, UNJUDGED, f"this record has no span {span!r} with a {by!r}")
    overlaps = []
    for key, group in groups.items():
        inside: list[Span] = []
        for s in group:  # by start
            inside = [other for other in inside if other.end > s.start]
            others = [other for other in inside if other.lane != s.lane]
            overlaps += [(s.start, min(other.end, s.end), other.lane, s.lane, key) for other in others]
            inside.append(s)
    if not overlaps:
        holders = {s.lane for group in groups.values() for s in group}
        what, times = few(map(repr, groups)), count(sum(map(len, groups.values())), "time")
        return Verdict(rule, HOLDS, f"{count(len(holders), 'worker')} held {what}, {times} in all, never two at once")
    overlaps.sort()
    found = (Evidence(s, e, (a, b), f"two holders for {duration(e - s)}") for s, e, a, b, _ in overlaps)
    start, end, a, b, key = max(overlaps, key=lambda o: o[1] - o[0])
    text = f"{a} and {b} both held {key!r} for {duration(end - start)}"
    if len(overlaps) > 1:
        text += f", the longest of {len(overlaps)} such times"
    return Verdict(rule, VIOLATED, text, tuple(found))
