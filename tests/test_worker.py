import os
import random
import signal
import socket
import sys
import threading
import time

import cloudpickle
import pytest
import redis
from kernels import Kernel, alive, eventually, state

from labkit import Lab, LabError, WaitError, WorkerError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are


@pytest.fixture(scope="module")
def lab():
    """One lab for all: whatever goes wrong in a worker, the lab stays usable."""
    with Lab("workers") as lab:
        yield lab


@pytest.fixture
def run(lab):
    with lab.run("a test") as e:
        yield e


def three_lines(error) -> bool:
    return len(str(error.value).splitlines()) == 3


def steps(w, *names):
    for name in names:
        w.mark(name)
    return "the end"


def works(w):
    w.mark("here")
    while True:
        w.work(0.001)


# -- results


def test_its_result_comes_back(lab, run):
    def computes(w, a, *, b):
        return {"sum": a + b, "name": w.name, "pid": os.getpid()}

    a = lab.worker("A", computes, 1, b=2)
    assert a.state == "new"
    assert a.join() == {"sum": 3, "name": "A", "pid": a.pid}
    assert a.pid not in (os.getpid(), lab._session.keeper_pid)
    assert a.join() == {"sum": 3, "name": "A", "pid": a.pid} and a.state == "done"


def test_a_worker_that_is_not_started_does_nothing(lab, run):
    lab.worker("A", steps, "one")
    lab.worker("B", steps, "two").join()
    assert not run.timeline.marks("one") and run.timeline.marks("two")


def test_twenty_megabytes_there_and_back(lab, run):
    blob = os.urandom(20_000_000)
    assert lab.worker("A", lambda w, blob: blob[::-1], blob).join() == blob[::-1]


def test_fifty_workers(lab, run):
    workers = [lab.worker(f"W{n}", lambda w, n: (os.getpid(), n), n) for n in range(50)]
    for worker in workers:
        worker.start()
    assert [worker.join() for worker in workers] == [(worker.pid, n) for n, worker in enumerate(workers)]
    assert len({worker.pid for worker in workers}) == 50


def test_random_is_seeded_by_the_lab_and_the_name():
    def throws(w):
        return [random.random() for _ in range(3)]

    def numbers(seed):
        with Lab("dice", seed=seed) as lab, lab.run("throws"):
            return [lab.worker(name, throws).join() for name in "AB"]

    first = numbers(7)
    assert first == numbers(7) and first != numbers(8) and first[0] != first[1]


def test_its_names_may_be_words_of_any_language(lab, run):
    store = lab.redis()

    def knows(w, store):
        w.mark("here")
        print("printed")
        return w.client(store).client_getname()

    for name, known in (("A", "A"), ("a slow one", None), ("Ålesund 研究", None), ("n" * 300, "n" * 300), ("..", "..")):
        worker = lab.worker(name, knows, store)
        assert worker.join() == known and worker.output == "printed\n"


@pytest.mark.parametrize("name", ["", "·A", "a/b", "lab"])
def test_names_that_it_cannot_have(lab, run, name):
    with pytest.raises(LabError, match="cannot be named") as told:
        lab.worker(name, steps)
    assert three_lines(told)


def test_two_of_one_name_in_one_run(lab, run):
    lab.worker("A", steps)
    with pytest.raises(LabError, match="cannot be named 'A'"):
        lab.worker("A", steps)
    store = lab.redis()
    with pytest.raises(LabError, match=f"cannot be named '{store.name}'"):
        lab.worker(store.name, steps)


def test_outside_of_a_run(lab):
    with pytest.raises(LabError, match="no run going on") as told:
        lab.worker("A", steps)
    assert three_lines(told) and "with lab.run(" in told.value.todo


# -- what it prints


def test_what_it_prints_comes_once_with_its_name(lab, run, capsys):
    def prints(w):
        print("first", "ä", "\ud800")
        print("second\nthird", file=sys.stderr)
        os.system("echo from a child")
        print("no end of line", end="")

    a = lab.worker("A", prints)
    a.join()
    a.join()
    assert capsys.readouterr().out.splitlines() == [
        "A | first ä ?", "A | second", "A | third", "A | from a child", "A | no end of line",
    ]  # fmt: skip
    assert a.output.startswith("first")


def test_output_so_far(lab, run):
    def prints(w):
        print("before")
        w.mark("here")
        print("after")

    a = lab.worker("A", prints).run_to("here")
    assert a.output == "before\n"
    a.join()
    assert a.output == "before\nafter\n"


