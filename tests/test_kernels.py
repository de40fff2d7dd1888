"""Kernels as Jupyter runs them, in the middle of a chapter: killed, interrupted, restarted, ten at once."""

import contextlib
import os
import queue
import random
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from unittest import mock

import papers
import psutil
import pytest
from jupyter_client import KernelManager
from kernels import alive, eventually, processes_of

from labkit.notebooks import private_settings
from labkit.session import scratch

pytest_plugins = ["told"]

ANSWER_S = 60
KILLS, AT_ONCE = 10, 5  # kills of each chapter; kernels at a time, which mostly wait
STRAY = """environment = os.environ | {"LABKIT_SESSION": lab._session.id}
stray = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)"""


@dataclass(frozen=True)
class Made:
    """What a kernel has made: the folders of its labs, the pids of their keepers, and of servers and workers below."""

    labs: list[Path]
    keepers: list[int]
    below: list[int]


class JupyterKernel:
    """A kernel with a LABKIT_HOME of its own. It listens in a folder: a TCP port that is free now may be taken then."""

    def __init__(self, home: Path):
        self._home, self._folder = home, tempfile.TemporaryDirectory(prefix="k-")
        self._manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self._folder.name}/k")
        self._manager.start_kernel(cwd=papers.FOLDER, env={**os.environ, "LABKIT_HOME": str(home)})
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(ANSWER_S)

    # -- cells
    def begin(self, source: str, **values: str) -> str:
        """Send a cell; returns its request. values: expressions that the answer is to hold."""
        return self._client.execute(source, user_expressions=values, allow_stdin=False)

    def answer(self, request: str, timeout_s: float = ANSWER_S) -> dict | None:
        """What came of a request; None while it goes on."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                reply = self._client.get_shell_msg(timeout=left)
            except queue.Empty:
                break
            if reply["parent_header"]["msg_id"] == request:
                return reply["content"]
        return None

    def run(self, sources: list[str], strict: bool = True, **values: str) -> dict[str, str]:
        """Run cells one after the other; returns these expressions after the last, as they are printed.

        strict -- whether an error ends it, as in "Run All Cells"; else it goes on, as who runs cell after cell may.
        """
        for source in sources:
            reply = self.answer(self.begin(source, **(values if source is sources[-1] else {})))
            assert reply, f"no answer within {ANSWER_S} s:\n{source}"
            if strict and reply["status"] != "ok":
                raise AssertionError("\n".join([source, *reply["traceback"], f"{reply['ename']}: {reply['evalue']}"]))
        return {name: value["data"]["text/plain"] for name, value in reply.get("user_expressions", {}).items()}

    # -- faults
    def kill(self) -> None:
        os.kill(self._manager.provisioner.pid, signal.SIGKILL)

    def interrupt(self) -> dict | None:
        """What came of the cell that `runs_until` left running."""
        self._manager.interrupt_kernel()
        return self.answer(self._request)

    def restart(self) -> None:
        self._manager.restart_kernel()
        self._client.wait_for_ready(ANSWER_S)

    # -- looks
    def made(self) -> Made:
        kernel = psutil.Process(self._manager.provisioner.pid)
        keepers = [process.pid for process in kernel.children()]
        below = [process.pid for process in kernel.children(recursive=True) if process.pid not in keepers]
        labs = [scratch() / record.stem for record in (self._home / "records").glob("*.jsonl")]
        return Made(labs, keepers, below)

    def recorded(self) -> int:
        """How many events the records of its labs have."""
        return sum(record.read_bytes().count(b"\n") for record in (self._home / "records").glob("*.jsonl"))

    def runs_until(self, source: str, events: int) -> dict | None:
        """Begin a cell, and wait until it is over or has recorded so many events; its answer, None while it runs."""
        wanted, self._request = self.recorded() + events, self.begin(source)
        deadline = time.monotonic() + ANSWER_S
        while (reply := self.answer(self._request, 0.002)) is None and self.recorded() < wanted:
            assert time.monotonic() < deadline, f"neither {events} events nor the end within {ANSWER_S} s:\n{source}"
        return reply

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._folder.cleanup()


def left_of(made: Made) -> list[str]:
    """What is still there, too late.

    Servers and workers have five seconds. A keeper goes last, after the folder, and a busy disk may keep it waiting.
    """
    return still_there([], made.below, 5) or still_there(made.labs, made.keepers, 30)


def still_there(labs: list[Path], pids: list[int], timeout_s: float) -> list[str]:
    """The folders, their processes and these pids that are there when the time is over; [] as soon as none is."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = {*filter(alive, pids), *(pid for lab in labs for pid in processes_of(lab))}
        left = [str(lab) for lab in labs if lab.exists()] + [name for pid in sorted(found) if (name := name_of(pid))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def name_of(pid: int) -> str:
    """Number, program and state of a process, "" if it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} {process.name()} {process.status()}"
    return ""


def cells(name: str) -> list[str]:
    """The code of a notebook, cell by cell, with parameters as papermill would give them."""
    nb = papers.load(papers.FOLDER / f"{name}.ipynb")
    more = {True: '\nDRIVER, QUICK = "local", True', False: ""}
    return [papers.source(cell) + more["parameters" in papers.tags(cell)] for cell in papers.code_cells(nb)]


def first(sources: list[str], part: str) -> int:
    """The number of the first cell that has this in it."""
    return next(i for i, source in enumerate(sources) if part in source)


@pytest.fixture(scope="module", autouse=True)
def jupyter(labkit_home):
    with mock.patch.dict(os.environ):
        private_settings()
        yield


# -- kill -9
def plans() -> list[tuple[str, int, int]]:
    """(notebook, cell, events): kill its kernel in that cell, or the first one after it that records so many events."""
    dice, chosen = random.Random(7), []
    for name in ("00-start-here", "01-locks"):
        sources = cells(name)
        picked = dice.sample(range(first(sources, "Lab("), len(sources) - 1), KILLS)
        chosen += [(name, cell, dice.randint(1, 6)) for cell in picked]
    return chosen


def killed(plan: tuple[str, int, int], home: Path) -> tuple[bool, list[str]]:
    """(was a cell still running, what was left of all that the kernel had made)."""
    name, cell, events = plan
    sources = cells(name)[:-1]  # the last one closes the lab
    with JupyterKernel(home) as kernel:
        kernel.run(sources[:cell], strict=False)  # the machine is crowded here, and some cells measure it
        running = any(kernel.runs_until(source, events) is None for source in sources[cell:])
        made = kernel.made()
        assert made.below and {pid for lab in made.labs for pid in processes_of(lab)}, "there is a lab to lose"
        kernel.kill()
        return running, left_of(made)


@pytest.mark.timeout(600)
def test_a_killed_kernel_leaves_nothing(tmp_path, record_property):
    homes = [tmp_path / str(i) for i in range(2 * KILLS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(killed, plans(), homes))
    assert {plan: left for plan, (_, left) in zip(plans(), results, strict=True) if left} == {}
    in_the_middle = sum(running for running, _ in results)
    record_property("told", f"{2 * KILLS} kernels killed, {in_the_middle} of them in the middle of a cell")
    assert in_the_middle >= KILLS


def test_what_a_killed_kernel_leaves_is_found(tmp_path):
    with JupyterKernel(tmp_path) as kernel:
        kernel.run(["import os, subprocess, labkit\nlab = labkit.Lab()", STRAY])
        made = kernel.made()
        kernel.kill()
        (pid,) = eventually(lambda: len(pids := processes_of(made.labs[0])) == 1 and pids, "only the stray is left", 30)
        assert still_there(made.labs, [], 0.1) == still_there([], made.keepers, 5) == [f"{pid} sleep sleeping"]
        os.kill(pid, signal.SIGKILL)
        assert left_of(made) == []


# -- ten at once
def test_ten_kernels_with_labs_do_not_clash(tmp_path):
    sources, together = cells("00-start-here"), Barrier(10)
    begun = first(sources, "Lab(") + 1

    def work(i: int) -> tuple[str, Made]:
        with JupyterKernel(tmp_path / str(i)) as kernel:
            try:
                port = kernel.run(sources[:begun], port="store.port")["port"]
            except BaseException:
                together.abort()
                raise
            together.wait(ANSWER_S)  # now ten labs stand
            kernel.run(sources[begun:-1])
            return port, kernel.made()

    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(work, i) for i in range(10)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error  # the cause rather than what the others say about it
    ports, made = zip(*[future.result() for future in futures], strict=True)
    assert len(set(ports)) == 10 and len({lab for one in made for lab in one.labs}) == 10
    assert [left for one in made if (left := left_of(one))] == []


# -- interrupted
@pytest.mark.parametrize(("name", "part"), [("00-start-here", "lab.pause("), ("01-locks", "lab.wait_gone(")])
def test_an_interrupted_cell_runs_again(name, part, tmp_path):
    sources = cells(name)
    middle = first(sources, part)
    with JupyterKernel(tmp_path) as kernel:
        kernel.run(sources[:middle])
        for events in (3, 8, 20):
            assert kernel.runs_until(sources[middle], events) is None, "it was over too soon to be interrupted"
            assert kernel.interrupt()["ename"] == "KeyboardInterrupt"
        kernel.run(sources[middle : middle + 4])
        assert len(kernel.made().labs) == 1


# -- restarted
def test_restart_and_run_all_twice(tmp_path):
    sources = cells("00-start-here")
    with JupyterKernel(tmp_path) as kernel:
        kernel.run(sources[: first(sources, ".open()") + 1])
        assert kernel.made().below, "a run is going on"
        for times in (1, 2):
            made = kernel.made()
            assert len(made.labs) == times
            kernel.restart()
            assert left_of(made) == []
            kernel.run(sources)
