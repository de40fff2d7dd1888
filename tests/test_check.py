"""Every judge: a planted violation, a planted clean run, what cannot be judged, and random histories against an oracle.

The oracles are written the slow and plain way on purpose, and differently from the judges.
"""

from collections import Counter
from itertools import combinations, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import check
from labkit.check import HOLDS, UNJUDGED, VIOLATED, Evidence, Verdict
from labkit.errors import LabError
from labkit.record import LAB, Event, Timeline

numbers = count(1)


def span(lane, name, start, end, how="ended", outcome=None, **data):
    """The events of one span, of a process of its own."""
    number = next(numbers)
    begin = Event(start, lane, "begin", name, {**data, "span": number}, number)
    told = {"outcome": outcome} if outcome else {}
    ends = {
        "ended": [Event(end, lane, "end", "", {"span": number, **told}, number)],
        "died": [Event(end, LAB, "note", "exit", {"pid": number}, 1)],
        "open": [Event(end, LAB, "note", "the end")],
    }
    return [begin, *ends[how]]


def mark(lane, name, t, **data):
    return [Event(t, lane, "mark", name, data)]


def touch(op, by, t, value, resource="account", ok=True, **data):
    """The mark of `w.has_read` and `w.wrote`."""
    return mark(resource, str(value), t, by=by, op=op, value=value, ok=ok, **data)


def timeline(*groups):
    return Timeline(tuple(sorted((e for group in groups for e in group), key=lambda e: e.t)))


def judged(verdict, status, record=None):
    """Asserts the status, and that the evidence can be found in the record."""
    assert verdict.status == status, repr(verdict)
    assert status != VIOLATED or verdict.evidence
    assert status != HOLDS or not verdict.evidence
    if record is not None:
        for e in verdict.evidence:
            assert 0 <= e.start <= e.end <= record.seconds
            assert e.lanes and set(e.lanes) <= set(record.lanes)
            assert e.label
    return verdict


# -- the verdict itself
def test_a_verdict_has_no_truth_value_and_says_its_three_states():
    holds, violated, unjudged = (Verdict("a rule", status, "because") for status in (HOLDS, VIOLATED, UNJUDGED))
    assert holds.ok is True and violated.ok is False
    assert [repr(v) for v in (holds, violated)] == ["a rule holds: because", "a rule VIOLATED: because"]
    assert repr(unjudged) == "a rule cannot be judged: because"
    for verdict in (holds, violated, unjudged):
        with pytest.raises(TypeError, match="ask .ok"):
            bool(verdict)
    with pytest.raises(LabError) as told:
        _ = unjudged.ok
    assert len(str(told.value).splitlines()) == 3


JUDGES = {
    "mutual_exclusion": check.mutual_exclusion,
    "token_order": lambda t: check.token_order(t, "account"),
    "token_order_reads": lambda t: check.token_order(t, "account", reads=True),
    "no_lost_update": lambda t: check.no_lost_update(t, "account"),
    "at_most_once": check.at_most_once,
    "at_least_once": check.at_least_once,
    "order_kept": check.order_kept,
    "within_limit": lambda t: check.within_limit(t, 5, 1.0),
    "within_limit_fixed": lambda t: check.within_limit(t, 5, 1.0, fixed=True),
    "acknowledged_kept": check.acknowledged_kept,
}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
@pytest.mark.parametrize(
    "record",
    [Timeline(), timeline(span("A", "other", 0, 1), mark("A", "other", 2), mark("account", "7", 3, value=7))],
    ids=["empty", "unrelated"],
)
def test_no_judge_decides_on_a_record_that_does_not_tell(judge, record):
    verdict = judged(judge(record), UNJUDGED, record)
    with pytest.raises(LabError, match="cannot be judged"):
        _ = verdict.ok


# -- mutual exclusion
def holds(lane, start, end, lock="lock", **how):
    return span(lane, "holds", start, end, lock=lock, **how)


