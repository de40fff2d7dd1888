import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kernels import ROOT, Kernel, eventually, gone, processes_of

from labkit import Lab, LabError
from labkit.session import LABEL, Session, end_processes, home, is_session, scratch, session_of

CHECKS_A_LOCK = """
    from labkit import Lab

    def puts(w, store):
        w.client(store).set("mine", "ä")
        print("printed")

    lab = Lab("würfel und mehr")
    store = lab.redis()
    with lab.run("puts") as e:
        lab.cut("A", store)
        lab.heal("A", store)
        lab.worker("A", puts, store).join()
    lab.kill(store)
    lab.restart(store, data="lost")
    print(lab.record, lab._session.folder, store.client().dbsize(), len(e.timeline.spans()), sep="|")
"""


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Folders of this test's own for records and servers: (home, scratch)."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "scratch"))
    return tmp_path / "home", tmp_path / "scratch"


# -- folders


def test_folders_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "h"))
    assert (scratch(), home()) == (tmp_path, tmp_path / "h")
    for nothing in ("LABKIT_TMP", "LABKIT_HOME"):
        monkeypatch.setenv(nothing, "")
    assert str(scratch()) == "/var/tmp"
    assert home().name == ".labkit" and (home().parent / "labkit" / "session.py").exists()


@pytest.mark.parametrize(
    "place",
    ["with blanks", "äöü ☃ 研究", "a" * 200 + "/" + "b" * 200 + "/" + "c d" * 60],
    ids=["blanks", "letters", "long"],
)
def test_a_lab_works_in_any_folder(tmp_path, place):
    """Servers, workers and links; a Unix socket's path holds 107 bytes, a command line is cut at blanks by some."""
    there = tmp_path / place
    with Kernel(CHECKS_A_LOCK, LABKIT_TMP=str(there / "s"), LABKIT_HOME=str(there / "h")) as kernel:
        assert kernel.line() == "A | printed"
        record, folder, size, spans = kernel.line().split("|")
        kernel.end()
    assert record.startswith(str(there / "h")) and os.path.getsize(record)
    assert folder.startswith(str(there / "s")) and (size, spans) == ("0", "1")
    assert os.listdir(there / "s") == []


def test_a_relative_folder_is_meant_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_TMP", "s")
    monkeypatch.setenv("LABKIT_HOME", "h")
    with Lab("relative") as lab:
        monkeypatch.chdir("/")
        store = lab.redis()
        assert store.client().ping() and lab._session.folder == tmp_path / "s" / lab._session.id
        assert lab.timeline.events is not None and lab.record.is_relative_to(tmp_path / "h")


@pytest.mark.parametrize("variable", ["LABKIT_TMP", "LABKIT_HOME"])
@pytest.mark.parametrize("place", ["a file in the way", "no rights", "a name too long", "a folder of the system"])
def test_a_folder_that_cannot_be_written_is_told_and_nothing_is_left(folders, tmp_path, monkeypatch, variable, place):
    (tmp_path / "file").write_text("in the way")
    there = {
        "a file in the way": tmp_path / "file" / "below",
        "no rights": "/proc/sys/labkit",
        "a name too long": tmp_path / ("x" * 300),
        "a folder of the system": "/sys/labkit",
    }[place]
    monkeypatch.setenv(variable, str(there))
    with pytest.raises(LabError, match="cannot write in") as told:
        Lab("unwritable")
    lines = str(told.value).splitlines()
    assert len(lines) == 3 and f"export {variable}=" in lines[2]
    assert not folders[1].exists() or os.listdir(folders[1]) == []


def test_a_read_only_file_system(folders, tmp_path, monkeypatch):
    """A bind mount in a mount namespace of its own; root could write anywhere else."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    (tmp_path / "ro").mkdir()
    steps = f"""
        mount --bind {tmp_path}/ro {tmp_path}/ro && mount -o remount,ro,bind {tmp_path}/ro &&
        exec {sys.executable} -c 'from labkit import Lab; Lab()'
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", steps], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "LABKIT_TMP": f"{tmp_path}/ro"},
    )  # fmt: skip
    assert "Read-only file system" in done.stderr and "export LABKIT_TMP=" in done.stderr


