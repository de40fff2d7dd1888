"""Numbers from a record: windows, rates, backlogs, quantiles. Pure functions; times in seconds."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from .errors import LabError
from .record import Timeline

Step = tuple[float, int]  # from this time (s) on, this count


def window(times_s: Iterable[float], window_s: float) -> list[Step]:
    """How many of these moments lay in the last `window_s` seconds, as steps [(t, count), …] by time.

    The window at time t is (t - window_s, t]: a moment counts at once, and no more exactly one window later. This is
    the sliding window that a limiter promises something about, whatever windows it keeps for itself.
    """
    if not window_s > 0:
        raise LabError(
            f"A window of {window_s!r} s cannot be counted.",
            "It must be longer than nothing.",
            "Give the limiter's window in seconds, for example window_s=1.0.",
        )
    arrivals = sorted(times_s)
    return _steps(arrivals, [t + window_s for t in arrivals])


def backlog(into_s: Iterable[float], out_s: Iterable[float]) -> list[Step]:
    """How many have come in and not gone out, as steps [(t, count), …]. Below zero: something went out twice."""
    return _steps(list(into_s), list(out_s))


def _steps(up: list[float], down: list[float]) -> list[Step]:
    # To the nanosecond, the grain of the record: 0.1 + 0.2 must leave the window when 0.3 arrives.
    change = Counter(round(t, 9) for t in up)
    change.subtract(round(t, 9) for t in down)
    count, steps = 0, []
    for t in sorted(change):
        count += change[t]
        steps.append((t, count))
    return steps


def rates(times_s: Iterable[float], bin_s: float, until_s: float | None = None) -> list[tuple[float, float]]:
    """Events a second in bins of `bin_s` from 0 to `until_s` (None: the last event), as [(start of the bin, rate), …].

    The last bin may reach past `until_s`; its rate is of the whole bin: a run that just began looks slow, never fast.
    """
    if not bin_s > 0:
        raise LabError(
            f"A rate over bins of {bin_s!r} s cannot be counted.",
            "It must be longer than nothing.",
            "Give seconds, for example bin_s=0.1.",
        )
    times = sorted(times_s)
    end = until_s if until_s is not None else (times[-1] if times else 0.0)
    bins = max(1, math.ceil(end / bin_s)) if times or until_s else 0
    counts = Counter(min(int(t / bin_s + 1e-9), bins - 1) for t in times if 0 <= t <= end)
    return [(i * bin_s, counts[i] / bin_s) for i in range(bins)]


def quantiles(values: Iterable[float], qs: Sequence[float]) -> list[float]:
    """For each q (0 to 1) the least value that at least this share of the values does not exceed.

    No interpolation: every answer is a value that was measured. (Hyndman and Fan 1996, definition 1.)
    """
    ordered = sorted(values)
    if not ordered:
        raise LabError(
            "There are no values to take a quantile of.",
            "Nothing was measured, or the name of the span is another.",
            "Look which spans there are: e.timeline.spans()",
        )
    return [ordered[max(0, math.ceil(q * len(ordered)) - 1)] for q in qs]


def durations(timeline: Timeline, span: str) -> list[float]:
    """Seconds of every span of this name that came to its own end, by start. Open and died ones have no duration."""
    return [s.seconds for s in timeline.spans(span) if s.how == "ended"]


def density(values: Iterable[float], low: float, high: float, bins: int) -> list[int]:
    """How many values lie in each of `bins` equal parts of low to high; the ones outside go to the nearest part."""
    edges = [low + (high - low) * i / bins for i in range(1, bins)]
    counts = [0] * bins
    for value in values:
        counts[bisect_right(edges, value)] += 1
    return counts