def test_two_holders_at_once_are_found_and_shown():
    record = timeline(holds("A", 0, 3.0), holds("B", 2.5, 4))
    verdict = judged(check.mutual_exclusion(record), VIOLATED, record)
    assert verdict.text == "A and B both held 'lock' for 0.50 s"
    assert verdict.evidence == (Evidence(2.5, 3.0, ("A", "B"), "two holders for 0.50 s"),)


def test_the_longest_of_several_overlaps_is_told():
    record = timeline(holds("A", 0, 10), holds("B", 1, 2), holds("C", 3, 7), holds("D", 6.9, 7.05))
    verdict = judged(check.mutual_exclusion(record), VIOLATED, record)
    assert verdict.text == "A and C both held 'lock' for 4.00 s, the longest of 4 such times"
    assert [(e.start, e.lanes) for e in verdict.evidence] == [
        (1, ("A", "B")), (3, ("A", "C")), (6.9, ("C", "D")), (6.9, ("A", "D")),
    ]  # fmt: skip


def test_one_after_the_other_is_no_violation():
    record = timeline(holds("A", 0, 1), holds("B", 1, 2), holds("A", 2, 3))
    verdict = judged(check.mutual_exclusion(record), HOLDS, record)
    assert verdict.text == "2 workers held 'lock', 3 times in all, never two at once"


def test_two_locks_do_not_exclude_each_other_and_a_worker_not_itself():
    judged(check.mutual_exclusion(timeline(holds("A", 0, 3, "one"), holds("B", 1, 2, "two"))), HOLDS)
    judged(check.mutual_exclusion(timeline(holds("A", 0, 3), holds("A", 1, 2))), HOLDS)


def test_death_ends_a_hold_and_the_end_of_the_record_an_open_one():
    judged(check.mutual_exclusion(timeline(holds("A", 0, 1, how="died"), holds("B", 2, 3))), HOLDS)
    judged(check.mutual_exclusion(timeline(holds("A", 0, 5, how="open"), holds("B", 2, 3))), VIOLATED)


def test_a_hold_without_the_datum_cannot_be_judged():
    verdict = judged(check.mutual_exclusion(timeline(span("A", "holds", 0, 1))), UNJUDGED)
    assert "'holds'" in verdict.text and "'lock'" in verdict.text


