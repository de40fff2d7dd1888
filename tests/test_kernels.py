"""Kernels as Jupyter runs them, in the middle of a chapter: killed, interrupted, restarted, ten at once."""

import os
import queue
import random
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from unittest import mock

import papers
import psutil
import pytest
from jupyter_client import KernelManager
from kernels import alive, processes_of

from labkit.notebooks import private_settings
from labkit.session import scratch

pytest_plugins = ["told"]

ANSWER_S = 60
KILLS, AT_ONCE = 10, 5  # kills of each chapter; kernels at a time, which mostly wait
DRIVES_A_LAB = ("Lab(", "lab.run(", ".open()", "panel.press(")  # while such a cell runs, the record grows


STRAY = """environment = os.environ | {"LABKIT_SESSION": lab._session.id}
stray = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)"""


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

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._manager.restart_kernel()
        self._client.wait_for_ready(ANSWER_S)

    # -- looks
    def family(self) -> list[int]:
        """The pids of all processes below the kernel: keepers, servers, workers."""
        return [process.pid for process in psutil.Process(self._manager.provisioner.pid).children(recursive=True)]

    def labs(self) -> list[Path]:
        """The folders of all labs that were made in it."""
        return [scratch() / record.stem for record in (self._home / "records").glob("*.jsonl")]

    def recorded(self) -> int:
        """How many events the records of its labs have."""
        return sum(record.read_bytes().count(b"\n") for record in (self._home / "records").glob("*.jsonl"))

    def runs_until(self, source: str, events: int) -> tuple[str, dict | None]:
        """Begin a cell and wait until it has recorded so many events, or is over; its request, its answer or None."""
        wanted = self.recorded() + events
        request = self.begin(source)
        deadline = time.monotonic() + ANSWER_S
        while (reply := self.answer(request, 0.002)) is None and self.recorded() < wanted:
            assert time.monotonic() < deadline, f"neither {events} events nor the end within {ANSWER_S} s:\n{source}"
        return request, reply

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._folder.cleanup()


def left_of(labs: list[Path], family: list[int], timeout_s: float = 5) -> list[str]:
    """What is still there of these labs and processes when the time is over; nothing, as soon as nothing is."""
    deadline = time.monotonic() + timeout_s
    while True:
        pids = {*filter(alive, family), *(pid for lab in labs for pid in processes_of(lab))}
        left = [str(lab) for lab in labs if lab.exists()] + [f"process {pid}" for pid in sorted(pids)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


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
    """(notebook, cell, events): kill its kernel when that cell has recorded so many. As many cells as there are."""
    chosen, dice = [], random.Random(7)
    for name in ("00-start-here", "01-locks"):
        driving = [i for i, source in enumerate(cells(name)) if any(part in source for part in DRIVES_A_LAB)]
        picked = dice.sample(driving * -(-KILLS // len(driving)), KILLS)
        chosen += [(name, cell, dice.randint(1, 6)) for cell in picked]
    return chosen


def killed(plan: tuple[str, int, int], home: Path) -> tuple[bool, list[str]]:
    """(was the cell still running, what was left of everything five seconds later)."""
    name, cell, events = plan
    with JupyterKernel(home) as kernel:
        kernel.run(cells(name)[:cell], strict=False)  # the machine is crowded here, and some cells measure it
        _, reply = kernel.runs_until(cells(name)[cell], events)
        labs, family = kernel.labs(), kernel.family()
        assert labs and {pid for lab in labs for pid in processes_of(lab)} and len(family) > 1, "there is a lab to lose"
        kernel.kill()
        return reply is None, left_of(labs, family)


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
        (lab,), family = kernel.labs(), kernel.family()
        kernel.kill()
        left = left_of([lab], [], 1)
        (pid,) = processes_of(lab)
        assert left == [f"process {pid}"] == left_of([], family, 0)
        os.kill(pid, signal.SIGKILL)
        assert left_of([lab], family) == []


# -- ten at once
def test_ten_kernels_with_labs_do_not_clash(tmp_path):
    sources, together = cells("00-start-here"), Barrier(10)
    begun = first(sources, "Lab(") + 1

    def work(i: int) -> tuple[list[Path], list[int], str]:
        with JupyterKernel(tmp_path / str(i)) as kernel:
            try:
                port = kernel.run(sources[:begun], port="store.port")["port"]
            except BaseException:
                together.abort()
                raise
            together.wait(ANSWER_S)  # now ten labs stand
            kernel.run(sources[begun:-1])
            return kernel.labs(), kernel.family(), port

    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(work, i) for i in range(10)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error  # the cause rather than what the others say about it
    results = [future.result() for future in futures]
    labs = [lab for labs, _, _ in results for lab in labs]
    assert len(set(labs)) == 10 and len({port for _, _, port in results}) == 10
    assert left_of(labs, [pid for _, family, _ in results for pid in family]) == []


# -- interrupted
@pytest.mark.parametrize(("name", "part"), [("00-start-here", "lab.pause("), ("01-locks", "lab.wait_gone(")])
def test_an_interrupted_cell_runs_again(name, part, tmp_path):
    sources = cells(name)
    middle = first(sources, part)
    with JupyterKernel(tmp_path) as kernel:
        kernel.run(sources[:middle])
        for events in (3, 8, 20):
            request, reply = kernel.runs_until(sources[middle], events)
            assert reply is None, "it was over too soon to be interrupted"
            kernel.interrupt()
            assert kernel.answer(request)["ename"] == "KeyboardInterrupt"
        kernel.run(sources[middle : middle + 4])
        assert len(kernel.labs()) == 1


# -- restarted
def test_restart_and_run_all_twice(tmp_path):
    sources = cells("00-start-here")
    with JupyterKernel(tmp_path) as kernel:
        kernel.run(sources[: first(sources, ".open()") + 1])
        for times in (1, 2):
            labs, family = kernel.labs(), kernel.family()
            assert len(labs) == times
            kernel.restart()
            assert left_of(labs, family) == []
            kernel.run(sources)
