import os
import resource
import sys
import threading
import time

import cloudpickle
import pytest
from kernels import Kernel, alive, eventually, gone, processes_of

from labkit import Lab, LabError, Timeline, WaitError, servers

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def lab():
    with Lab("labs") as lab:
        yield lab


@pytest.fixture
def store(lab):
    return lab.redis()


def three_lines(error) -> bool:
    return len(str(error.value).splitlines()) == 3


def steps(w, *names):
    for name in names:
        w.mark(name)
    return w.name


def works(w):
    w.mark("here")
    while True:
        w.work(0.001)


# -- one lab


def test_what_it_shows(capsys):
    with Lab("shows") as lab:
        assert repr(lab) == "Lab(shows, local, 0 nodes)"
        lab.redis()
        assert repr(lab) == "Lab(shows, local, 1 node)"
        lab.redis(n=2)
        assert repr(lab) == "Lab(shows, local, 3 nodes)"
    assert repr(lab) == "Lab(shows, local, 3 nodes, closed)"
    assert capsys.readouterr().out.startswith("Lab shows: local processes, ready in ")


def test_one_of_the_same_name_closes_the_earlier(capsys):
    first = Lab("twins")
    store, folder = first.redis(), first._session.folder
    with first.run("still going on") as e:
        a = first.worker("A", works).run_to("here")
        with Lab("twins") as second, Lab("another"):
            assert "(the earlier lab 'twins' was closed)" in capsys.readouterr().out
            assert first.closed and not second.closed
            assert gone(folder, [store.pid, a.pid, first._session.keeper_pid])
            assert second.redis().client().ping()
            first.close()
            assert not second.closed, "closing the earlier one again does not touch the later one"
    assert [m.name for m in e.timeline.marks()] == ["here"], "its record stays"


def test_a_closed_lab_says_so_whatever_is_asked_of_it(lab):
    closed = Lab("closed")
    store = closed.redis()
    run = closed.run("was")
    with run:
        a, b = closed.worker("A", steps, "one"), closed.worker("B", steps)
        a.join()
    closed.close()
    closed.close()
    for verb in (
        lambda: closed.redis(),
        lambda: closed.run("new"),
        lambda: run.open(),
        lambda: closed.worker("C", steps),
        lambda: closed.watch(store, "lock"),
        lambda: closed.pause(store),
        lambda: closed.resume(store),
        lambda: closed.kill(store),
        lambda: closed.restart(store, data="kept"),
        lambda: closed.cut("A", store),
        lambda: closed.heal("A"),
        lambda: closed.delay("A", store, 5),
        lambda: closed.until("never", lambda: False),
        lambda: closed.wait_gone(store, "lock"),
        lambda: closed.let_pass(0.1),
        lambda: b.start() if b.state == "new" else b.join(),
        lambda: a.join(),
    ):
        with pytest.raises(LabError, match="The lab 'closed' is closed") as told:
            verb()
        assert three_lines(told) and 'lab = Lab("closed", ...)' in told.value.todo
    assert store.state == "closed" and closed.timeline.marks("one") and len(run.timeline.marks("one")) == 1
    assert lab.redis().client().ping(), "other labs go on"


def test_the_seed_and_the_name_are_told(lab):
    assert (lab.name, lab.seed, lab.closed) == ("labs", 7, False)


# -- runs


def test_each_run_has_a_stretch_of_the_record_that_starts_at_0(lab):
    with lab.run("first") as first:
        lab.worker("A", steps, "one").join()
    with lab.run("second") as second:
        lab.worker("A", steps, "two", "three").join()
    assert [m.name for m in first.timeline.marks()] == ["one"]
    assert [m.name for m in second.timeline.marks()] == ["two", "three"]
    assert first.timeline.events[0].t == second.timeline.events[0].t == 0
    assert (first.timeline.title, second.timeline.workers) == ("first", ("A",))
    assert first.timeline is first.timeline, "frozen"
    assert {"one", "two"} <= {m.name for m in lab.timeline.marks()}
    assert repr(first) == f"Run(first, {len(first.timeline.events)} events, {first.timeline.seconds:.1f} s)"


def test_the_record_can_be_looked_at_while_it_grows(lab):
    e = lab.run("grows")
    assert e.timeline == Timeline(title="grows")
    with e:
        a = lab.worker("A", steps, "one", "two").run_to("one")
        assert [m.name for m in e.timeline.marks()] == ["one"] and ", going on)" in repr(e)
        a.join()
        assert [m.name for m in e.timeline.marks()] == ["one", "two"]


def test_a_run_over_several_cells(lab):
    e = lab.run("by hand").open()
    a = lab.worker("A", works).run_to("here")
    assert lab.run_now is e
    e.close()
    e.close()
    assert lab.run_now is None and not alive(a.pid)