some_holds = st.lists(
    st.tuples(
        st.sampled_from("ABC"), st.sampled_from(["x", "y"]), st.integers(0, 15), st.integers(1, 5),
        st.sampled_from(["ended", "died"]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(some_holds)
def test_mutual_exclusion_agrees_with_looking_at_every_moment(rows):
    record = timeline(*(holds(lane, start, start + n, lock, how=how) for lane, lock, start, n, how in rows))
    seen = set()
    for moment in range(21):  # spans begin and end at whole seconds: half past is enough to see everything
        for lock in "xy":
            inside = {r[0] for r in rows if r[1] == lock and r[2] < moment + 0.5 < r[2] + r[3]}
            seen |= {(moment, *sorted(pair)) for pair in combinations(inside, 2)}
    verdict = judged(check.mutual_exclusion(record), VIOLATED if seen else HOLDS, record)
    told = {(m, *sorted(e.lanes)) for e in verdict.evidence for m in range(int(e.start), int(e.end))}
    assert told == seen


# -- tokens at a resource
def stale_read(write_of_a=True):
    """A reads, is frozen; B reads; A wakes and writes (taken or refused); B writes. FENCE-17 in the ledger."""
    return timeline(
        touch("read", "A", 1, 100, token=1), touch("read", "B", 2, 100, token=2),
        touch("write", "A", 3, 90, token=1, ok=write_of_a), touch("write", "B", 4, 80, token=2),
    )  # fmt: skip


def test_an_older_token_after_a_newer_one_is_found():
    record = timeline(
        touch("write", "A", 1, 10, token=1), touch("write", "B", 2, 20, token=2), touch("write", "A", 3, 11, token=1)
    )
    verdict = judged(check.token_order(record, "account"), VIOLATED, record)
    assert verdict.text == "'account' took A's write with token 1 after B's write with 2"
    assert verdict.evidence == (Evidence(3, 3, ("account",), "A's token 1 after B's token 2"),)


def test_a_refused_write_does_not_count_against_the_resource():
    record = timeline(
        touch("write", "A", 1, 10, token=1),
        touch("write", "B", 2, 20, token=2),
        touch("write", "A", 3, 11, token=1, ok=False),
    )
    verdict = judged(check.token_order(record, "account"), HOLDS, record)
    assert verdict.text == "2 writes at 'account', the tokens never went down"


def test_one_token_from_two_workers_is_found():
    record = timeline(touch("write", "A", 1, 10, token=6), touch("write", "B", 2, 20, token=6))
    judged(check.token_order(record, "account"), VIOLATED, record)
    judged(
        check.token_order(timeline(touch("write", "A", 1, 1, token=6), touch("write", "A", 2, 2, token=6)), "account"),
        HOLDS,
    )


def test_tokens_that_came_as_text_are_numbers():
    record = timeline(touch("write", "A", 1, 0, token="9"), touch("write", "B", 2, 0, token="10"))
    judged(check.token_order(record, "account"), HOLDS, record)


@pytest.mark.parametrize("token", ["4f1c-random", 1.5, [1]])
def test_a_token_without_an_order_is_told_in_three_lines(token):
    with pytest.raises(LabError) as told:
        check.token_order(timeline(touch("write", "A", 1, 0, token=token)), "account")
    assert len(str(told.value).splitlines()) == 3


def test_writes_without_tokens_or_elsewhere_cannot_be_judged():
    judged(check.token_order(timeline(touch("write", "A", 1, 10)), "account"), UNJUDGED)
    judged(check.token_order(timeline(touch("write", "A", 1, 10, "other", token=1)), "account"), UNJUDGED)
    judged(check.token_order(timeline(touch("read", "A", 1, 10, token=1)), "account"), UNJUDGED)


def test_the_order_is_the_one_the_resource_tells():
    # B's mark was written down first although the resource took A's write first.
    marks = ("A", 3, 10, 1, 1), ("B", 2, 20, 2, 2)
    record = timeline(*(touch("write", by, t, value, token=token, seq=seq) for by, t, value, token, seq in marks))
    judged(check.token_order(record, "account"), HOLDS, record)
    assert [e.data["by"] for e in check.history(record, "account")] == ["A", "B"]
    without = timeline(*(touch("write", by, t, value, token=token) for by, t, value, token, _ in marks))
    judged(check.token_order(without, "account"), VIOLATED, without)


def test_a_read_comes_after_the_write_whose_number_it_tells():
    record = timeline(
        touch("read", "B", 1, 10, token=2, seq=1),
        touch("write", "A", 2, 10, token=1, seq=1),
        touch("write", "B", 3, 20, token=2, seq=2),
    )
    judged(check.token_order(record, "account", reads=True), HOLDS, record)


def test_the_writes_alone_do_not_show_what_the_reads_show():
    record = stale_read()
    judged(check.token_order(record, "account"), HOLDS, record)
    verdict = judged(check.token_order(record, "account", reads=True), VIOLATED, record)
    assert verdict.text == "'account' took A's write with token 1 after B's read with 2"
    judged(check.no_lost_update(record, "account"), VIOLATED, record)


def test_a_token_registered_with_the_read_keeps_the_history_in_order():
    record = stale_read(write_of_a=False)
    judged(check.token_order(record, "account", reads=True), HOLDS, record)
    judged(check.no_lost_update(record, "account"), HOLDS, record)


some_touches = st.lists(
    st.tuples(st.sampled_from(["read", "write"]), st.sampled_from("AB"), st.integers(1, 4), st.booleans()), max_size=8
)


@given(some_touches, st.booleans())
def test_token_order_agrees_with_looking_at_every_pair(rows, reads):
    record = timeline(*(touch(op, by, t, t, token=token, ok=ok) for t, (op, by, token, ok) in enumerate(rows)))
    taken = [(by, token) for op, by, token, ok in rows if ok and (reads or op == "write")]
    bad = any(b[1] < a[1] or (b[1] == a[1] and b[0] != a[0]) for a, b in combinations(taken, 2))
    status = VIOLATED if bad else HOLDS if taken else UNJUDGED
    verdict = judged(check.token_order(record, "account", reads=reads), status, record)
    older = sum(any(before > token for _, before in taken[:i]) for i, (_, token) in enumerate(taken))
    assert len(verdict.evidence) >= older


# -- lost updates
def test_a_lost_update_is_found_and_shown_from_the_read_to_the_write():
    record = stale_read()
    verdict = judged(check.no_lost_update(record, "account"), VIOLATED, record)
    assert verdict.text == "B wrote 80 for 100, but A had made 'account' 90"
    assert verdict.evidence == (Evidence(2, 4, ("account",), "A's 90 is lost"),)


def test_each_write_on_top_of_the_last_one_is_no_lost_update():
    record = timeline(
        # the server says '100' for 100
        touch("read", "A", 1, "100"), touch("write", "A", 2, 90), touch("write", "A", 3, 85),
        touch("read", "B", 4, "85"), touch("write", "B", 5, 80),
    )  # fmt: skip
    verdict = judged(check.no_lost_update(record, "account"), HOLDS, record)
    assert verdict.text == "3 writes at 'account', each based on the value it replaced"


def test_what_a_worker_wrote_itself_is_what_it_knows():
    record = timeline(
        touch("read", "A", 1, 100), touch("write", "A", 2, 90), touch("read", "B", 3, 90),
        touch("write", "B", 4, 95), touch("write", "A", 5, 85),
    )  # fmt: skip
    verdict = judged(check.no_lost_update(record, "account"), VIOLATED, record)
    assert verdict.text == "A wrote 85 for 90, but B had made 'account' 95"


def test_a_refused_write_and_a_refused_read_change_nothing():
    record = timeline(
        touch("read", "A", 1, 100), touch("read", "B", 2, 100), touch("write", "A", 3, 90, ok=False),
        touch("write", "B", 5, 80), touch("write", "B", 6, 70, ok=False), touch("write", "B", 7, 60),
        touch("read", "B", 8, 0, ok=False), touch("write", "B", 9, 50),
    )  # fmt: skip
    judged(check.no_lost_update(record, "account"), HOLDS, record)


def test_blind_writes_cannot_be_judged_but_can_be_lost():
    judged(check.no_lost_update(timeline(touch("write", "A", 1, 1), touch("write", "B", 2, 2)), "account"), UNJUDGED)
    record = timeline(touch("read", "A", 1, 100), touch("write", "B", 2, 5), touch("write", "A", 3, 90))
    judged(check.no_lost_update(record, "account"), VIOLATED, record)


def test_lost_updates_follow_the_order_of_the_resource():
    # A's write came first at the resource; its mark was written down last.
    record = timeline(
        touch("read", "A", 1, 100),
        touch("read", "B", 2, 90),
        touch("write", "B", 3, 80, seq=2),
        touch("write", "A", 4, 90, seq=1),
    )
    judged(check.no_lost_update(record, "account"), HOLDS, record)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.booleans()), max_size=12))
