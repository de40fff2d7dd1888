import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from kernels import ROOT, Kernel, alive, eventually, processes_of

from labkit import Lab
from labkit import clean as module
from labkit.clean import clean
from labkit.session import LABEL, LOCK

CRASHED = """
    import os, signal
    from labkit import Lab

    def leaves_a_daemon(w):
        import time
        if not os.fork():
            os.setsid()
            if not os.fork():
                print(os.getpid(), flush=True)
                time.sleep(600)
            os._exit(0)
        os.wait()
        w.mark("here")
        w.work(600)

    lab = Lab("crashed")
    store = lab.redis()
    lab.run("crash").open()
    a = lab.worker("A", leaves_a_daemon).run_to("here")
    while not a.output:
        pass
    print(lab._session.id, a.output.strip(), store.pid, a.pid, lab._session.keeper_pid, flush=True)
    input()
"""


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder of this test's own for the servers: other labs of this machine are out of its sight, or in use."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("LABKIT_TMP", str(folder))
    return folder


def plant_folder(scratch, name: str, locked_once: bool = True, age_s: float = 0):
    folder = scratch / name
    (folder / "redis-1").mkdir(parents=True)
    (folder / "redis-1" / "dump.rdb").write_text("data")
    if locked_once:
        (folder / LOCK).touch()
    if age_s:
        os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def plant_process(folder, **how):
    environment = {LABEL: folder.name, "LABKIT_TMP": str(folder.parent)}
    child = subprocess.Popen(["sleep", "600"], env=environment, **how)
    eventually(lambda: child.pid in processes_of(folder), "the planted process is there")
    return child


@pytest.fixture
def planted():
    children = []
    yield children
    for child in children:
        child.kill()
        child.wait(5)


def test_nothing_to_do(scratch, capsys):
    assert clean() == []
    assert module.main() == 0
    assert capsys.readouterr().out == "Nothing was left behind.\n"
    scratch.rmdir()
    assert clean() == []


def test_a_kernel_and_its_keeper_killed_at_once(scratch):
    """Nobody is left to clean up: the worst crash, and the one that this command is for."""
    with Kernel(CRASHED) as kernel:
        session_id, daemon, *others = kernel.line().split()
        os.kill(kernel.pid, signal.SIGSTOP)  # so that it cannot notice
        os.kill(int(others[-1]), signal.SIGKILL)
        kernel.kill()
    eventually(lambda: not any(alive(int(pid)) for pid in others), "all but the daemon is gone")
    assert alive(int(daemon)) and (scratch / session_id).exists()
    assert clean() == [f"ended the process {daemon} of {session_id}", f"removed the folder {scratch / session_id}"]
    eventually(lambda: not alive(int(daemon)), "the daemon is gone")
    assert os.listdir(scratch) == [] and clean() == []


def test_a_folder_that_nobody_holds(scratch):
    folder = plant_folder(scratch, "labkit-old-0123abcd")
    assert clean() == [f"removed the folder {folder}"]
    assert not folder.exists()


def test_a_process_whose_folder_is_gone(scratch, planted):
    planted.append(plant_process(scratch / "labkit-gone-0123abcd"))
    assert clean() == [f"ended the process {planted[0].pid} of labkit-gone-0123abcd"]
    assert planted[0].wait(5) == -signal.SIGKILL


def test_a_stopped_process_is_ended_too(scratch, planted):
    planted.append(plant_process(scratch / "labkit-gone-1123abcd"))
    os.kill(planted[0].pid, signal.SIGSTOP)
    assert len(clean()) == 1
    assert planted[0].wait(5) == -signal.SIGKILL


def test_a_server_that_wrote_over_its_environment(scratch, planted):
    """As Redis does. It is known by the file that it prints to."""
    folder = plant_folder(scratch, "labkit-old-2123abcd")
    with open(folder / "redis-1.log", "wb") as log:
        planted.append(subprocess.Popen(["sleep", "600"], env={}, stdout=log))
    assert clean() == [f"ended the process {planted[0].pid} of {folder.name}", f"removed the folder {folder}"]


