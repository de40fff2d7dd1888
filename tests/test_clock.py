import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import Lab, LabError, Unsupported, clock, programs

pytestmark = pytest.mark.skipif(not programs.find("cc"), reason="there is no C compiler on this machine")


@pytest.fixture
def lab():
    with Lab("clock") as lab:
        yield lab


def ahead_s(node) -> float:
    """How far the server's clock is ahead of ours."""
    seconds, micros = node.client().time()
    return seconds + micros / 1e6 - time.time()


# -- the library, under a process of our own

_LOOK = """
import ctypes, time
libc = ctypes.CDLL(None)
day = (ctypes.c_long * 2)()
libc.gettimeofday(day, None)
libc.time.restype = ctypes.c_long
print(time.time(), time.clock_gettime(5), day[0], libc.time(None), time.monotonic())
"""  # 5 is CLOCK_REALTIME_COARSE


def look(its: clock.Clock) -> list[float]:
    """What a process under this clock is told, less the truth: clock_gettime, coarse, gettimeofday, time, monotonic."""
    env = {**os.environ, "LD_PRELOAD": str(clock.library()), "LABKIT_CLOCK": str(its.path)}
    wall, steady = time.time(), time.monotonic()
    done = subprocess.run([sys.executable, "-c", _LOOK], env=env, capture_output=True, text=True, check=True)
    assert not done.stderr
    told = [float(word) for word in done.stdout.split()]
    return [t - wall for t in told[:4]] + [told[4] - steady]


def test_every_wall_clock_moves_and_the_monotonic_one_does_not(tmp_path):
    its = clock.Clock(tmp_path / "clock")
    assert its.right
    assert all(-2 < off < 60 for off in look(its))
    its.jump(1e6)
    its.jump(-500)
    *wall, steady = look(its)
    assert all(999_498 < off < 999_560 for off in wall) and 0 <= steady < 60
    its.reset()
    assert its.right and all(-2 < off < 60 for off in look(its))


def test_a_file_that_is_missing_is_made_and_moves_the_clock_from_then_on(tmp_path):
    its = clock.Clock(tmp_path / "clock")
    its.path.unlink()
    assert all(-2 < off < 60 for off in look(its)) and its.right
    its.jump(3600)
    assert all(3598 < off < 3660 for off in look(its)[:4])


def test_a_process_without_a_file_keeps_the_true_time(tmp_path):
    its = clock.Clock(tmp_path / "clock")
    for path, text in (("missing", None), ("short", b"1234")):
        its.path = tmp_path / path
        if text:
            its.path.write_bytes(text)
        assert all(-2 < off < 60 for off in look(its))


def test_a_clock_that_runs_fast_keeps_its_lead_when_it_runs_true_again(tmp_path, monkeypatch):
    now = 10**12
    monkeypatch.setattr(clock.time, "monotonic_ns", lambda: now)
    its = clock.Clock(tmp_path / "clock")
    its.run_at(3)
    now += 5 * 10**9
    its.run_at(0.5)  # 10 s ahead by now
    now += 4 * 10**9
    its.run_at(1)  # and 2 s lost again
    assert (its.jump_s, its.rate, its.right) == (0, 1, False)
    monkeypatch.undo()
    assert all(6 < off < 68 for off in look(its)[:4])


_SPIN = """
import sys, time
least, most, other = 0, 0, 0
start = time.monotonic()
while time.monotonic() - start < 1:
    off = time.time() - float(sys.argv[1]) - (time.monotonic() - float(sys.argv[2]))
    if abs(off) < 60: least += 1
    elif abs(off - 2e6) < 60: most += 1
    else: other += 1
print(least, most, other)
"""


def test_a_reader_never_sees_half_a_change(tmp_path):
    # The jump of +10^6 s and the drift of another 10^6 s are two numbers in the file; only 0 or both may be seen.
    its = clock.Clock(tmp_path / "clock")
    env = {**os.environ, "LD_PRELOAD": str(clock.library()), "LABKIT_CLOCK": str(its.path)}
    command = [sys.executable, "-c", _SPIN, str(time.time()), str(time.monotonic())]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as reader:
        while reader.poll() is None:
            for both in (10**15, 0):
                its._write(its._read()[0], both, both, 0, 0)
        least, most, other = map(int, reader.stdout.read().split())
    assert least and most and not other


def test_it_is_compiled_once_for_many_at_once(tmp_path):
    home = tmp_path / "a home of blanks, ä"
    env = {**os.environ, "LABKIT_HOME": str(home)}
    code = "from labkit import clock; print(clock.library())"
    labs = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(10)]
    told = {lab.communicate(timeout=100)[0].decode().strip() for lab in labs}
    assert {lab.returncode for lab in labs} == {0}
    assert [str(path) for path in home.iterdir()] == list(told)


# -- the fault, on servers


def test_a_jump_forwards_expires_a_key_at_once_and_a_jump_back_lets_it_live(lab):
    store = lab.redis()
    client = store.client()
    with lab.run("jumps") as e:
        client.set("lock", "A", ex=30)
        lab.set_clock(store, jump_s=60)
        assert client.get("lock") is None
        client.set("lock", "B", ex=30)
        lab.set_clock(store, jump_s=-120)
        assert 140 < client.ttl("lock") <= 150
        assert -75 < ahead_s(store) < -59
    assert -15 < ahead_s(store) < 1
    spans = e.timeline.spans(lane="redis-1")
    assert [(s.name, s.how, s.data["fault"]) for s in spans] == [
        ("clock +60 s", "ended", True),
        ("clock -60 s", "ended", True),
    ]