def test_what_a_killed_worker_printed_is_shown(lab, run, capsys):
    def prints(w):
        print("last words")
        works(w)

    a = lab.worker("A", prints).run_to("here")
    lab.kill(a)
    for _ in range(2):
        with pytest.raises(WorkerError):
            a.join()
    assert capsys.readouterr().out.splitlines() == ["A | last words"]


def test_the_next_run_s_worker_of_that_name_has_an_output_of_its_own(lab, capsys):
    def prints(w, what):
        print(what)

    with lab.run("first"):
        first = lab.worker("A", prints, "old")
        first.join()
    with lab.run("second"):
        lab.worker("A", prints, "new").join()
    assert first.output == "old\n"
    assert capsys.readouterr().out.splitlines() == ["A | old", "A | new"]


# -- marks


def test_it_is_held_where_it_was_told_to(lab, run):
    a = lab.worker("A", steps, "one", "two", "three").run_to("two")
    assert (a.state, repr(a)) == ("at 'two'", f"A pid {a.pid} at 'two'")
    assert [m.name for m in run.timeline.marks()] == ["one", "two"]
    assert a.run_to("three").state == "at 'three'"
    assert a.join() == "the end" and repr(a) == f"A pid {a.pid} done"


def test_it_is_held_at_the_start_of_a_span_too(lab, run):
    def spans(w):
        with w.span("holds", lock="lock"):
            w.mark("in it")

    a = lab.worker("A", spans).run_to("holds")
    assert [s.how for s in run.timeline.spans("holds")] == ["open"] and not run.timeline.marks("in it")
    a.join()


def test_it_passes_a_mark_more_than_once(lab, run):
    def rounds(w):
        for number in range(3):
            w.mark("round", number=number)

    a = lab.worker("A", rounds)
    for number in range(3):
        a.run_to("round")
        assert [m.data["number"] for m in run.timeline.marks("round")] == list(range(number + 1))
    a.join()


def test_started_it_runs_by_itself(lab, run):
    a = lab.worker("A", steps, "one", "two").run_to("one").start()
    lab.until("two", lambda: run.timeline.marks("two"))
    assert a.join() == "the end"


def test_a_mark_it_never_reaches(lab, run):
    a = lab.worker("A", steps, "one")
    with pytest.raises(WaitError, match="A ended without reaching 'tow': it is done") as told:
        a.run_to("tow")
    assert three_lines(told)
    with pytest.raises(WaitError, match="A ended without reaching 'one'"):
        a.run_to("one")
    assert a.join() == "the end"


def test_a_mark_it_does_not_reach_in_time_and_later_does(lab, run):
    def waits(w, store):
        w.client(store, timeout_s=60).blpop("go", 60)
        return steps(w, "late", "later")

    store = lab.redis()
    a = lab.worker("A", waits, store)
    with pytest.raises(WaitError, match="A did not reach 'late' within 0.05 s; it is running") as told:
        a.run_to("late", timeout_s=0.05)
    assert three_lines(told) and "timeout_s=0.15" in told.value.todo
    store.client().rpush("go", "now")
    assert a.run_to("later").state == "at 'later'", "past the mark that nobody waits for any more"
    assert a.join() == "the end"


def test_it_ends_after_a_wait_that_was_given_up(lab, run):
    def waits(w, store):
        w.client(store, timeout_s=60).blpop("go", 60)
        return steps(w, "late")

    store = lab.redis()
    a = lab.worker("A", waits, store)
    for wait in (lambda: a.run_to("late", timeout_s=0.05), lambda: a.join(timeout_s=0.05)):
        with pytest.raises(WaitError):
            wait()
    store.client().rpush("go", "now")
    assert a.join() == "the end"


def test_one_that_raises_before_the_mark(lab, run):
    def fails(w):
        raise ValueError("two\nlines")

    a = lab.worker("A", fails)
    with pytest.raises(WaitError, match="without reaching 'one': it raised ValueError: two") as told:
        a.run_to("one")
    assert three_lines(told)
    with pytest.raises(ValueError):
        a.join()


# -- what it raises


def test_a_builtin_error_comes_back_as_itself_each_time(lab, run):
    def fails(w):
        raise KeyError("no such key")

    a = lab.worker("A", fails)
    for _ in range(3):
        with pytest.raises(KeyError, match="no such key") as told:
            a.join()
        [note] = told.value.__notes__
        assert note.startswith("(raised in worker A)\n") and 'raise KeyError("no such key")' in note
        assert len(told.traceback) < 6, "each join shows its own lines only"
    assert run.timeline.marks("raised KeyError", "A")