def test_no_lost_update_agrees_with_a_store_where_all_values_differ(steps):
    """A register whose every write is a new value: an update is lost just where another write came in between."""
    stored, rows = 0, []
    for t, (by, reads) in enumerate(steps):
        stored = stored if reads else 1000 + t
        rows.append((t, by, "read" if reads else "write", stored))
    record = timeline(*(touch(op, by, t, value) for t, by, op, value in rows))
    judged_writes = lost = 0
    for at, (by, reads) in enumerate(steps):
        mine = [i for i in range(at) if steps[i][0] == by]
        if reads or not any(steps[i][1] for i in mine):
            continue
        judged_writes += 1
        lost += any(not steps[i][1] for i in range(mine[-1] + 1, at))
    status = VIOLATED if lost else HOLDS if judged_writes else UNJUDGED
    assert len(judged(check.no_lost_update(record, "account"), status, record).evidence) == lost


# -- messages
def sent(t, message, lane="P", **data):
    return mark(lane, "sent", t, message=message, **data)


def works(lane, message, start, end=None, **how):
    return span(lane, "works", start, start + 0.5 if end is None else end, message=message, **how)


def test_a_message_done_twice_is_found():
    record = timeline(works("A", "m1", 1), works("A", "m2", 2, 6), works("B", "m2", 4, 5))
    verdict = judged(check.at_most_once(record), VIOLATED, record)
    assert verdict.text == "'m2' was taken up 2 times (A, then B)"
    assert verdict.evidence == (Evidence(4, 5, ("B",), "m2 again, time 2"),)