def test_a_lab_in_use_is_untouched(scratch):
    def idles(w):
        w.mark("here")
        w.work(60)

    with Lab("in use") as lab:
        store = lab.redis()
        with lab.run("idles"):
            a, b = (lab.worker(name, idles).run_to("here") for name in "AB")
            lab.pause(a)
            before = processes_of(lab._session.folder)
            assert clean() == []
            assert processes_of(lab._session.folder) == before and lab._session.folder.exists()
            lab.resume(a)
            assert store.client().ping() and b.state == "at 'here'"
    assert os.listdir(scratch) == []


def test_a_lab_in_use_whose_folder_lies_elsewhere_is_untouched(scratch, planted, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "another"))
    with Lab("elsewhere") as lab:
        store = lab.redis()
        planted.append(plant_process(tmp_path / "another" / "labkit-gone-2123abcd"))
        monkeypatch.setenv("LABKIT_TMP", str(scratch))
        assert clean() == []
        assert store.client().ping() and planted[0].poll() is None
        monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "another"))
        assert clean() == [f"ended the process {planted[0].pid} of labkit-gone-2123abcd"]
        assert store.client().ping()


def test_a_lab_that_is_being_made_or_closed_is_untouched(scratch):
    """From its first moment to its last: a folder without a lock is young, and a folder with one is held."""
    young = plant_folder(scratch, "labkit-young-0123abcd", locked_once=False)
    old = plant_folder(scratch, "labkit-young-1123abcd", locked_once=False, age_s=3600)
    assert clean() == [f"removed the folder {old}"]
    assert young.exists()
    looks = []
    with Kernel("from labkit import Lab; lab = Lab('starts'); print('up'); input(); lab.close()") as kernel:
        while len(list(scratch.iterdir())) < 2:
            looks += clean()
        for _ in range(20):
            looks += clean()
        assert kernel.line() == "up"
        kernel.say()
        while kernel.process.poll() is None:
            looks += clean()
    assert looks == []


def test_a_folder_whose_lock_somebody_holds_is_untouched(scratch):
    folder = plant_folder(scratch, "labkit-held-0123abcd")
    with open(folder / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clean() == []
    assert folder.exists() and len(clean()) == 1


@pytest.mark.parametrize(
    "name", ["labkit-backup", "labkit-my-notes", "labkit-x-0123abcg", "mylabkit-x-0123abcd", "labkit--"]
)
def test_folders_of_other_names_are_untouched(scratch, name):
    folder = plant_folder(scratch, name, age_s=10**6)
    assert clean() == [] and folder.exists()


def test_a_link_to_somewhere_else_is_not_followed(scratch, tmp_path):
    target = plant_folder(tmp_path, "precious")
    (scratch / "labkit-link-0123abcd").symlink_to(target)
    inside = plant_folder(scratch, "labkit-old-0123abcd")
    (inside / "out").symlink_to(target)
    assert clean() == [f"removed the folder {inside}"]
    assert (target / "redis-1" / "dump.rdb").exists()


def test_processes_that_only_look_like_ours_are_untouched(scratch, planted, tmp_path):
    folder = plant_folder(scratch, "labkit-old-3123abcd")
    namesake = tmp_path / "redis-server"
    namesake.symlink_to("/bin/sleep")
    planted += [
        subprocess.Popen([namesake, "600"]),
        subprocess.Popen(["sleep", "600"], cwd=folder),
        subprocess.Popen(["sleep", "600"], env={**os.environ, "NOT_" + LABEL: "labkit-old-3123abcd"}),
        subprocess.Popen(["sleep", "600"], env={**os.environ, LABEL: "something else"}),
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "labkit.keeper"]),
    ]
    assert clean() == [f"removed the folder {folder}"]
    assert all(child.poll() is None for child in planted)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_another_user_s_leftovers_are_untouched(scratch, planted):
    planted.append(plant_process(scratch / "labkit-theirs-0123abcd", user=65534))
    folder = plant_folder(scratch, "labkit-theirs-1123abcd")
    os.chown(folder, 65534, 65534)
    assert clean() == []
    assert planted[0].poll() is None and folder.exists()


def test_a_folder_that_cannot_be_removed_is_told(scratch, monkeypatch):
    folder = plant_folder(scratch, "labkit-old-4123abcd")

    def refuses(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.shutil, "rmtree", refuses)
    assert clean() == [f"could not remove the folder {folder}: Permission denied"]


def test_as_a_command(scratch):
    folder = plant_folder(scratch, "labkit-old-5123abcd")
    done = subprocess.run([sys.executable, "-m", "labkit", "clean"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, f"removed the folder {folder}\n")
