"""What observers record of a real server: the words of the server, not of the workers."""

import itertools
import socket
import sys
import time

import cloudpickle
import pytest

from labkit import Lab, LabError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def lab():
    with Lab("observers") as lab:
        yield lab


@pytest.fixture
def store(lab):
    return lab.redis()


@pytest.fixture
def run(lab):
    with lab.run("a test") as e:
        yield e


def owners(e, store, key="lock") -> list[str]:
    """Whom the server named, in order. On a slow machine it may fall silent for a moment, and name the same again."""
    named = [span.data["owner"] for span in e.timeline.spans("owner", f"{key} ({store.name} says)")]
    return [name for name, _ in itertools.groupby(named)]


def nobody(e, store, key="lock") -> bool:
    """The server names nobody now."""
    return all(span.how == "ended" for span in e.timeline.spans("owner", f"{key} ({store.name} says)"))


def marks(e, store, key):
    return [mark.name for mark in e.timeline.marks(lane=f"{key} ({store.name} says)")]


def until_owner(lab, e, store, *wanted):
    lab.until(f"the server says {wanted}", lambda: owners(e, store) == list(wanted) and not nobody(e, store))


def test_it_sees_each_owner_come_and_go(lab, store, run):
    lab.watch(store, "lock")
    r = store.client()
    r.set("lock", "A", px=60_000)
    until_owner(lab, run, store, "A")
    r.set("lock", "B", px=60_000)
    until_owner(lab, run, store, "A", "B")
    r.delete("lock")
    lab.until("no owner", lambda: nobody(run, store))
    a, *_, b = run.timeline.spans("owner")
    assert a.end <= b.start and 0 < a.data["ttl_ms"] <= 60_000
    assert run.timeline.lanes == (f"lock ({store.name} says)",), "the observer has no lane of its own"


def test_an_owner_that_was_there_before_is_seen_when_the_watch_stands(lab, store, run):
    store.client().set("lock", "A")
    lab.watch(store, "lock")
    assert owners(run, store) == ["A"]


def test_a_lease_that_runs_out_ends_without_anybody_asking(lab, store, run):
    lab.watch(store, "lock")
    r = store.client()
    r.set("lock", "A", px=60_000)
    until_owner(lab, run, store, "A")
    r.pexpire("lock", 30)
    lab.until("it ran out", lambda: nobody(run, store))
    assert r.info("stats")["expired_keys"] == 1


def test_a_renewal_is_a_mark(lab, store, run):
    lab.watch(store, "lock")
    r = store.client()
    r.set("lock", "A", px=30_000)
    until_owner(lab, run, store, "A")
    r.pexpire("lock", 60_000)
    lab.until("renewed", lambda: "renewed" in marks(run, store, "lock"))
    assert owners(run, store) == ["A"]


def test_an_owner_too_short_to_be_read_is_told(lab, store, run):
    lab.watch(store, "lock")
    store.client().eval("redis.call('set', KEYS[1], 'A') redis.call('del', KEYS[1])", 1, "lock")
    lab.until("seen", lambda: marks(run, store, "lock") == ["owned, too short to see by whom"])
    assert owners(run, store) == []


def test_each_value_of_a_list_once_and_in_order(lab, store, run):
    r = store.client()
    r.rpush("ledger", "before")
    lab.watch(store, "ledger")
    for name in "ABCAB":
        r.rpush("ledger", name)
    lab.until("all seen", lambda: marks(run, store, "ledger") == ["before", *"ABCAB"])


def test_a_list_is_not_told_again_after_a_time_without_an_answer(lab, store, run):
    lab.watch(store, "ledger")
    r = store.client()
    r.rpush("ledger", "A", "B")
    lab.until("seen", lambda: marks(run, store, "ledger") == ["A", "B"])
    lab.pause(store)
    lane = f"ledger ({store.name} says)"
    lab.until("no answer", lambda: run.timeline.spans("no answer", lane))
    lab.resume(store)
    lab.until("it answers", lambda: {s.how for s in run.timeline.spans("no answer", lane)} == {"ended"})
    r.rpush("ledger", "C")
    lab.until("C is seen", lambda: "C" in marks(run, store, "ledger"))
    assert marks(run, store, "ledger") == ["A", "B", "C"]


def test_a_frozen_server_says_nothing_and_what_it_said_is_not_stretched(lab, store, run):
    lab.watch(store, "lock")
    store.client().set("lock", "A")
    until_owner(lab, run, store, "A")
    lab.pause(store)
    lab.until("no answer", lambda: {"open"} & {s.how for s in run.timeline.spans("no answer")})
    assert nobody(run, store)
    lab.resume(store)
    lab.until("it says A again", lambda: not nobody(run, store))
    assert all(mute.how == "ended" and mute.data["fault"] for mute in run.timeline.spans("no answer"))


def test_a_killed_server_is_not_asked_without_a_pause_and_is_seen_again(lab, store, run):
    """A dead server refuses at once: without a pause the observer would take a whole processor."""
    lab.watch(store, "lock")
    lab.kill(store)
    lab.until("no answer", lambda: run.timeline.spans("no answer"))
    with socket.create_server((store.host, store.port)) as in_its_place:
        in_its_place.settimeout(10)
        start = time.monotonic()
        for _ in range(30):
            in_its_place.accept()[0].close()
    assert time.monotonic() - start > 0.5, "29 times 20 ms lie between 30 questions"
    lab.restart(store, data="lost")
    store.client().set("lock", "B")
    until_owner(lab, run, store, "B")


def test_several_watches_of_one_run(lab, store, run):
    other = lab.redis()
    for node in (store, other):
        lab.watch(node, "lock")
    store.client().set("lock", "A")
    other.client().set("lock", "B")
    until_owner(lab, run, store, "A")
    until_owner(lab, run, other, "B")


def test_spans_are_ended_when_the_run_is_left(lab, store):
    with lab.run("left") as e:
        lab.watch(store, "lock")
        store.client().set("lock", "A")
        until_owner(lab, e, store, "A")
    assert owners(e, store) == ["A"] and nobody(e, store)
    assert all(w.state == "done" for w in e.workers.values())


def test_it_ends_with_the_run_although_its_server_is_frozen_or_dead(lab, store):
    with lab.run("left") as e:
        other = lab.redis()
        for node in (store, other):
            lab.watch(node, "lock")
        lab.pause(store)
        lab.kill(other)
    assert all(w.state == "done" for w in e.workers.values())


def test_an_observer_that_fails_is_told_when_the_run_is_left(lab, store, capsys, monkeypatch):
    from labkit import servers

    def fails(w, node, key):
        w._stop_here("watching")
        raise ValueError("this watch broke")

    monkeypatch.setattr(servers.of("redis"), "observe", fails)
    with lab.run("left"):
        lab.watch(store, "lock")
    assert "(a watch ended early: this watch broke)" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_a_node_that_does_not_run_cannot_be_watched(lab, store, run, fault):
    getattr(lab, fault)(store)
    with pytest.raises(LabError, match=f"{store.name} is (frozen|dead)") as told:
        lab.watch(store, "lock")
    assert len(str(told.value).splitlines()) == 3


def test_outside_of_a_run(lab, store):
    with pytest.raises(LabError, match="no run going on"):
        lab.watch(store, "lock")