def test_work_taken_over_from_the_dead_counts_as_twice():
    record = timeline(
        works("A", 1, 1, how="died"), works("B", 1, 2), works("B", 2, 3, outcome="fail"), works("B", 2, 4)
    )
    verdict = judged(check.at_most_once(record), VIOLATED, record)
    assert verdict.text == "'1' was taken up 2 times (A died, then B), and so were 1 more of 2"


def test_once_each_is_at_most_once_and_the_effect_may_be_a_mark():
    judged(check.at_most_once(timeline(works("A", 1, 1), works("B", 2, 1), works("A", 3, 2, how="died"))), HOLDS)
    paid = [mark("A", "paid", 1, message=1), mark("B", "paid", 2, message=1)]
    judged(check.at_most_once(timeline(paid[0]), works="paid"), HOLDS)
    judged(check.at_most_once(timeline(*paid), works="paid"), VIOLATED)
    judged(check.at_most_once(timeline(*paid)), UNJUDGED)


def test_a_message_that_was_never_done_is_found():
    record = timeline(
        *(sent(i / 10, f"m{i}") for i in range(1, 6)), works("A", "m1", 1), works("A", "m2", 2, how="died"),
        works("B", "m3", 3, outcome="fail"), works("B", "m3", 4), works("B", "m5", 5, outcome="fail"),
    )  # fmt: skip
    verdict = judged(check.at_least_once(record), VIOLATED, record)
    assert verdict.text == "3 of 5 messages never done: m2, m4, m5"
    assert [(e.start, e.label) for e in verdict.evidence] == [
        (0.2, "m2 never done"), (2, "m2: died"), (0.4, "m4 never done"), (0.5, "m5 never done"), (5, "m5: fail"),
    ]  # fmt: skip


def test_done_after_a_death_is_at_least_once():
    record = timeline(sent(0, 1), works("A", 1, 1, how="died"), works("B", 1, 2), works("B", 1, 3))
    assert judged(check.at_least_once(record), HOLDS, record).text == "1 message sent, each done"


@pytest.mark.parametrize("how", [{"how": "open"}, {"outcome": "unknown"}])
def test_work_without_a_known_end_cannot_be_judged(how):
    record = timeline(sent(0, 1), sent(0.1, 2), works("A", 1, 1), works("B", 2, 2, 3, **how))
    verdict = judged(check.at_least_once(record), UNJUDGED, record)
    assert verdict.text == "1 of 2 messages may be done or not: 2" and len(verdict.evidence) == 2
    record = timeline(sent(0, 1), sent(0.1, 2), sent(0.2, 3), works("A", 1, 1), works("B", 2, 2, 3, **how))
    assert judged(check.at_least_once(record), VIOLATED, record).text == "1 of 3 messages never done: 3"


