import contextlib
import json
import os
import random
import signal
import sys
import threading
import time

import cloudpickle
import pytest
from kernels import Kernel, alive, eventually, gone, processes_of, state

from labkit import Lab, LabError, WorkerError
from labkit.processes import descendants

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BUSY = """
    import json, os, sys
    from labkit import Lab

    def works(w):
        w.mark(f"pid {os.getpid()}")
        w.mark("here")
        while True:
            w.mark("goes on")
            w.work(0.001)

    def daemon(w):
        import subprocess
        inner = [
            "import os, time", "if os.fork(): os._exit(0)", "os.setsid()", "if os.fork(): os._exit(0)",
            "print(os.getpid(), flush=True)", "time.sleep(600)",
        ]
        child = subprocess.Popen([sys.executable, "-c", "\\n".join(inner)], stdout=subprocess.PIPE, text=True)
        w.mark(f"pid {child.stdout.readline().strip()}")
        works(w)

    lab = Lab("busy")
    awake, frozen = lab.redis(n=2)
    pids = [node.client().info("server")["process_id"] for node in (awake, frozen)]
    e = lab.run("busy").open()
    runs, stands, deep, new = (lab.worker(n, f) for n, f in [("A", works), ("B", works), ("C", daemon), ("D", works)])
    lab.watch(awake, "lock")
    runs.run_to("here").start()
    deep.run_to("here").start()
    lab.pause(stands, at="here")
    lab.pause(frozen)
    pids += [int(m.name.split()[1]) for m in e.timeline.marks() if m.name.startswith("pid ")]
    assert len(pids) == 6 and stands.pid in pids and runs.pid in pids
    pids += [new.pid, lab._session.keeper_pid, e.workers["·1"].pid]
    print(json.dumps([str(lab._session.folder), pids]), flush=True)
    input()
"""


@pytest.fixture(scope="module")
def lab():
    with Lab("keeper") as lab:
        yield lab


def works(w):
    w.mark("here")
    while True:
        w.work(0.001)


def says_its_pid(w, *more):
    return (os.getpid(), *more)


