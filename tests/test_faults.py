"""The verbs that break things, at real servers and real clients: what each does, and that it ends when it is ended."""

import os
import sys

import cloudpickle
import pytest
import redis
from kernels import alive, state

from labkit import Lab, LabError
from labkit.processes import descendants

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def lab():
    with Lab("faults") as lab:
        yield lab


@pytest.fixture(autouse=True)
def nothing_stays_broken(lab):
    yield
    for node in lab.nodes:
        if node.state == "dead":
            lab.restart(node, data="lost")
    assert not lab._faults


@pytest.fixture
def store(lab):
    return lab.redis()


@pytest.fixture
def run(lab):
    with lab.run("a test") as e:
        yield e


def three_lines(error) -> bool:
    return len(str(error.value).splitlines()) == 3


def said(e, lane) -> list[str]:
    return [mark.name for mark in e.timeline.marks(lane=lane)]


def faults(e, lane) -> list[tuple[str, str]]:
    return [(span.name, span.how) for span in e.timeline.spans(lane=lane) if span.data.get("fault")]


def connected(w, store, timeout_s):
    """A client that has had an answer, however slow the machine is; whoever waits for it has a bound."""
    while True:
        try:
            r = w.client(store, timeout_s=timeout_s)
            r.ping()
            return r
        except redis.exceptions.RedisError:
            w.work(0.01)


def sets(w, store, timeout_s=10.0):
    """Connects, and then writes; says what came of it."""
    r = connected(w, store, timeout_s)
    w.mark("connected")
    try:
        with w.span("sets"):
            return r.set("k", w.name)
    except redis.exceptions.RedisError as error:
        return type(error).__name__


def pings(w, store, timeout_s=0.2):
    """Asks again and again with one client, and marks what changes."""
    r, last = w.client(store, timeout_s=timeout_s), None
    while True:
        try:
            now = str(r.ping())
        except redis.exceptions.RedisError as error:
            now = type(error).__name__
        if now != last:
            w.mark(now)
        last = now
        w.work(0.002)


# -- nodes


def test_a_frozen_node_keeps_the_client_waiting_and_the_outcome_is_unknown(lab, store, run):
    a = lab.worker("A", sets, store, 0.3).run_to("connected")
    lab.pause(store)
    assert state(store.pid) == "T"
    assert a.join() == "TimeoutError"
    assert [s.outcome for s in run.timeline.spans("sets")] == ["unknown"]
    lab.resume(store)
    lab.until("the command was carried out all the same", lambda: store.client().get("k") == "A")
    assert faults(run, store.name) == [("frozen", "ended")]


def test_sockets_of_a_frozen_node_stay_open(lab, store, run):
    client = store.client(timeout_s=30)
    assert client.ping()
    known = client.client_id()
    lab.pause(store)
    lab.resume(store)
    assert client.client_id() == known, "the same connection"


def test_a_killed_node_refuses_and_its_data_is_gone(lab, store, run):
    store.client().set("k", "v")
    pid = store.pid
    lab.kill(store)
    assert state(pid) == "" and store.state == "dead"
    with pytest.raises(redis.exceptions.ConnectionError):
        store.client().ping()
    lab.restart(store, data="lost")
    assert store.client().get("k") is None and store.pid != pid
    assert faults(run, store.name) == [("dead", "ended")]


def test_a_client_of_a_killed_node_is_disconnected_and_comes_back(lab, store, run):
    a = lab.worker("A", pings, store).run_to("True").start()
    lab.kill(store)
    lab.until("A noticed", lambda: said(run, "A")[-1] == "ConnectionError")
    lab.restart(store, data="lost")
    lab.until("A is back", lambda: said(run, "A")[-1] == "True")
    assert a.state == "running"


def test_a_killed_node_never_restarts_by_itself(lab, store, run):
    before = set(descendants(lab._session.keeper_pid))
    lab.kill(store)
    lab.let_pass(0.1)
    assert set(descendants(lab._session.keeper_pid)) == before - {store.pid}


@pytest.mark.parametrize("data", ["kept", "lost"])
def test_what_was_on_disk_is_there_again_or_not_as_the_caller_says(lab, run, data):
    node = lab.redis(config={"appendonly": "yes", "appendfsync": "always"})
    node.client().set("k", "v")
    lab.kill(node)
    lab.restart(node, data=data)
    assert node.client().get("k") == ("v" if data == "kept" else None)


def test_without_persistence_there_is_nothing_to_keep(lab, store):
    store.client().set("k", "v")
    lab.restart(store, data="kept")
    assert store.client().get("k") is None