def test_deliveries_cannot_be_judged_from_one_side_only():
    judged(check.at_least_once(timeline(sent(0, 1))), UNJUDGED)
    judged(check.at_least_once(timeline(works("A", 1, 1))), UNJUDGED)
    judged(check.order_kept(timeline(sent(0, 1), sent(1, 2))), UNJUDGED)
    judged(check.order_kept(timeline(works("A", 1, 1), works("A", 2, 2))), UNJUDGED)


def test_a_message_taken_up_after_a_later_one_is_found():
    record = timeline(
        *(sent(i, f"m{i}") for i in range(4)), works("A", "m0", 4), works("A", "m2", 5), works("A", "m1", 6)
    )
    verdict = judged(check.order_kept(record), VIOLATED, record)
    assert verdict.text == "A took up 'm1' after 'm2', which was sent later"
    assert verdict.evidence == (Evidence(6, 6.5, ("A",), "m1 after m2"),)


def test_each_consumer_in_order_is_order_kept():
    record = timeline(
        *(sent(i, i) for i in range(4)), works("A", 1, 5), works("B", 0, 6), works("A", 3, 7), works("B", 2, 8)
    )
    verdict = judged(check.order_kept(record), HOLDS, record)
    assert verdict.text == "2 messages taken up after another, each in the order sent"


def test_a_repeat_of_an_older_message_breaks_the_order_and_a_repeat_of_the_same_does_not():
    sends = [sent(i, i) for i in range(3)]
    judged(check.order_kept(timeline(*sends, works("A", 0, 5), works("A", 0, 6), works("A", 1, 7))), HOLDS)
    judged(check.order_kept(timeline(*sends, works("A", 0, 5), works("A", 1, 6), works("A", 0, 7))), VIOLATED)


def test_order_can_be_asked_for_a_partition_whoever_works():
    sends = [sent(i, i, partition=i % 2) for i in range(4)]
    crossed = timeline(*sends, works("A", 0, 5), works("B", 1, 5), works("B", 2, 6), works("A", 3, 7))
    judged(check.order_kept(crossed, by="partition"), HOLDS)
    late = timeline(*sends, works("A", 2, 5), works("B", 0, 6))
    judged(check.order_kept(late), UNJUDGED)
    judged(check.order_kept(late, by="partition"), VIOLATED)


def test_two_producers_messages_have_no_order():
    record = timeline(sent(1, "p", "P"), sent(2, "q", "Q"), works("A", "q", 3), works("A", "p", 4))
    judged(check.order_kept(record), UNJUDGED)


some_work = st.lists(
    st.tuples(
        st.sampled_from("AB"), st.integers(0, 5),
        st.sampled_from([("ended", None), ("ended", "fail"), ("ended", "unknown"), ("died", None)]),
    ),
    max_size=10,
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("PQ")), unique_by=lambda m: m[0]), some_work)
def test_messages_agree_with_plain_counting(sends, rows):
    record = timeline(
        *(sent(-10 + i, message, lane) for i, (message, lane) in enumerate(sends)),
        *(works(lane, message, t, how=how, outcome=outcome) for t, (lane, message, (how, outcome)) in enumerate(rows)),
    )
    record = Timeline(tuple(Event(e.t + 10, e.lane, e.kind, e.name, e.data, e.pid) for e in record.events))

    taken = Counter(message for _, message, _ in rows)
    status = UNJUDGED if not rows else VIOLATED if max(taken.values()) > 1 else HOLDS
    verdict = judged(check.at_most_once(record), status, record)
    assert len(verdict.evidence) == len(rows) - len(taken)

    ends = {message: {end for _, other, end in rows if other == message} for message, _ in sends}
    missing = [e for e in ends.values() if ("ended", None) not in e]
    surely = [e for e in missing if ("ended", "unknown") not in e]
    status = UNJUDGED if not rows or not sends else VIOLATED if surely else UNJUDGED if missing else HOLDS
    judged(check.at_least_once(record), status, record)

    producer, place = dict(sends), {message: i for i, (message, _) in enumerate(sends)}
    known = [(lane, message) for lane, message, _ in rows if message in place]
    pairs = [(a, b) for (la, a), (lb, b) in combinations(known, 2) if la == lb and producer[a] == producer[b]]
    status = UNJUDGED if not pairs else VIOLATED if any(place[b] < place[a] for a, b in pairs) else HOLDS
    verdict = judged(check.order_kept(record), status, record)
    late = [
        any(lane == other and producer[m] == producer[message] and place[m] > place[message] for other, m in known[:i])
        for i, (lane, message) in enumerate(known)
    ]
    assert len(verdict.evidence) == sum(late)


