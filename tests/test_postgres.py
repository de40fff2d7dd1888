import subprocess
import sys
from pathlib import Path

import cloudpickle
import psycopg
import pytest
from crash import processes_left

from labkit import Lab, Unsupported, WaitError, programs
from labkit.processes import descendants, stopped
from labkit.within import outcome_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are
pytestmark = pytest.mark.skipif(not programs.find("postgres"), reason="PostgreSQL is not on this machine")


@pytest.fixture
def lab():
    with Lab("postgres") as lab:
        yield lab


@pytest.fixture
def stock(lab):
    """A server with one row: id 1, n 10."""
    node = lab.postgres()
    with node.client() as db:
        db.execute("CREATE TABLE stock (id int PRIMARY KEY, n int)")
        db.execute("INSERT INTO stock VALUES (1, 10)")
    return node


def left(node) -> int:
    with node.client() as db:
        return db.execute("SELECT n FROM stock WHERE id = 1").fetchone()[0]


def family(node) -> list[int]:
    return [node.pid, *descendants(node.pid)]


def uid_of(pid: int) -> int | None:
    """None: it has ended meanwhile, as autovacuum's workers do at any moment."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[1])
    except OSError:
        return None


def shared_memory_of(pids) -> list[str]:
    """The System V segments that these processes made."""
    return [line for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:] if int(line.split()[4]) in pids]


def test_it_serves_and_each_node_has_a_database_of_its_own(lab, stock):
    other = lab.postgres(config={"max_connections": 7})
    with other.client() as db:
        assert db.autocommit
        assert db.execute("SHOW max_connections").fetchone() == ("7",)
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.execute("SELECT n FROM stock")
    assert left(stock) == 10


def test_it_never_runs_as_root(stock):
    uids = {uid for pid in family(stock) if (uid := uid_of(pid)) is not None}
    assert len(uids) == 1 and 0 not in uids


def take_one(w, stock, timeout_s=0.3):
    db = w.client(stock, timeout_s=timeout_s)
    w.mark("connected")
    with w.span("takes"):
        db.execute("UPDATE stock SET n = n - 1 WHERE id = 1")


@pytest.mark.parametrize("how, then", [("black hole", 10), ("replies", 9)])
def test_a_cut_link_leaves_the_outcome_unknown(lab, stock, how, then):
    with lab.run("cut") as e:
        a = lab.worker("A", take_one, stock).run_to("connected")
        lab.cut(a, stock, how=how)
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            a.join()
        lab.heal(a, stock)
        assert [s.outcome for s in e.timeline.spans("takes")] == ["unknown"]
        assert left(stock) == then
        b = lab.worker("B", take_one, stock)
        b.join()
    assert left(stock) == then - 1


def test_what_the_server_refuses_is_no_unknown_outcome(stock):
    with stock.client() as db, pytest.raises(psycopg.errors.UniqueViolation) as refused:
        db.execute("INSERT INTO stock VALUES (1, 1)")
    assert outcome_of(refused.value) == "fail"
    with (
        stock.client() as one,
        stock.client() as two,
        one.transaction(),
        pytest.raises(psycopg.OperationalError) as busy,
    ):
        one.execute("SELECT n FROM stock WHERE id = 1 FOR UPDATE")
        two.execute("SELECT n FROM stock WHERE id = 1 FOR UPDATE NOWAIT")
    assert outcome_of(busy.value) == "fail"


def connect_for_ever(w, stock):
    w.mark("begins")
    while not w.stopping:
        w.client(stock, direct=True).close()


def test_a_pause_stops_every_process_of_it_also_while_new_ones_are_made(lab, stock):
    with lab.run("pause"):
        lab.worker("A", connect_for_ever, stock).run_to("begins").start()
        for _ in range(5):
            lab.pause(stock)
            assert all(stopped(pid) for pid in family(stock))
            lab.resume(stock)
        lab.pause(stock)
        b = lab.worker("B", take_one, stock, 2).start()
        with pytest.raises(psycopg.OperationalError):
            b.join()
        lab.resume(stock)
        assert left(stock) == 10


def test_a_kill_ends_every_process_of_it_and_the_restart_finds_what_was_committed(lab, stock):
    open_before = stock.client()
    pids = family(stock)
    assert len(pids) > 3
    lab.kill(stock)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with pytest.raises(psycopg.OperationalError):
        open_before.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        stock.client()
    lab.restart(stock, data="kept")
    assert left(stock) == 10
    lab.restart(stock, data="lost")
    with pytest.raises(psycopg.errors.UndefinedTable):
        left(stock)


def test_the_observer_tells_each_value_and_when_the_server_is_silent(lab, stock):
    query = "SELECT n FROM stock WHERE id = 1"
    with lab.run("watch") as e:
        lab.watch(stock, query)
        lab.worker("A", take_one, stock).join()
        lane = f"{query} (postgres-1 says)"
        lab.until("9 was seen", lambda: 9 in [s.data["owner"] for s in e.timeline.spans("owner", lane)])
        lab.pause(stock)
        lab.until("it is silent", lambda: e.timeline.spans("no answer", lane))
        lab.resume(stock)
        lab.until("it is back", lambda: e.timeline.spans("no answer", lane)[0].how == "ended")
    assert [s.data["owner"] for s in e.timeline.spans("owner", lane)][:3] == [10, 9, 9]


def test_a_misspelt_query_is_told_at_once(lab, stock):
    with lab.run("watch"), pytest.raises(WaitError, match="UndefinedColumn"):
        lab.watch(stock, "SELECT m FROM stock")


def test_rows_do_not_expire(lab, stock):
    with pytest.raises(Unsupported, match="TTL"):
        lab.wait_gone(stock, "stock")


@pytest.mark.local
def test_nothing_is_left_after_close(lab, stock):
    pids = family(stock)
    assert shared_memory_of(pids)
    lab.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not shared_memory_of(pids)


def test_nothing_is_left_of_a_killed_kernel(tmp_path):
    pids = tmp_path / "pids"
    cell = f"db, other = lab.postgres(), lab.postgres(); open({str(pids)!r}, 'w').write(f'{{db.pid}} {{other.pid}}')"
    before, left = processes_left(f"{cell}; connected = db.client(); lab.pause(db)")
    assert before.count("postgres") > 8
    assert not left
    assert not shared_memory_of([int(pid) for pid in pids.read_text().split()])


@pytest.mark.local
def test_labs_that_begin_at_once_share_one_template(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    code = (
        "from labkit import Lab\nwith Lab('one') as lab: assert lab.postgres().client().execute('SELECT 1').fetchone()"
    )
    labs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [one.wait(60) for one in labs] == [0] * 4
    assert [path.name.split("-")[0] for path in tmp_path.iterdir() if path.name != "records"] == ["postgres"]
    assert not shared_memory_of([one.pid for one in labs])