def test_a_run_that_is_opened_again_begins_anew(lab):
    e = lab.run("again").open()
    lab.worker("A", steps, "one").join()
    for close in (e.close, lambda: None):
        close()
        e.open()
        lab.worker("A", steps, "two").join()
        assert [m.name for m in e.timeline.marks()] == ["two"]
    e.close()


def test_a_new_run_ends_the_one_that_was_still_going_on(lab, capsys):
    lab.run("forgotten").open()
    a = lab.worker("A", works).run_to("here")
    with lab.run("next"):
        assert not alive(a.pid)
        assert "(the run 'forgotten' was still going on and was ended)" in capsys.readouterr().out
        assert lab.worker("A", steps).join() == "A"


def test_a_cell_that_fails_can_be_run_again(lab, store):
    def cell(fails):
        with lab.run("a cell") as e:
            a, b = lab.worker("A", works), lab.worker("B", works)
            lab.watch(store, "lock")
            lab.pause(a, at="here")
            lab.cut(b, store)
            assert not fails
            lab.resume(a)
            lab.heal(b, store)
            assert lab.worker("C", steps, "done").join() == "C"
        return e

    for _ in range(3):
        with pytest.raises(AssertionError):
            cell(fails=True)
    assert [m.name for m in cell(fails=False).timeline.marks("done")] == ["done"]
    assert not lab._faults


def test_a_run_of_a_lab_that_is_closed_within_it(capsys):
    lab = Lab("closed within")
    with lab.run("closes") as e:
        a = lab.worker("A", works).run_to("here")
        lab.close()
    assert not alive(a.pid) and e.timeline.marks("here")


# -- waiting


def test_until_comes_true(lab):
    looks = []
    lab.until("five looks", lambda: looks.append(1) or len(looks) == 5)
    assert len(looks) == 5 and any(e.name == "five looks" and e.kind == "note" for e in lab.timeline.events)


def test_until_has_a_bound(lab):
    with pytest.raises(WaitError, match="Not so within 0.05 s: pigs fly") as told:
        lab.until("pigs fly", lambda: False, timeout_s=0.05)
    assert three_lines(told) and "raised" not in told.value.why


def test_until_takes_a_server_s_error_for_not_yet(lab, store):
    lab.kill(store)
    with pytest.raises(WaitError) as told:
        lab.until("it answers", store.client().ping, timeout_s=0.05)
    assert "The last look raised ConnectionError: " in told.value.why and three_lines(told)
    threading.Timer(0.05, lambda: lab.restart(store, data="lost")).start()
    lab.until("it answers again", store.client().ping)


@pytest.mark.parametrize(
    "condition, error",
    [
        (lambda: no_such_name, NameError),  # noqa: F821
        (lambda: None.nothing, AttributeError),
        (lambda: len(3), TypeError),
        (lambda: Lab("x", driver="none"), LabError),
    ],
    ids=["NameError", "AttributeError", "TypeError", "LabError"],
)
def test_until_does_not_wait_for_a_mistake_to_go_away(lab, condition, error):
    with pytest.raises(error):
        lab.until("never", condition, timeout_s=60)


@pytest.mark.parametrize(
    "key, how",
    [("lock", "expires"), ("lock", "is deleted"), ("lock", "is replaced"), ("list", "expires"), ("list", "is deleted")],
)
def test_wait_gone(lab, store, key, how):
    r = store.client()
    if key == "lock":
        r.set(key, "A", px=60_000)
    else:
        r.rpush(key, "A")
        r.pexpire(key, 60_000)
    begun = []

    def once_it_waits():
        eventually(lambda: r.info("commandstats").get("cmdstat_pttl", {}).get("calls", 0) >= 3, "it looks again", 10)
        begun.append(r.exists(key))
        if how == "expires":
            r.pexpire(key, 1)
        elif how == "is deleted":
            r.delete(key)
        else:
            r.set(key, "B", px=60_000)

    thread = threading.Thread(target=once_it_waits)
    thread.start()
    lab.wait_gone(store, key)
    thread.join()
    assert begun == [1], "it waited while the key was there"
    assert r.get(key) == "B" if how == "is replaced" else not r.exists(key)


def test_wait_gone_of_what_will_not_go(lab, store):
    r = store.client()
    with pytest.raises(LabError, match=f"There is no 'lock' on {store.name} to wait for") as told:
        lab.wait_gone(store, "lock")
    assert three_lines(told)
    r.set("lock", "A")
    r.rpush("ledger", "A")
    for key in ("lock", "ledger"):
        with pytest.raises(LabError, match=f"'{key}' on {store.name} has no TTL") as told:
            lab.wait_gone(store, key)
        assert three_lines(told)


def test_wait_gone_has_a_bound_its_ttl_and_two_seconds(lab, store, monkeypatch):
    r = store.client()
    r.set("lock", "A", px=60_000)
    server = servers.of("redis")
    look = server.lease

    def a_short_lease(client, key):
        value, _ = look(client, key)
        return value, 0.1

    monkeypatch.setattr(server, "lease", a_short_lease)
    start = time.monotonic()
    with pytest.raises(WaitError, match="Not so within 2.1 s: lock is gone"):
        lab.wait_gone(store, "lock")
    assert time.monotonic() - start >= 2.1