# -- limits
def admitted(*times, lane="A", **data):
    return [e for t in times for e in mark(lane, "admitted", t, **data)]


def test_more_than_the_limit_in_a_sliding_window_is_found():
    record = timeline(admitted(0, 0.8, 0.9), admitted(1.05, 1.1, 1.15, lane="B"), admitted(3))
    verdict = judged(check.within_limit(record, 4, 1), VIOLATED, record)
    assert verdict.text == "5 were admitted in a window of 1 s, the limit is 4"
    assert verdict.evidence == (Evidence(0.8, 1.15, ("A", "B"), "5, limit 4"),)


def test_at_the_limit_is_within_it_and_a_window_does_not_take_in_its_end():
    record = timeline(admitted(0.3, 0.7, 1.3, 1.7, 2.3, 2.7))
    verdict = judged(check.within_limit(record, 2, 1), HOLDS, record)
    assert verdict.text == "at most 2 of 6 in any window of 1 s, the limit is 2"
    judged(check.within_limit(record, 2, 1.001), VIOLATED, record)


def test_one_mark_can_stand_for_many():
    record = timeline(admitted(0, n=3), admitted(0.5, n=3))
    judged(check.within_limit(record, 5, 1), VIOLATED, record)
    judged(check.within_limit(record, 6, 1), HOLDS, record)
    judged(check.within_limit(record, 2, 0.1), VIOLATED, record)  # a single one that is too much


def test_the_clock_of_the_limiter_counts_when_every_mark_tells_it():
    # The first mark came 5 ms after its decision: in the record two windows seem to touch.
    told = [*admitted(0.005, at=1000.0), *admitted(1.0, at=1001.0)]
    judged(check.within_limit(timeline(told), 1, 1), HOLDS)
    judged(check.within_limit(timeline(told, admitted(1.004)), 2, 1), VIOLATED)  # one does not tell


def test_moments_since_1970_keep_their_milliseconds_apart():
    # As floats of seconds, many such pairs are a few hundred nanoseconds less than a window apart.
    for ms in range(1_796_073_799_000, 1_796_073_799_200):
        told = [*admitted(0, at=ms / 1000), *admitted(0.25, at=(ms + 250) / 1000)]
        judged(check.within_limit(timeline(told), 1, 0.25), HOLDS)
        judged(check.within_limit(timeline(told), 1, 0.251), VIOLATED)


def test_windows_of_the_calendar_allow_what_a_sliding_one_does_not():
    around = timeline(admitted(0.0, at=100.9, n=5), admitted(0.2, at=101.1, n=5))
    judged(check.within_limit(around, 5, 1, fixed=True), HOLDS, around)
    judged(check.within_limit(around, 5, 1), VIOLATED, around)
    within = timeline(admitted(0.0, at=100.1, n=3), admitted(0.5, at=100.6, n=3), admitted(1.5, at=101.6))
    verdict = judged(check.within_limit(within, 5, 1, fixed=True), VIOLATED, within)
    assert verdict.text == "6 were admitted in a fixed window of 1 s, the limit is 5"
    assert verdict.evidence[0].end == 0.5
    judged(check.within_limit(timeline(admitted(0, 1)), 5, 1, fixed=True), UNJUDGED)