def test_a_fast_clock_shortens_a_lease_and_one_that_stands_never_ends_it(lab):
    fast, true, still = (node.client() for node in lab.redis(3))
    nodes = lab.nodes
    with lab.run("rates") as e:
        lab.set_clock(nodes[0], rate=10)
        lab.set_clock(nodes[2], rate=0)
        still.set("lock", "A", px=100)
        true.set("lock", "A", px=20_000)
        fast.set("lock", "A", px=2000)
        lab.until("2 s are over on the fast one", lambda: fast.get("lock") is None)
        assert true.get("lock") == "A" and still.get("lock") == "A"
        lab.set_clock(nodes[2], rate=1)
        lab.until("the last is over, once its clock goes on", lambda: still.get("lock") is None)
    assert [(s.lane, s.name) for s in e.timeline.spans() if s.data.get("fault")] == [
        ("redis-1", "clock x10"),
        ("redis-3", "clock x0"),
        ("redis-3", "clock"),
    ]


def test_clocks_that_differ_and_keep_pace_do_no_harm(lab):
    nodes = lab.redis(3)
    with lab.run("offsets"):
        for node, hours in zip(nodes, (-5, 0, 7), strict=True):
            if hours:
                lab.set_clock(node, jump_s=3600 * hours)
        for node in nodes:
            node.client().set("long", "A", px=30_000)
            node.client().set("short", "A", px=100)
        lab.until("the short leases are over", lambda: not any(node.client().exists("short") for node in nodes))
        assert all(15_000 < node.client().pttl("long") <= 30_000 for node in nodes)


def test_one_jump_lets_two_have_a_majority_of_five(lab):
    nodes = lab.redis(5)
    with lab.run("two majorities"):
        a = [node.client().set("lock", "A", nx=True, px=30_000) for node in nodes[:3]]
        assert nodes[2].client().set("lock", "B", nx=True, px=30_000) is None
        lab.set_clock(nodes[2], jump_s=31)
        b = [node.client().set("lock", "B", nx=True, px=30_000) for node in nodes[2:]]
    assert all(a) and all(b)


def test_the_clock_of_a_machine_outlives_its_server(lab):
    store = lab.redis()
    with lab.run("restart"):
        lab.set_clock(store, jump_s=1000)
        lab.restart(store, data="lost")
        assert 900 < ahead_s(store) < 1001
        lab.kill(store)
        lab.reset_clock(store)
        lab.restart(store, data="kept")
        assert ahead_s(store) < 1


def test_jumps_that_cancel_out_leave_no_fault(lab):
    store = lab.redis()
    with lab.run("there and back") as e:
        lab.set_clock(store, jump_s=5)
        lab.set_clock(store, jump_s=-5)
        with pytest.raises(LabError, match="is right"):
            lab.reset_clock(store)
    assert [s.name for s in e.timeline.spans()] == ["clock +5 s"]


@pytest.mark.parametrize(
    "how", [{}, {"rate": -1}, {"rate": 1e6}, {"jump_s": 1e9}, {"jump_s": float("nan")}, {"jump_s": 1, "rate": -1}]
)
def test_a_clock_that_cannot_be_set_so_is_told_and_stays_right(lab, how):
    store = lab.redis()
    with lab.run("misuse") as e, pytest.raises(LabError, match="cannot be set like that") as told:
        lab.set_clock(store, **how)
    assert len(str(told.value).splitlines()) == 3
    assert not e.timeline.lanes and abs(ahead_s(store)) < 1


def test_who_has_no_clock_of_its_own_is_unsupported_and_who_does_not_run_cannot_be_set(lab):
    store = lab.redis()
    with lab.run("misuse"):
        a = lab.worker("A", lambda w: w.mark("waits")).run_to("waits")
        with pytest.raises(Unsupported, match="The clock of A"):
            lab.set_clock(a, jump_s=1)
        lab.pause(store)
        with pytest.raises(LabError, match="redis-1 is frozen"):
            lab.set_clock(store, jump_s=1)


@pytest.mark.local
def test_without_a_compiler_all_works_but_the_clock(tmp_path, monkeypatch):
    programs_here = tmp_path / "bin"
    programs_here.mkdir()
    for path in (programs.find("redis-server").path, shutil.which("setpriv")):
        (programs_here / Path(path).name).symlink_to(path)
    monkeypatch.setenv("PATH", str(programs_here))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    with Lab("bare") as lab:
        assert not lab.can("clock") and lab.can("pause")
        store = lab.redis()
        assert store.client().ping()
        with pytest.raises(Unsupported, match="cannot be moved") as told:
            lab.set_clock(store, jump_s=1)
    assert len(str(told.value).splitlines()) == 3


def test_folders_with_blanks_and_other_letters_do_no_harm(tmp_path, monkeypatch):
    for name in ("LABKIT_HOME", "LABKIT_TMP"):
        folder = tmp_path / f"{name} ä b"
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    with Lab("blanks") as lab:
        assert lab.can("clock")
        store = lab.redis()
        primary, replica = lab.redis(replicas=1)
        with lab.run("jump"):
            lab.set_clock(store, jump_s=60)
            assert 50 < ahead_s(store) < 61
            lab.cut_replication(replica)
            lab.restart(primary, data="kept")
            lab.promote(replica)
    assert not Path(store._lab._session.folder).exists()
