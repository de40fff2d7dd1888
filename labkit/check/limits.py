"""Did a limiter let too many through?"""

from itertools import groupby

from ..errors import LabError
from ..record import Event, Timeline
from .verdict import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict


def within_limit(
    timeline: Timeline, limit: float, window_s: float, admitted: str = "admitted", fixed: bool = False
) -> Verdict:
    """In no window of `window_s` seconds were more than `limit` admitted.

    Needs marks `w.mark("admitted", n=1, at=seconds)`. n -- how many it stands for, 1 if not told. at -- the moment of
    the decision by the limiter's own clock (Redis TIME), in seconds, taken to the microsecond; if one mark lacks it,
    the times of the record count, and a mark comes a little after its decision, so that a window that is full to the
    brim can look overfull.
    The window slides: it takes in its beginning and not its end, so two marks exactly window_s apart never share one.
    fixed -- only the calendar's windows count, each from a multiple of window_s on the limiter's clock; needs `at`.
    Evidence: the fullest window, from its first mark to its last. Raises LabError for a window of no length.
    """
    rule = "within the limit"
    if not window_s > 0:
        raise LabError(
            f"A window of {window_s} s has no length.",
            "A limit counts what happens in a stretch of time.",
            "Write it in seconds: check.within_limit(timeline, limit=10, window_s=1)",
        )
    marks = timeline.marks(admitted)
    if not marks:
        return Verdict(rule, UNJUDGED, f"this record has no mark {admitted!r}")
    told = all("at" in e.data for e in marks)
    if fixed and not told:
        return Verdict(rule, UNJUDGED, f"not every mark {admitted!r} says `at`, the time on the limiter's clock")
    # Whole numbers, as 1.3 - 0.3 is not always 1.0. A float of seconds since 1970 has no room for nanoseconds.
    grain = 1e6 if told else 1e9
    taken = sorted(((round((e.data["at"] if told else e.t) * grain), e) for e in marks), key=lambda pair: pair[0])
    fullest = (_fullest_fixed if fixed else _fullest_sliding)(taken, max(1, round(window_s * grain)))
    most, total = sum(map(_n, fullest)), sum(map(_n, marks))
    kind = f"{'a fixed' if fixed else 'any'} window of {window_s:g} s"
    if most <= limit:
        return Verdict(rule, HOLDS, f"at most {most:g} of {total:g} in {kind}, the limit is {limit:g}")
    text = f"{most:g} were admitted in {kind.replace('any', 'a')}, the limit is {limit:g}"
    times, lanes = [e.t for e in fullest], tuple(dict.fromkeys(e.lane for e in fullest))
    return Verdict(rule, VIOLATED, text, (Evidence(min(times), max(times), lanes, f"{most:g}, limit {limit:g}"),))


def _n(e: Event) -> float:
    return e.data.get("n", 1)


def _fullest_sliding(taken: list[tuple[int, Event]], window: int) -> list[Event]:
    first = inside = 0
    best, most = (0, 0), 0.0
    for last, (at, e) in enumerate(taken):
        inside += _n(e)
        while at - taken[first][0] >= window:
            inside -= _n(taken[first][1])
            first += 1
        if inside > most:
            best, most = (first, last), inside
    return [e for _, e in taken[best[0] : best[1] + 1]]


def _fullest_fixed(taken: list[tuple[int, Event]], window: int) -> list[Event]:
    windows = ([e for _, e in group] for _, group in groupby(taken, key=lambda pair: pair[0] // window))
    return max(windows, key=lambda events: sum(map(_n, events)))