def test_let_pass_is_told_in_the_record(lab):
    with lab.run("waits") as e:
        lab.let_pass(0.01)
    assert [x.name for x in e.timeline.events if "pass" in x.name] == ["0.01 s pass"]


# -- crashes, limits


def test_a_lab_whose_keeper_was_killed_and_a_new_one(capsys):
    lab = Lab("broken")
    store = lab.redis()
    with lab.run("breaks"):
        a = lab.worker("A", works).run_to("here")
        os.kill(lab._session.keeper_pid, 9)
        for verb in (lab.redis, lambda: lab.pause(a), lambda: lab.worker("B", works), lambda: lab.cut(a, store)):
            with pytest.raises(LabError) as told:
                verb()
            assert three_lines(told)
    with Lab("broken") as again, again.run("works") as e:
        assert again.redis().client().ping() and again.worker("A", steps, "one").join() == "A"
        assert e.timeline.marks("one")
    assert not processes_of(lab._session.folder) and not lab._session.folder.exists()


LIMITED = """
    import resource, sys
    from labkit import Lab, LabError

    def writes_much(w):
        for number in range(10_000):
            w.mark("line", text="x" * 1000)

    def prints_much(w):
        for number in range(10_000):
            print("x" * 1000)

    lab = Lab("limited")
    store = lab.redis()
    with lab.run("too much") as e:
        for name, function in (("A", prints_much), ("B", writes_much)):
            try:
                lab.worker(name, function).join()
            except Exception as error:
                print(type(error).__name__, str(error).splitlines()[0], len(str(error).splitlines()), sep="|")
    print(store.client().ping(), len(e.timeline.marks("line")) > 100)
    lab.close()
    with Lab("limited") as again, again.run("small") as e:
        print(again.worker("A", lambda w: w.mark("one")).join(), len(e.timeline.marks()))
"""


def test_a_limit_on_file_sizes():
    """The record and what a worker prints are cut off; the server, which writes little, is not hit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        kernel = Kernel(LIMITED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with kernel:
        while (line := kernel.line()).startswith("A | xxx"):
            pass
        assert line == "OSError|[Errno 27] File too large|1"
        line = kernel.line()
        assert line.startswith("LabError|The record could not be written: ") and line.endswith("|3")
        assert kernel.line() == "True True"
        assert kernel.line() == "None 1"
        kernel.end()


def test_a_server_that_hits_the_limit_is_told():
    code = """
        from labkit import Lab, LabError
        lab = Lab("limited")
        store = lab.redis(config={"appendonly": "yes", "appendfsync": "always"})
        try:
            for number in range(1000):
                store.client().set(number, "x" * 10_000)
        except Exception as error:
            print(type(error).__name__)
        try:
            lab.pause(store)
            print(store.client().ping())
        except LabError as error:
            print(len(str(error).splitlines()), error.what)
        lab.close()
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        kernel = Kernel(code)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with kernel:
        assert kernel.line() == "ConnectionError"
        assert kernel.line() == "3 redis-1 is not running any more."
        kernel.end()


def test_two_threads_use_one_lab(lab, store):
    """The panel's verbs come from another thread than the cell's."""
    errors = []

    def presses():
        try:
            for _ in range(30):
                lab.pause(store)
                lab.resume(store)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=presses)
    with lab.run("two threads"):
        thread.start()
        results = [lab.worker(f"W{n}", steps, "one").join() for n in range(15)]
        thread.join(60)
    assert not errors and results == [f"W{n}" for n in range(15)]
    assert store.client().ping()


# -- the whole story


def transfer(w, store):
    r = w.client(store)
    while not r.set("lock", w.name, nx=True, px=1500):
        w.work(0.002)
    with w.span("holds", lock="lock"):
        assert r.get("lock") == w.name
        w.mark("checked")
        r.rpush("ledger", w.name)
        w.mark("wrote")
    return r.eval("return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1]) or 0", 1, "lock", w.name)


def test_a_freeze_past_the_lease_lets_two_in(lab, store):
    """What the course begins with, on a real server: A holds, sleeps, B holds, A wakes and writes over B."""
    with lab.run("A sleeps through its lease") as e:
        a, b = lab.worker("A", transfer, store), lab.worker("B", transfer, store)
        lab.watch(store, "lock")
        lab.pause(a, at="checked")
        lab.wait_gone(store, "lock")
        b.run_to("wrote")
        lab.resume(a)
        lab.until("A wrote", lambda: store.client().llen("ledger") == 2)
        released = a.join(), b.join()
    assert store.client().lrange("ledger", 0, -1) == ["B", "A"]
    assert released[0] == 0
    holds = {span.lane: span for span in e.timeline.spans("holds")}
    assert holds["B"].start < holds["A"].end and holds["A"].start < holds["B"].end