@pytest.mark.parametrize("before", ["running", "frozen", "dead"])
def test_a_restart_from_every_state(lab, store, run, before):
    if before == "frozen":
        lab.pause(store)
    elif before == "dead":
        lab.kill(store)
    lab.restart(store, data="lost")
    assert store.state == "running" and store.client().ping()
    assert ("dead", "ended") in faults(run, store.name) and not lab._faults


def test_killed_while_frozen(lab, store, run):
    lab.pause(store)
    lab.kill(store)
    assert faults(run, store.name) == [("frozen", "ended"), ("dead", "open")]
    with pytest.raises(LabError, match="is not frozen"):
        lab.resume(store)


def test_a_restart_that_fails_leaves_it_dead_and_can_be_done_again(lab, store, run, monkeypatch):
    lab.kill(store)
    monkeypatch.setitem(store.options, "config", {"no-such": "setting"})
    with pytest.raises(LabError, match="ended while it was starting"):
        lab.restart(store, data="lost")
    assert store.state == "dead" and faults(run, store.name) == [("dead", "open")]
    monkeypatch.undo()
    lab.restart(store, data="lost")
    assert store.client().ping() and faults(run, store.name) == [("dead", "ended")]


def test_what_cannot_be_done_to_a_node_is_told_in_three_lines(lab, store):
    lab.pause(store)
    for verb, what in (
        (lambda: lab.pause(store), "is frozen already"),
        (lambda: lab.restart(store, data="perhaps"), "cannot be restarted with data 'perhaps'"),
    ):
        with pytest.raises(LabError, match=what) as told:
            verb()
        assert three_lines(told)
    lab.resume(store)
    lab.kill(store)
    for verb, what in (
        (lambda: lab.resume(store), "is not frozen"),
        (lambda: lab.pause(store), "is dead"),
        (lambda: lab.kill(store), "is dead already"),
        (lambda: lab.wait_gone(store, "k"), "is dead"),
    ):
        with pytest.raises(LabError, match=what) as told:
            verb()
        assert three_lines(told)
    lab.restart(store, data="lost")
    assert store.client().ping()


# -- links


@pytest.mark.parametrize(
    "how, raises, arrives",
    [("black hole", "TimeoutError", False), ("reset", "ConnectionError", False), ("replies", "TimeoutError", True)],
)
def test_a_cut_link(lab, store, run, how, raises, arrives):
    a = lab.worker("A", sets, store, 0.3).run_to("connected")
    b = lab.worker("B", pings, store, 10).run_to("True").start()
    lab.cut(a, store, how=how)
    assert a.join() == raises
    assert store.client().get("k") == ("A" if arrives else None), "looked at past the link"
    assert [s.outcome for s in run.timeline.spans("sets")] == ["unknown"]
    assert said(run, "B") == ["True"] and b.state == "running", "only A's way was cut"
    lab.heal(a, store)
    name = f"cut from {store.name}" + ("" if how == "black hole" else f" ({how})")
    assert faults(run, "A") == [(name, "ended")]


@pytest.mark.parametrize("how", ["black hole", "reset", "replies"])
def test_a_healed_link_works_again_for_the_same_client(lab, store, run, how):
    a = lab.worker("A", pings, store).run_to("True").start()
    for _ in range(5):
        lab.cut(a, store, how=how)
        lab.until("A noticed", lambda: said(run, "A")[-1] != "True")
        lab.heal(a, store)
        lab.until("A is back", lambda: said(run, "A")[-1] == "True")


def test_a_cut_of_all_ways_and_of_another_kind_in_between(lab, run):
    one, two = lab.redis(n=2)

    def asks_both(w, *nodes, timeout_s=10):
        told = []
        for node in nodes:
            try:
                told.append(w.client(node, timeout_s=timeout_s).ping())
            except redis.exceptions.RedisError as error:
                told.append(type(error).__name__)
        return told

    lab.cut("A", one)
    lab.cut("A", one, how="reset")
    assert faults(run, "A") == [(f"cut from {one.name}", "ended"), (f"cut from {one.name} (reset)", "open")]
    assert lab.worker("A", asks_both, one, two).join() == ["ConnectionError", True]
    lab.cut("B")
    assert lab.worker("B", asks_both, one, two, timeout_s=0.1).join() == ["TimeoutError"] * 2
    lab.heal("B")
    assert lab.worker("C", asks_both, one, two).join() == [True, True]
    assert {how for _, how in faults(run, "B")} == {"ended"}