def leaves_a_daemon(w, folder):
    """A grandchild that detached itself in every way: its parent is gone, its session its own."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            with open(f"{folder}/daemon", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    os.wait()
    works(w)


def pid_in(path) -> int:
    return eventually(lambda: path.exists() and int(path.read_text() or 0), "the daemon is there")


# -- the kernel dies


@pytest.mark.parametrize("round", [*range(5), *(pytest.param(n, marks=pytest.mark.long) for n in range(5, 50))])
def test_kill_9_of_the_kernel_leaves_nothing(round):
    """Twenty kernels, four at a time, with servers and workers busy, frozen, held, watching, and a daemon."""
    with contextlib.ExitStack() as stack:
        kernels = [stack.enter_context(Kernel(BUSY)) for _ in range(4)]
        labs = [json.loads(kernel.line()) for kernel in kernels]
        for folder, pids in labs:
            assert all(map(alive, pids)) and os.path.isdir(folder) and set(pids) <= set(processes_of(folder))
            assert "T" in map(state, pids)
        for kernel in kernels:
            kernel.kill()
        for folder, pids in labs:
            eventually(lambda f=folder, p=pids: gone(f, p), f"{folder} is gone")


def test_a_kernel_that_is_killed_while_the_lab_starts_leaves_nothing(tmp_path):
    for wanted in ("keeper.lock", "links.sock"):
        folder = tmp_path / wanted
        with Kernel("from labkit import Lab; Lab('early'); input()", LABKIT_TMP=str(folder)) as kernel:
            [sign] = eventually(lambda f=folder, w=wanted: list(f.glob(f"*/{w}")), "the lab is on its way", 30)
            eventually(lambda f=sign.parent: processes_of(f), "and so is its keeper", 30)
            kernel.kill()
        eventually(lambda f=folder: not list(f.iterdir()), "the folder is gone", 30)


def test_a_kernel_that_ends_by_itself_leaves_nothing():
    tell = "print(lab._session.folder, s.pid)"
    for end in ("", "raise SystemExit(0)", "import os; os._exit(0)"):
        with Kernel(f"from labkit import Lab; lab = Lab('end'); s = lab.redis(); {tell}\n{end}") as kernel:
            folder, pid = kernel.line().split()
            kernel.end()
        eventually(lambda f=folder, p=pid: gone(f, [int(p)]), "the lab is gone")


def test_a_fork_of_the_kernel_that_outlives_it_does_not_keep_the_lab():
    code = """
        import os, sys, time
        from labkit import Lab
        lab = Lab("forked")
        store = lab.redis()
        child = os.fork()
        if not child:
            sys.stdin.readline()
            os._exit(0)
        print(lab._session.folder, store.pid, child)
        time.sleep(600)
    """
    with Kernel(code) as kernel:
        folder, pid, child = kernel.line().split()
        kernel.kill()
        eventually(lambda: gone(folder, [int(pid)]), "the lab is gone")
        assert alive(int(child)), "it holds the kernel's end of the pipe, and that must not matter"
        kernel.say()
        eventually(lambda: not alive(int(child)), "the child has ended")


def test_ten_labs_at_once_do_not_clash():
    code = """
        from labkit import Lab

        def puts(w, store, what):
            w.client(store).set("mine", what)

        lab = Lab("same name")
        store, other = lab.redis(n=2)
        with lab.run("puts") as e:
            lab.worker("A", puts, store, lab._session.id).join()
        print(lab._session.id, store.port, other.port)
        input()
        print(store.client().get("mine") == lab._session.id, other.client().dbsize())
    """
    with contextlib.ExitStack() as stack:
        kernels = [stack.enter_context(Kernel(code)) for _ in range(10)]
        labs = [kernel.line().split() for kernel in kernels]
        assert len({session_id for session_id, *_ in labs}) == 10
        assert len({port for _, *ports in labs for port in ports}) == 20
        for kernel in kernels:
            kernel.say()
        assert [kernel.line() for kernel in kernels] == ["True 0"] * 10
        for kernel in kernels:
            kernel.end()


# -- the keeper dies


def test_kill_9_of_the_keeper_ends_everything_and_the_next_verb_says_so(tmp_path):
    lab = Lab("keeper killed")
    folder = lab._session.folder
    store, frozen = lab.redis(n=2)
    lab.run("goes wrong").open()
    a, b = lab.worker("A", works), lab.worker("B", leaves_a_daemon, str(tmp_path))
    lab.pause(a, at="here")
    lab.pause(frozen)
    b.run_to("here").start()
    daemon = pid_in(tmp_path / "daemon")
    os.kill(lab._session.keeper_pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, [a.pid, b.pid, store.pid, frozen.pid])), "workers and servers are gone")
    for verb in (lab.redis, lambda: lab.pause(store), lambda: lab.worker("C", works), lambda: lab.kill(b)):
        with pytest.raises(LabError, match="keeper process is gone") as told:
            verb()
        assert len(str(told.value).splitlines()) == 3
    with pytest.raises(WorkerError, match="was killed"):
        b.join()
    assert gone(folder, [daemon])
    with Lab("keeper killed") as again:
        assert again.redis().client().ping()


def test_a_keeper_that_is_asked_to_end_leaves_nothing(tmp_path):
    lab = Lab("keeper ended")
    folder, keeper = lab._session.folder, lab._session.keeper_pid
    store = lab.redis()
    lab.run("goes wrong").open()
    lab.worker("A", leaves_a_daemon, str(tmp_path)).run_to("here")
    daemon = pid_in(tmp_path / "daemon")
    os.kill(keeper, signal.SIGTERM)
    eventually(lambda: gone(folder, [store.pid, daemon, keeper]), "all is gone, and no verb was needed")
    lab.close()


# -- requests


def test_requests_from_many_threads_get_their_own_answers(lab):
    made, barrier = {}, threading.Barrier(8)

    def makes(n):
        barrier.wait()
        for number in range(4):
            name = f"{n}-{number}"
            made[name] = lab.worker(name, says_its_pid, name)

    with lab.run("threads"):
        threads = [threading.Thread(target=makes, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made) == 32
        assert {name: worker.join() for name, worker in made.items()} == {
            name: (worker.pid, name) for name, worker in made.items()
        }


class Interrupts:
    """Raises KeyboardInterrupt in this thread after a given time, as Ctrl-C does."""

    def __enter__(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        self.before = signal.signal(signal.SIGALRM, interrupt)
        return self

    def __exit__(self, *exc):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def within(self, seconds, do) -> bool:
        """True when it struck."""
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                do()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False


def test_an_interrupted_request_leaves_the_next_ones_right(lab):
    ask, store, struck = lab._session.ask, lab.redis(), 0
    with Interrupts() as interrupts:
        for number in range(300):
            struck += interrupts.within(random.Random(number).uniform(1e-6, 4e-4), lambda: ask("poll", pid=store.pid))
            assert ask("ready")["pid"] == lab._session.keeper_pid
            assert ask("poll", pid=store.pid)["alive"] and not ask("poll", pid=1)["alive"]
    assert struck > 10


def test_an_interrupted_join_leaves_the_next_one_right(lab):
    def waits(w, store):
        w.mark("waits")
        return w.client(store, timeout_s=60).blpop("go", 60)

    store = lab.redis()
    with lab.run("interrupted"), Interrupts() as interrupts:
        a = lab.worker("A", waits, store).run_to("waits")
        assert interrupts.within(0.05, a.join)
        assert a.state == "running"
        assert interrupts.within(0.05, a.join)
        store.client().rpush("go", "now")
        assert a.join() == a.join() == ("go", "now")


def test_an_interrupted_run_to_leaves_the_worker_usable(lab):
    def steps(w, store):
        w.mark("one")
        w.client(store, timeout_s=60).blpop("go", 60)
        for step in ("two", "three"):
            w.mark(step)
        return "end"

    store = lab.redis()
    with lab.run("interrupted"), Interrupts() as interrupts:
        a = lab.worker("A", steps, store).run_to("one")
        assert interrupts.within(0.05, lambda: a.run_to("two"))
        store.client().rpush("go", "now")
        assert a.run_to("three").state == "at 'three'", "it stood at 'two', and was let go"
        assert a.join() == "end"


def test_an_interrupt_while_a_run_is_being_left_is_made_good_by_the_next(lab):
    with Interrupts() as interrupts:
        for number in range(6):
            first = lab.run("left in a hurry").open()
            workers = [lab.worker(f"W{n}", works).run_to("here").start() for n in range(4)]
            lab.pause(workers[0])
            interrupts.within(random.Random(number).uniform(1e-4, 6e-3), first.close)
            with lab.run("next"):
                assert not any(alive(worker.pid) for worker in workers)
                assert not lab._faults
                assert lab.worker("W1", says_its_pid).join()


def test_what_the_keeper_cannot_do_is_told_and_the_lab_stays(lab, tmp_path):
    with pytest.raises(LabError, match="could not do it") as told:
        lab._session.ask(
            "server", name="x", kind="redis", warm=False, argv=["redis-server"], cwd=str(tmp_path), env={},
            log=str(tmp_path / "no such folder" / "log"),
        )  # fmt: skip
    assert len(str(told.value).splitlines()) == 3
    assert lab.redis().client().ping()


def test_a_keeper_that_stands_still_is_told_and_wakes_again(lab):
    keeper = lab._session.keeper_pid
    os.kill(keeper, signal.SIGSTOP)
    try:
        with pytest.raises(LabError, match="did not answer within 0.2 s"):
            lab._session.ask("ready", timeout_s=0.2)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert lab._session.ask("ready")["pid"] == keeper


# -- children


def test_each_exit_is_recorded_with_how_it_came(lab):
    def kills_itself(w, number):
        w.mark("here")
        os.kill(os.getpid(), number)
        w.work(60)

    with lab.run("exits") as e:
        for name, number in (("A", signal.SIGTERM), ("B", signal.SIGSEGV), ("C", signal.SIGRTMIN + 1)):
            with pytest.raises(WorkerError, match=f"{name} was killed"):
                lab.worker(name, kills_itself, int(number)).join()
        eventually(lambda: len([x for x in e.timeline.events if x.name == "exit"]) == 3, "three exits are recorded")
        how = {x.data["who"]: x.data["how"] for x in e.timeline.events if x.name == "exit"}
    assert how == {"A": "killed by SIGTERM", "B": "killed by SIGSEGV", "C": f"killed by signal {signal.SIGRTMIN + 1}"}


def test_a_worker_that_ends_takes_nobody_along_and_a_daemon_ends_with_the_lab(tmp_path):
    with Lab("daemons") as lab:
        store = lab.redis()
        with lab.run("leaves a daemon"):
            a = lab.worker("A", leaves_a_daemon, str(tmp_path)).run_to("here")
            daemon = pid_in(tmp_path / "daemon")
            lab.kill(a)
            assert alive(daemon) and daemon in descendants(lab._session.keeper_pid)
        assert store.client().ping()
    assert gone(lab._session.folder, [daemon, store.pid])


# -- forks of the kernel


def test_a_process_that_multiprocessing_forks_does_not_close_the_lab():
    code = """
        import multiprocessing
        from labkit import Lab
        lab = Lab("forks")
        store = lab.redis()
        child = multiprocessing.get_context("fork").Process(target=lambda: None)
        child.start()
        child.join()
        print(child.exitcode, store.client().ping(), lab.redis().client().ping())
    """
    with Kernel(code) as kernel:
        assert kernel.line() == "0 True True"
        kernel.end()


def test_a_fork_that_leaves_as_python_does_neither_closes_the_lab_nor_may_use_it():
    code = """
        import os, sys
        from labkit import Lab, LabError
        lab = Lab("forked")
        store = lab.redis()
        child = os.fork()
        if not child:
            try:
                lab.redis()
            except LabError as error:
                print(error.what)
            lab.close()
            sys.exit(0)
        os.waitpid(child, 0)
        print(store.client().ping(), lab.redis().client().ping())
    """
    with Kernel(code) as kernel:
        assert "belongs to another process" in kernel.line()
        assert kernel.line() == "True True"
        kernel.end()