class Refused(Exception):
    def __init__(self, token, *, by):
        super().__init__(f"{token} refused")
        self.token, self.by = token, by

    def __reduce__(self):
        return lambda token, by: Refused(token, by=by), (self.token, self.by)


def test_an_error_of_the_notebook_s_own_class_comes_back_as_itself(lab, run):
    def fails(w):
        raise Refused(7, by="store")

    with pytest.raises(Refused) as told:
        lab.worker("A", fails).join()
    assert (told.value.token, told.value.by) == (7, "store")


def test_an_error_of_a_library_comes_back_as_itself(lab, run):
    store = lab.redis()

    def fails(w, store):
        r = w.client(store)
        r.set("k", "v")
        r.lpush("k", 1)

    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        lab.worker("A", fails, store).join()


class CannotBeMadeAgain(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Holds(Exception):
    def __init__(self):
        super().__init__("it holds a lock", threading.Lock())


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "make, what",
    [
        (lambda: CannotBeMadeAgain(1, 2), "A raised CannotBeMadeAgain: 1 and 2"),
        (lambda: Holds(), "A raised Holds: "),
        (lambda: SystemExit(3), "A raised SystemExit: 3"),
        (lambda: KeyboardInterrupt(), "A raised KeyboardInterrupt"),
        (lambda: GeneratorExit(), "A raised GeneratorExit"),
    ],
    ids=["cannot be made again", "cannot be pickled", "SystemExit", "KeyboardInterrupt", "GeneratorExit"],
)
def test_what_cannot_come_back_as_itself_is_told_in_words(lab, run, make, what):
    def fails(w):
        raise make()

    a = lab.worker("A", fails)
    with pytest.raises(WorkerError) as told:
        a.join()
    assert told.value.what.startswith(what) and three_lines(told)
    assert "raise make()" in told.value.__notes__[0]
    assert a.state == "raised"


def test_an_error_that_cannot_tell_its_own_text(lab, run):
    def fails(w):
        raise Mute

    with pytest.raises(Mute):
        lab.worker("A", fails).join()


class Trap:
    """Raises when it is made again, where it was told to."""

    def __init__(self, pid=0):
        self.pid = pid

    def __setstate__(self, known):
        self.__dict__ = known
        if os.getpid() != self.pid:
            raise RuntimeError("the trap has snapped")


def test_an_argument_that_cannot_be_made_again_in_the_worker(lab, run):
    a = lab.worker("A", lambda w, trap: None, Trap(os.getpid()))
    with pytest.raises(RuntimeError, match="the trap has snapped") as told:
        a.join()
    assert told.value.__notes__[0].startswith("(raised in worker A)")


def test_a_result_that_cannot_be_made_again_here(lab, run):
    a = lab.worker("A", lambda w: Trap(os.getpid()))
    for _ in range(2):
        with pytest.raises(WorkerError, match="cannot be made again here: RuntimeError: the trap has snapped") as told:
            a.join()
        assert three_lines(told)


def test_a_result_that_cannot_leave_the_worker(lab, run):
    for result in (lambda w: w, lambda w: threading.Lock()):
        with pytest.raises(TypeError):
            lab.worker(f"W{id(result)}", result).join()


def test_a_function_that_cannot_be_shipped(lab, run):
    sock, lock = socket.socket(), threading.Lock()

    def uses_the_lab(w):
        return lab.nodes

    def uses_a_socket(w):
        return sock.recv(1)

    def uses_a_lock(w):
        return lock.locked()

    with sock:
        for function in (uses_the_lab, uses_a_socket, uses_a_lock):
            with pytest.raises(LabError, match=f"{function.__name__} cannot be shipped to a worker") as told:
                lab.worker("A", function)
            assert three_lines(told) and "w.client(store)" in told.value.todo
    assert lab.worker("A", steps).join() == "the end", "the name is free, and the lab stays usable"


def test_the_wrong_number_of_arguments(lab, run):
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'store'"):
        lab.worker("A", lambda w, store: None).join()


NOTEBOOK = '''
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from labkit import Lab\\nlab = Lab('cells')\\nclass Lost(Exception): pass")
shell.run_cell("""def holds(w):
    with w.span("holds"):
        loses(w)

def loses(w):
    raise Lost("the lock")  # this line
""", store_history=True)
shell.run_cell("""with lab.run('loses') as e:
    a = lab.worker('A', holds)
    try:
        a.join()
    except Lost as error:
        print(type(error) is Lost, error, *error.__notes__, sep='|')
    b = lab.worker('B', lambda w: 1 / 0)
    b.join()
""", store_history=True)
shell.run_cell("lab.close()")
'''