def test_names_that_begin_alike_are_not_mixed_up():
    with Lab("ten") as lab:
        nodes = lab.redis(n=10)
        first, tenth = nodes[0], nodes[9]
        assert tenth.name.startswith(first.name)
        with lab.run("a test") as e:
            a = lab.worker("A", pings, tenth).run_to("True").start()
            for how in ("black hole", "replies"):
                lab.cut(a, tenth, how=how)
                lab.cut(a, first)
                lab.delay(a, first, 1)
                lab.heal(a, first)
            assert [how for name, how in faults(e, "A") if tenth.name in name] == ["ended", "open"]
            lab.until("A noticed", lambda: said(e, "A")[-1] != "True")
            lab.heal(a, tenth)
            lab.until("A is back", lambda: said(e, "A")[-1] == "True")
            assert not lab._faults


def times_ping(w, store, n):
    import time

    r = w.client(store, timeout_s=30)
    r.ping()
    w.mark("connected")
    start = time.monotonic()
    for _ in range(n):
        r.ping()
    return time.monotonic() - start


def test_a_delay_is_there_on_each_way_and_gone_when_healed(lab, store, run):
    a = lab.worker("A", times_ping, store, 4).run_to("connected")
    lab.delay(a, store, 30)
    assert a.join() >= 4 * 0.060
    lab.delay("B", store, 30, only="replies")
    lab.delay("B", store, 20, only="requests")
    b = lab.worker("B", times_ping, store, 4)
    took = b.join()
    assert took >= 4 * 0.020
    assert faults(run, "B") == [(f"30 ms late to {store.name}", "ended"), (f"20 ms late to {store.name}", "open")]
    lab.heal(b, store)
    lab.delay("C", store, 5_000)
    lab.heal("C")
    assert lab.worker("C", times_ping, store, 4).join(5) < 5


def test_a_cut_of_an_unknown_kind(lab, store, run):
    with pytest.raises(LabError, match="cannot be cut like 'softly'") as told:
        lab.cut("A", store, how="softly")
    assert three_lines(told) and "black hole, reset, replies" in told.value.todo


# -- leaving a run


def test_leaving_a_run_heals_what_was_broken_and_a_dead_node_stays_dead(lab):
    frozen, dead, cut = lab.redis(n=3)
    with lab.run("breaks all") as e:
        a = lab.worker("A", pings, cut).run_to("True").start()
        lab.pause(frozen)
        lab.kill(dead)
        lab.cut(a, cut)
        lab.delay(a, cut, 10)
        lab.cut("B")
    assert (frozen.state, dead.state) == ("running", "dead")
    assert frozen.client().ping() and state(frozen.pid) != "T"
    assert [how for _, how in faults(e, frozen.name)] == ["ended"] and faults(e, dead.name) == [("dead", "open")]
    assert list(lab._faults) == [(dead.name, "dead")]
    with lab.run("afterwards") as later:
        assert lab.worker("A", sets, cut).join() is True and lab.worker("B", sets, cut).join() is True
    assert faults(later, dead.name) == [("dead", "open")], "the picture of the next run shows that it is dead"
    lab.restart(dead, data="lost")
    with lab.run("all is well") as last:
        pass
    assert not last.timeline.spans()


def test_a_run_that_raises_heals_too_and_tells_its_own_error(lab, store):
    with pytest.raises(ZeroDivisionError), lab.run("raises"):
        a = lab.worker("A", pings, store)
        lab.pause(a, at="True")
        lab.pause(store)
        lab.cut(a, store)
        raise ZeroDivisionError
    assert not lab._faults and not alive(a.pid) and store.client().ping()


def test_an_error_while_healing_does_not_replace_the_cell_s_own(lab, store, capsys):
    with pytest.raises(ZeroDivisionError), lab.run("raises"):
        lab.pause(store)
        os.kill(store.pid, 9)
        lab.until("the keeper saw it go", lambda: not lab._session.ask("poll", pid=store.pid)["alive"])
        raise ZeroDivisionError
    assert (
        f"(frozen of {store.name} could not be healed: {store.name} is not running any more." in capsys.readouterr().out
    )
    lab.restart(store, data="lost")
    assert store.client().ping() and not lab._faults


def test_faults_outside_of_a_run_stay_and_are_shown_in_the_next(lab, store):
    lab.pause(store)
    assert state(store.pid) == "T"
    with lab.run("frozen before") as e:
        assert faults(e, store.name) == [("frozen", "open")]
    assert faults(e, store.name) == [("frozen", "ended")] and store.client().ping()
