"""Counting: windows, rates, backlogs, quantiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import measure
from labkit.errors import LabError
from labkit.record import Event, Timeline

moments = st.lists(st.integers(0, 3000).map(lambda ms: ms / 1000), max_size=60)


def test_a_moment_counts_at_once_and_no_more_one_window_later():
    assert measure.window([0.1, 0.3], 0.2) == [(0.1, 1), (0.3, 1), (0.5, 0)]  # 0.1 + 0.2 is above 0.3 as a float
    assert measure.window([1.0, 1.0], 1.0) == [(1.0, 2), (2.0, 0)]
    assert measure.window([], 1.0) == []


@given(moments, st.integers(1, 1500).map(lambda ms: ms / 1000))
def test_a_window_counts_what_a_plain_count_counts(times, window_s):
    for t, count in measure.window(times, window_s):
        assert count == sum(round(t - window_s, 6) < round(u, 6) <= round(t, 6) for u in times)


def test_a_window_without_length_is_refused():
    with pytest.raises(LabError):
        measure.window([1.0], 0.0)


def test_a_backlog_is_what_came_and_did_not_go():
    assert measure.backlog([0.0, 0.1, 0.2], [0.15]) == [(0.0, 1), (0.1, 2), (0.15, 1), (0.2, 2)]
    assert measure.backlog([], [1.0]) == [(1.0, -1)]


def test_rates_are_events_a_second_of_each_bin():
    assert measure.rates([0.0, 0.05, 0.1, 0.3], 0.1) == [(0.0, 20.0), (0.1, 10.0), (0.2, 10.0)]
    assert measure.rates([0.05], 0.1, until_s=0.35) == [(0.0, 10.0), (0.1, 0.0), (0.2, 0.0), (pytest.approx(0.3), 0.0)]
    assert measure.rates([], 0.1) == []
    with pytest.raises(LabError):
        measure.rates([1.0], 0)


@given(moments.filter(bool), st.integers(1, 20).map(lambda n: n / 10))
def test_rates_lose_no_event(times, bin_s):
    assert round(sum(rate * bin_s for _, rate in measure.rates(times, bin_s))) == len(times)


def test_quantiles_are_values_that_were_measured():
    values = list(range(1, 101))
    assert measure.quantiles(values, [0, 0.5, 0.99, 1]) == [1, 50, 99, 100]
    assert measure.quantiles([7.0], [0.5, 0.99]) == [7.0, 7.0]
    with pytest.raises(LabError):
        measure.quantiles([], [0.5])


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_that_enough_values_do_not_exceed(values, q):
    (found,) = measure.quantiles(values, [q])
    assert found in values
    assert sum(v <= found for v in values) >= q * len(values) - 1e-9
    assert sum(v < found for v in values) < q * len(values)


def test_durations_are_of_spans_that_ended():
    events = (
        Event(0.0, "A", "begin", "SET", {"span": 1}, 5),
        Event(0.2, "A", "end", "", {"span": 1}, 5),
        Event(0.3, "A", "begin", "SET", {"span": 2}, 5),
        Event(0.4, "lab", "note", "exit", {"pid": 5}),
        Event(0.5, "B", "begin", "SET", {"span": 1}, 6),
    )
    assert measure.durations(Timeline(events), "SET") == [0.2]


@given(st.lists(st.floats(-1, 11), max_size=50), st.integers(1, 20))
def test_density_loses_no_value(values, bins):
    counts = measure.density(values, 0.0, 10.0, bins)
    assert len(counts) == bins and sum(counts) == len(values)