def test_a_traceback_tells_the_notebook_s_own_lines():
    with Kernel(NOTEBOOK) as kernel:
        first = [kernel.line() for _ in range(5)]
        rest = kernel.end()
    assert first[0] == "True|the lock|(raised in worker A)"
    assert first[1].startswith("  Cell In[1], line 3, in holds") and first[2] == "    loses(w)"
    assert first[3].startswith("  Cell In[1], line 6, in loses")
    assert first[4] == '    raise Lost("the lock")  # this line'
    assert "ZeroDivisionError" in rest and "(raised in worker B)" in rest and "Cell In[2], line 7" in rest


# -- freezing


def counts(w, path):
    """A watchdog thread and the worker's own loop, which write as fast as they can."""
    ticks = [0, 0]

    def watchdog():
        while True:
            ticks[0] += 1
            w.note("tick")
            time.sleep(0.0005)

    threading.Thread(target=watchdog, daemon=True).start()
    w.mark("here")
    with open(path, "a", buffering=1) as file:
        while True:
            ticks[1] += 1
            file.write(f"{ticks[0]} {ticks[1]}\n")
            time.sleep(0.0005)


def test_a_frozen_worker_stands_still_with_all_its_threads(lab, run, tmp_path):
    path = tmp_path / "ticks"
    a = lab.worker("A", counts, str(path)).run_to("here").start()
    for _ in range(3):
        eventually(lambda: path.exists() and path.stat().st_size > 100, "it works")
        lab.pause(a)
        assert {state(f"{a.pid}/task/{thread}") for thread in os.listdir(f"/proc/{a.pid}/task")} == {"T"}
        size, ticks = path.stat().st_size, len(run.timeline.marks("tick"))
        lab.let_pass(0.05)  # it would write a hundred lines meanwhile
        assert (path.stat().st_size, len(run.timeline.marks("tick"))) == (size, ticks)
        assert repr(a) == f"A pid {a.pid} frozen"
        lab.resume(a)
        lab.until("the watchdog goes on", lambda t=ticks: len(run.timeline.marks("tick")) > t)
        path.write_text("")
    frozen = run.timeline.spans("frozen", "A")
    assert len(frozen) == 3 and all(span.how == "ended" for span in frozen)
    for span in frozen:
        assert not [m for m in run.timeline.marks("tick") if span.start < m.t < span.end]


def test_frozen_at_a_mark_and_goes_on_when_it_wakes(lab, run):
    a = lab.worker("A", steps, "one", "two")
    lab.pause(a, at="one")
    assert repr(a) == f"A pid {a.pid} frozen at 'one'" and state(a.pid) == "T"
    lab.resume(a)
    lab.until("two", lambda: run.timeline.marks("two"))
    assert a.join() == "the end"


def test_frozen_while_it_is_held_at_a_mark(lab, run):
    a = lab.worker("A", steps, "one", "two").run_to("one")
    lab.pause(a)
    assert repr(a) == f"A pid {a.pid} frozen at 'one'"
    lab.resume(a)
    assert a.join() == "the end"


def test_frozen_before_it_was_started(lab, run):
    a = lab.worker("A", steps, "one")
    lab.pause(a)
    with pytest.raises(WaitError, match="It is frozen: nobody woke it"):
        a.run_to("one", timeout_s=0.05)
    lab.resume(a)
    assert a.join() == "the end"


def test_it_sleeps_on_when_it_is_woken_before_it_starts(lab, run):
    a = lab.worker("A", steps, "one")
    lab.pause(a)
    lab.resume(a)
    assert a.state == "new" and not run.timeline.marks("one")
    assert a.run_to("one").state == "at 'one'"


def test_joining_a_frozen_one_says_so(lab, run):
    a = lab.worker("A", steps, "one")
    lab.pause(a, at="one")
    with pytest.raises(WaitError, match="A did not end within 0.05 s; it is frozen") as told:
        a.join(timeout_s=0.05)
    assert three_lines(told) and "nobody woke it" in told.value.why
    lab.resume(a)
    assert a.join() == "the end"


def test_a_big_argument_for_a_frozen_one_has_a_bound_too(lab, run, monkeypatch):
    monkeypatch.setattr("labkit.worker._TAKES_S", 0.1)
    blob = os.urandom(5_000_000)
    a = lab.worker("A", lambda w, blob: blob, blob)
    lab.pause(a)
    with pytest.raises(WaitError, match="A did not take what it was sent within 0.1 s"):
        a.start()
    lab.resume(a)
    assert a.join() == blob