@pytest.mark.parametrize("window_s", [0, -1, float("nan")])
def test_a_window_of_no_length_is_told_in_three_lines(window_s):
    with pytest.raises(LabError) as told:
        check.within_limit(timeline(admitted(0)), 1, window_s)
    assert len(str(told.value).splitlines()) == 3


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=15),
    st.integers(1, 6),
    st.integers(1, 12),
)
def test_limits_agree_with_opening_a_window_at_every_mark(rows, limit, tenths):
    record = timeline(*(admitted(t / 10, n=n, at=t / 10) for t, n in rows))
    most = max(sum(n for t, n in rows if start <= t < start + tenths) for start, _ in rows)
    verdict = judged(check.within_limit(record, limit, tenths / 10), VIOLATED if most > limit else HOLDS, record)
    assert f"{most} " in verdict.text
    most = max(sum(n for t, n in rows if start <= t < start + tenths) for start in range(0, 41, tenths))
    verdict = judged(
        check.within_limit(record, limit, tenths / 10, fixed=True), VIOLATED if most > limit else HOLDS, record
    )
    assert f"{most} " in verdict.text


# -- acknowledged writes
def ack(t, write, lane="A"):
    return mark(lane, "ack", t, write=write)


def look(t, *writes):
    return mark("lookout", "found", t, writes=list(writes))


def test_an_acknowledged_write_that_is_gone_is_found():
    record = timeline(*(ack(i, i) for i in range(6)), look(9, "0", "1", "17"))
    verdict = judged(check.acknowledged_kept(record), VIOLATED, record)
    assert verdict.text == "4 of 6 acknowledged writes gone: 2, 3, 4 and 1 more"
    assert verdict.evidence[0] == Evidence(2, 2, ("A",), "write 2 is gone")


def test_what_was_never_acknowledged_need_not_be_found():
    record = timeline(ack(1, "a"), mark("A", "timed out", 2, write="b"), look(3, "a"))
    assert judged(check.acknowledged_kept(record), HOLDS, record).text == "1 acknowledged write, all found"


def test_the_last_look_counts_and_may_find_nothing():
    judged(check.acknowledged_kept(timeline(ack(1, 1), look(2, 1), look(3))), VIOLATED)
    judged(check.acknowledged_kept(timeline(ack(1, 1), look(2), look(3, 1))), HOLDS)


def test_a_write_after_the_last_look_cannot_be_judged():
    verdict = judged(check.acknowledged_kept(timeline(ack(1, 1), look(2, 1), ack(3, 2))), UNJUDGED)
    assert verdict.text == "nobody looked after the acknowledgement of 2"
    judged(check.acknowledged_kept(timeline(ack(1, 1), look(2), ack(3, 2))), VIOLATED)
    judged(check.acknowledged_kept(timeline(ack(1, 1))), UNJUDGED)
    judged(check.acknowledged_kept(timeline(ack(1, 12), mark("A", "found", 2, writes="12"))), UNJUDGED)  # no list


@given(st.lists(st.integers(0, 9), max_size=8), st.sets(st.integers(0, 9)), st.lists(st.integers(0, 9), max_size=2))
def test_acknowledged_kept_agrees_with_sets(before, there, after):
    record = timeline(
        *(ack(i, write) for i, write in enumerate(before)), look(50, *there), *(ack(60, w) for w in after)
    )
    lost = set(before) - set(after) - there
    status = UNJUDGED if not before and not after else VIOLATED if lost else UNJUDGED if after else HOLDS
    verdict = judged(check.acknowledged_kept(record), status, record)
    assert {e.label for e in verdict.evidence} == {f"write {write} is gone" for write in lost}