def test_its_folder_is_its_own(folders):
    with Lab("a b/c ä.." * 9) as lab:
        folder = lab._session.folder
        assert folder.parent == folders[1] and is_session(folder.name)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o711  # a server that runs as another user must get through
    assert not folder.exists()


# -- records


def plant(folder, number: int, age_s: float):
    path = folder / f"labkit-old-{number:08x}.jsonl"
    path.write_text("")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_the_latest_records_are_kept_and_those_of_labs_in_use(folders):
    home, scratch = folders
    (home / "records").mkdir(parents=True)
    old = [plant(home / "records", number, 1000 - number) for number in range(60)]
    (scratch / old[0].stem).mkdir(parents=True)
    other = home / "records" / "notes.txt"
    other.write_text("mine")
    with Lab("keeps"):
        left = [path for path in old if path.exists()]
    assert left == [old[0], *old[20:]] and other.exists()


def test_labs_that_start_at_once_do_not_trip_over_each_other_s_pruning(folders):
    home, _ = folders
    (home / "records").mkdir(parents=True)
    for number in range(600):
        plant(home / "records", number, 1000)
    code = "import sys; from labkit.session import _prune, home; input(); _prune(home() / 'records'); print('pruned')"
    kernels = [Kernel(code) for _ in range(6)]
    for kernel in kernels:
        kernel.say()
    assert [kernel.line() for kernel in kernels] == ["pruned"] * 6
    for kernel in kernels:
        kernel.end()
    assert len(list((home / "records").iterdir())) == 40


# -- start and end


def test_closing_twice_is_harmless():
    session = Session("twice", 7)
    session.close()
    session.close()
    assert gone(session.folder, [session.keeper_pid])


@pytest.mark.parametrize(
    "program, what",
    [("exit 1", "Something ended it"), ("echo boom >&2; echo bang >&2; exit 1", "its last words: boom / bang")],
)
def test_a_keeper_that_cannot_start_is_told_with_its_last_words(folders, tmp_path, monkeypatch, program, what):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(LabError, match="keeper process is gone") as told:
        Lab("no keeper")
    assert what in told.value.why and len(str(told.value).splitlines()) == 3
    assert os.listdir(folders[1]) == []


def test_no_python_at_all(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        Lab("no python")
    assert os.listdir(folders[1]) == []


def test_a_start_that_is_interrupted_leaves_nothing(folders):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after_s in (0.001, 0.002, 0.004, 0.01, 0.03, 0.06, 0.1):
            try:
                signal.setitimer(signal.ITIMER_REAL, after_s)
                try:
                    Lab("interrupted")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
    Lab("interrupted").close()  # closes one that was there before the interrupt, as running the cell again does
    eventually(lambda: not folders[1].exists() or not os.listdir(folders[1]), "the folders are gone")


# -- who belongs to it


def test_everything_that_belongs_to_a_session_can_be_told():
    def idles(w):
        w.mark("here")
        w.work(60)

    with Lab("belongs") as lab:
        session = lab._session
        store = lab.redis()
        with lab.run("idles"):
            a = lab.worker("A", idles)
            assert {session.keeper_pid, store.pid, a.pid} <= set(processes_of(session.folder))
        assert session_of(os.getpid()) is None and session_of(1) is None and session_of(2**22 + 1) is None


def test_only_what_belongs_to_a_session_is_ended():
    mine, other = "labkit-mine-0123abcd", "labkit-other-0123abcd"
    children = {
        name: subprocess.Popen(["sleep", "600"], env={LABEL: name, "LABKIT_TMP": "/here"})
        for name in (mine, other, "nonsense")
    }
    try:
        eventually(lambda: processes_of(f"/here/{mine}") == [children[mine].pid], "it is there")
        assert end_processes(Path("/here", mine)) == [children[mine].pid]
        assert children[mine].wait(5) == -signal.SIGKILL
        assert end_processes(Path("/here", mine)) == []
        assert children[other].poll() is None and children["nonsense"].poll() is None
    finally:
        for child in children.values():
            child.kill()
            child.wait(5)
