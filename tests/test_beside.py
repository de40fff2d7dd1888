"""A chapter that another one runs beside itself: it comes to its end, fails, is too slow, or loses who started it."""

import json
import shutil
from pathlib import Path

import papers
import pytest
from kernels import ROOT, Kernel, eventually, gone, processes_of

from labkit.beside import Beside
from labkit.errors import LabError

HEAD = papers.code('DRIVER, QUICK = "auto", False', "parameters")
WITH_A_LAB = """
import json, os, pathlib, sys
from labkit import Lab, keep_rows
lab = Lab("beside", driver=DRIVER)
lab.redis()
"""
WAITS = """
told = pathlib.Path(os.environ["LABKIT_HOME"]) / "told.json"
told.with_suffix(".new").write_text(json.dumps({"folder": str(lab._session.folder), "kernel": os.getpid()}))
told.with_suffix(".new").rename(told)
import threading; threading.Event().wait(120)
"""
STARTS = """
from labkit import kept_rows
from labkit.beside import Beside
beside = Beside("02-redlock-debate", "local")
print(beside._process.pid)
"""


@pytest.fixture
def kernel(tmp_path):
    """Makes a kernel for a course that has one chapter, of these cells."""
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "notebooks").mkdir()
    kernels = []

    def make(code: str, *cells: str) -> Kernel:
        book = papers.paper(HEAD, *map(papers.code, cells))
        (tmp_path / "notebooks" / "02-redlock-debate.ipynb").write_text(json.dumps(book))
        kernels.append(Kernel(code, tmp_path, LABKIT_HOME=str(tmp_path / "home")))
        return kernels[0]

    yield make
    for made in kernels:
        made.__exit__()


def what_it_made(home: Path) -> tuple[Path, list[int]]:
    """Once its chapter waits: the folder of the chapter's lab, and the pids of that lab and of the chapter's kernel."""
    path = home / "told.json"
    told = json.loads(eventually(lambda: path.exists() and path.read_text(), "the chapter waits", 60))
    folder = Path(told["folder"])
    return folder, [told["kernel"], *processes_of(folder)]


def test_it_measures_what_is_missing(kernel):
    keeps = WITH_A_LAB + 'keep_rows("02-redlock-debate", [{"driver": DRIVER, "quick": QUICK}])'
    k = kernel(STARTS + 'print(beside.join(), kept_rows("02-redlock-debate"), sep="\\n")', keeps)
    _, how, kept = k.end().splitlines()
    assert how.startswith("02-redlock-debate: ok") and kept == "[{'driver': 'local', 'quick': True}]"


def test_one_that_fails_is_told_in_three_lines(kernel):
    k = kernel(STARTS + "print(beside.join())", WITH_A_LAB + "assert False, 'planted'")
    _, what, _, todo = k.end().splitlines()
    assert "AssertionError: planted" in what and "\x1b" not in what and "labkit run 02-redlock-debate" in todo


def test_one_that_takes_too_long_is_ended(kernel, tmp_path):
    k = kernel(STARTS + "input(); print(beside.join(0.01))", WITH_A_LAB + WAITS)
    folder, pids = what_it_made(tmp_path / "home")
    k.say()
    _, what, *rest = k.end().splitlines()
    assert "ended after 0.01 s" in what and len(rest) == 2
    eventually(lambda: gone(folder, pids), "all of it gone", 20)


def test_one_that_is_given_up_for_another_is_ended(kernel, tmp_path):
    k = kernel(STARTS + "input(); beside = None; input()", WITH_A_LAB + WAITS)
    folder, pids = what_it_made(tmp_path / "home")
    k.say()
    eventually(lambda: gone(folder, pids), "all of it gone", 20)


def test_it_ends_with_a_killed_caller(kernel, tmp_path):
    k = kernel(STARTS + "input()", WITH_A_LAB + WAITS)
    pid = int(k.line())
    folder, pids = what_it_made(tmp_path / "home")
    k.kill()
    eventually(lambda: gone(folder, [pid, *pids]), "all of it gone", 20)


def test_a_chapter_that_is_not_there():
    with pytest.raises(LabError, match="no notebook '12'"):
        Beside("12")