def test_pausing_twice_and_resuming_what_is_not_paused(lab, run):
    a = lab.worker("A", works).run_to("here")
    with pytest.raises(LabError, match="A is not frozen") as told:
        lab.resume(a)
    assert three_lines(told) and "at 'here'" in told.value.why
    lab.pause(a)
    for again in (lambda: lab.pause(a), lambda: lab.pause(a, at="never")):
        with pytest.raises(LabError, match="A is frozen already") as told:
            again()
        assert three_lines(told)
    lab.resume(a)
    with pytest.raises(LabError, match="A is not frozen"):
        lab.resume(a)


# -- killing


def test_killed_while_it_is_waited_for(lab, run):
    a = lab.worker("A", works).run_to("here")
    threading.Timer(0.05, os.kill, (a.pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerError, match=rf"A was killed \(pid {a.pid}\)") as told:
        a.join()
    assert three_lines(told) and a.state == "killed"
    for _ in range(2):
        with pytest.raises(WorkerError, match="A was killed"):
            a.join()
    with pytest.raises(WorkerError, match="A was killed"):
        a.run_to("never")


def test_killed_by_a_verb(lab, run):
    a = lab.worker("A", works).run_to("here").start()
    lab.kill(a)
    assert not alive(a.pid) and state(a.pid) == "", "reaped"
    assert a.state == "killed" and run.timeline.marks("killed", "A")
    with pytest.raises(WorkerError, match="A was killed"):
        a.join()


def test_killed_while_frozen(lab, run):
    a = lab.worker("A", works)
    lab.pause(a, at="here")
    lab.kill(a)
    assert state(a.pid) == "" and repr(a) == f"A pid {a.pid} killed"
    [frozen] = run.timeline.spans("frozen", "A")
    assert frozen.how == "ended" and frozen.end <= run.timeline.marks("killed", "A")[0].t
    with pytest.raises(LabError, match="A is not frozen"):
        lab.resume(a)


def test_killed_in_the_middle_of_a_span(lab, run):
    def holds(w):
        with w.span("holds"):
            works(w)

    a = lab.worker("A", holds).run_to("here")
    lab.kill(a)
    [span] = run.timeline.spans("holds")
    assert (span.how, span.outcome) == ("died", "unknown")


@pytest.mark.parametrize("verb", ["pause", "kill"])
def test_one_that_has_come_to_its_end_cannot_be_touched(lab, run, verb):
    a = lab.worker("A", steps)
    a.join()
    b = lab.worker("B", steps).start()  # done as well, and nobody has joined it
    eventually(lambda: state(b.pid) == "", "the keeper saw B's process end")
    lab.kill(c := lab.worker("C", works).run_to("here"))
    for worker, how in ((a, "done"), (b, "done"), (c, "killed")):
        with pytest.raises(LabError, match=rf"{worker.name} has come to its end already \({how}\)") as told:
            getattr(lab, verb)(worker)
        assert three_lines(told)
    assert not run.timeline.marks("killed", "A") and not run.timeline.marks("killed", "B")
    assert b.join() == "the end"


def test_one_that_was_killed_from_outside_is_noticed_by_the_next_verb(lab, run):
    for name, verb in (
        ("A", lab.pause),
        ("B", lab.kill),
        ("C", lambda w: w.run_to("here")),
        ("D", lambda w: w.start()),
    ):
        worker = lab.worker(name, works)
        os.kill(worker.pid, signal.SIGKILL)
        eventually(lambda w=worker: state(w.pid) == "", "it is reaped")
        with pytest.raises(LabError) as told:
            verb(worker)
        assert three_lines(told) and worker.state == "killed"


def test_a_run_that_is_left_ends_its_workers(lab):
    with lab.run("left"):
        workers = [lab.worker(name, works) for name in "ABC"]
        lab.pause(workers[0], at="here")
        workers[1].run_to("here").start()
    assert not any(alive(worker.pid) for worker in workers)
    with pytest.raises(WorkerError, match="The end of its run or a fault did it"):
        workers[1].join()


def test_the_result_of_a_worker_that_ended_by_itself_outlives_the_run(lab):
    with lab.run("left"):
        a = lab.worker("A", steps).start()
        eventually(lambda: not alive(a.pid), "it has ended")
    assert a.join() == "the end"
