"""The recipes of chapter 02, loaded from its own cells, under seeded faults: many small experiments side by side.

Each experiment has a lock and an account of its own, on the same five Redis and in the same table. What the database
itself counted is the truth: an answer that was cut off tells nobody what happened.
"""

import contextlib
import random
import sys
import threading
import time
import types
from collections import Counter
from dataclasses import dataclass
from http.client import HTTPConnection

import cloudpickle
import psycopg
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from plans import eventually, reaches, side_by_side

from labkit import Lab, check, recall
from labkit.check import VIOLATED

pytest_plugins = ["told"]

recipes = recall("02-redlock-debate")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

AT_ONCE, TIMES, START = 20, 2, 1000
TTL_MS, LONG_MS = 800, 30_000
FAILURES = (redis.exceptions.RedisError, psycopg.Error)


class Forgetful(recipes.RegisteredOnRead):
    """The planted fault: a read registers its number, and no write looks at it."""

    write_sql = recipes.Account.write_sql


# What withdraws from which account, and under how many of the plans.
KINDS = {
    "registered": (recipes.RegisteredOnRead, 200),
    "compared": (recipes.TokenCompared, 50),
    "unchecked": (recipes.Account, 50),
    "planted": (Forgetful, 50),
}
SAFE = ("registered", "compared")


class Patient:
    """What a recipe sees as `w` among many others: one client a server for all its turns, and eight times the time."""

    def __init__(self, w):
        self._w, self._clients = w, {}

    def __getattr__(self, name):
        return getattr(self._w, name)

    def work(self, seconds):
        self._w.work(8 * seconds)

    def client(self, node):
        known = self._clients.get(node.name)
        if known is None or getattr(known, "closed", False):
            timeout_s = 0.5 if node.kind == "redis" else 2.0  # five that do not answer are waited for in turn
            known = self._clients[node.name] = self._w.client(node, timeout_s=timeout_s)
        return known


def again(w, times, failures, job, *what, **how):
    """A job again and again, whatever fails on the way. (It is told all: a worker takes 0.4 s to load all recipes.)"""
    patient = Patient(w)
    for _ in range(times):
        with contextlib.suppress(*failures):
            job(patient, *what, **how)


def over(nodes, key: str) -> None:
    """Wait until no server shows the token that is there now: its time to live in one piece, as many wait at once."""
    for node in nodes:
        with node.client() as client:
            token, left_ms = client.pipeline().get(key).pttl(key).execute()
            while token is not None and client.get(key) == token:
                threading.Event().wait(max(0.02, left_ms / 1000 + 0.005))
                left_ms = client.pttl(key)


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes02") as lab:
        yield lab


@pytest.fixture(scope="module")
def nodes(lab):
    return lab.redis(n=5)


@pytest.fixture(scope="module")
def db(lab):
    node = lab.postgres(config={"max_connections": 300})
    with node.client() as sql:
        sql.execute("CREATE TABLE account (id text PRIMARY KEY, balance int, writes int, seen bigint, token text)")
        sql.execute("CREATE SEQUENCE fence")
    return node


def opened(db, key: str) -> None:
    with db.client() as sql:
        sql.execute("INSERT INTO account VALUES (%s, %s, 0, 0, '')", [key, START])


def sums(db, key: str) -> tuple[int, int]:
    """(how much is gone from the account, the number of its writes)."""
    with db.client() as sql:
        left, writes = sql.execute("SELECT balance, writes FROM account WHERE id = %s", [key]).fetchone()
    return START - left, writes


def voters(nodes):
    return recipes.Voters([node.client() for node in nodes])


# -- 200 plans
@dataclass(frozen=True)
class Step:
    """When `who` gets to this mark, the fault strikes it, or its way to the bank, or to some of the five servers."""

    who: str
    mark: str
    fault: str
    way: str

    @property
    def splits(self) -> bool:
        """It sleeps between its look at the balance and its write, until the other one is inside and has written."""
        return self.fault == "freeze" and self.mark in ("read", "has thought")


MARKS = ("has asked", "holds", "read", "read", "has thought", "has thought", "wrote")
FAULTS = ("freeze", "freeze", "kill", "cut", "replies cut", "late")
WAYS = ("bank", "one server", "a majority", "all servers")


def plan(seed: int) -> list[Step]:
    dice = random.Random(f"redlock {seed}")
    steps = dice.choice((1, 1, 2))
    return [Step(dice.choice("AB"), dice.choice(MARKS), dice.choice(FAULTS), dice.choice(WAYS)) for _ in range(steps)]


@dataclass
class Outcome:
    seed: int
    kind: str
    key: str
    struck: list[Step]  # after which the other one came in and wrote
    gone: int
    writes: int
    order: check.Verdict | None = None

    @property
    def right(self) -> bool:
        return self.gone == self.writes

    @property
    def split(self) -> bool:
        return self.struck[-1:] == plan(self.seed)[-1:] and self.struck[-1].splits


def play(lab, nodes, db, seed: int, kind: str) -> Outcome:
    """Two workers withdraw 1, the plan strikes them, all is mended, both come to their end; then the sums."""
    key = f"lock:{kind}:{seed}"
    opened(db, key)
    job = again, TIMES, FAILURES, recipes.withdraw, nodes, db, recipes.Redlock, TTL_MS, KINDS[kind][0]
    workers = {who: lab.worker(f"{who} {kind} {seed}", *job, amount=1, patience_s=30, key=key) for who in "AB"}
    struck = [step for step in plan(seed) if strike(lab, nodes, db, step, workers, key)]
    for worker in workers.values():
        if worker.state != "killed":
            worker.join(90)
    return Outcome(seed, kind, key, struck, *sums(db, key))


def strike(lab, nodes, db, step: Step, workers, key: str) -> bool:
    """True if the fault struck, and the other one came in and wrote before it was over."""
    me, other = workers[step.who], workers["AB".replace(step.who, "")]
    if me.state == "killed" or not reaches(me, step.mark):
        return False
    way = {"bank": [db], "one server": nodes[2:3], "a majority": nodes[1:4], "all servers": nodes}[step.way]
    if step.fault == "freeze":
        lab.pause(me)
        over(nodes, key)
    elif step.fault == "kill":
        lab.kill(me)
    elif step.fault == "late":
        for node in way:
            lab.delay(me, node, ms=60)
        me.start()
    else:
        lab.cut(me, *way, how="replies" if step.fault == "replies cut" else "black hole")
        me.start()
    wrote = other.state != "killed" and reaches(other, "wrote")
    if step.fault == "freeze":
        lab.resume(me)
    elif step.fault != "kill":
        lab.heal(me, *way)
    if wrote:
        other.start()
    return wrote


@pytest.fixture(scope="module")
def outcomes(lab, nodes, db) -> list[Outcome]:
    found = []
    experiments = [(seed, kind) for seed in range(200) for kind, (_, plans) in KINDS.items() if seed < plans]
    for first in range(0, len(experiments), 2 * AT_ONCE):
        now = experiments[first : first + 2 * AT_ONCE]
        with lab.run(f"plans from {now[0]}") as run:
            ours = side_by_side(lambda pair: play(lab, nodes, db, *pair), now)
        for outcome in ours:
            outcome.order = check.token_order(run.timeline, outcome.key.replace("lock", "balance", 1))
        found += ours
    return found


def of(outcomes, kind: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == kind]


@pytest.mark.timeout(600)
def test_what_came_of_the_plans_is_told(outcomes, record_property):
    for kind, (_, plans) in KINDS.items():
        ours = of(outcomes, kind)
        wrong, split = sum(not o.right for o in ours), sum(o.split for o in ours)
        record_property("told", f"02, {kind}: of {len(ours)} plans {split} let a holder sleep on, {wrong} did harm")
        assert len(ours) == plans


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    assert [plan(seed) for seed in range(200)] == [plan(seed) for seed in range(200)]
    steps = [step for seed in range(200) for step in plan(seed)]
    assert {step.fault for step in steps} == set(FAULTS) and {step.mark for step in steps} == set(MARKS)
    assert {step.way for step in steps} == set(WAYS)


@pytest.mark.parametrize("kind", SAFE)
def test_a_resource_that_settles_it_with_the_first_read_is_never_wrong(outcomes, kind):
    ours = of(outcomes, kind)
    assert [o for o in ours if not o.right] == []
    assert sum(o.split for o in ours) >= 5, "the plans hardly ever made two holders"
    assert sum(o.writes for o in ours) > len(ours)
    if kind == "registered":  # the others need no number that grows
        assert [o for o in ours if o.order.status == VIOLATED] == []


@pytest.mark.parametrize("kind", ["unchecked", "planted"])
def test_without_a_check_on_the_write_money_is_lost_whenever_a_holder_sleeps_over_it(outcomes, kind):
    split = [o for o in of(outcomes, kind) if o.split]
    assert len(split) >= 5
    assert [o for o in split if o.right] == []
    assert [o for o in split if o.order.status != VIOLATED] == []
    assert sum(o.right for o in of(outcomes, kind)) >= 5, "even the plans without a sleep over a write did harm"


# -- one scene, many keys at once
def scene(lab, nodes, db, at: str, until: str, account, fault, mend, n: int = 10) -> list[tuple]:
    """n times: A is struck at a mark until B has come this far. [(A took it, B took it, gone, writes), …]."""
    keys = [f"lock:{account.__name__}:{at}:{until}:{fault.__name__}:{i}" for i in range(n)]
    for key in keys:
        opened(db, key)

    def one(key):
        job = recipes.withdraw, nodes, db, recipes.Redlock
        a = lab.worker(f"A {key}", *job, TTL_MS, account, 1, patience_s=30, key=key).run_to(at, timeout_s=30)
        fault(a)
        over(nodes, key)
        b = lab.worker(f"B {key}", *job, LONG_MS, account, 1, patience_s=30, key=key).run_to(until, timeout_s=30)
        mend(a)
        said = a.join(60), b.join(60)
        return (*(bool(answer and answer[0]) for answer in said), *sums(db, key))

    with lab.run(f"{account.__name__}: struck at {at}, B comes to {until}"):
        return side_by_side(one, keys)


@pytest.fixture
def freeze(lab):
    return lab.pause, lab.resume


@pytest.mark.parametrize(
    ("account", "until", "wanted"),
    [
        (recipes.Account, "wrote", (True, True, 1, 2)),
        (recipes.CheckedOnWrite, "wrote", (False, True, 1, 1)),
        (recipes.CheckedOnWrite, "has thought", (True, True, 1, 2)),
        (recipes.CheckedOnWrite, "holds", (True, True, 2, 2)),
        (recipes.RegisteredOnRead, "has thought", (False, True, 1, 1)),
        (recipes.TokenCompared, "has thought", (False, True, 1, 1)),
    ],
)
def test_of_a_freeze_between_look_and_write(lab, nodes, db, freeze, account, until, wanted):
    """Unchecked, and checked on write alone, a withdrawal is lost; settled with the first read, A is refused."""
    assert set(scene(lab, nodes, db, "has thought", until, account, *freeze)) == {wanted}


@pytest.mark.parametrize(
    ("account", "wanted"), [(recipes.Account, (True, True, 1, 2)), (recipes.RegisteredOnRead, (False, True, 1, 1))]
)
def test_a_holder_that_is_cut_off_works_on_and_only_the_resource_refuses_it(lab, nodes, db, account, wanted):
    """Case 8: its lease ends without it, another one goes in, and its old number is refused."""

    def cut_off(a):
        lab.cut(a, *nodes)

    def works_on(a):
        reaches(a, "wrote")
        lab.heal(a)

    assert set(scene(lab, nodes, db, "has thought", "wrote", account, cut_off, works_on)) == {wanted}


def test_a_pause_before_the_last_look_at_the_clock_is_caught(lab, nodes, db):
    def one(key):
        opened(db, key)
        a = lab.worker(f"A {key}", recipes.withdraw, nodes, db, recipes.Redlock, TTL_MS, patience_s=0, key=key)
        lab.pause(a, at="has asked")
        over(nodes, key)
        lab.resume(a)
        return a.join(60), sums(db, key), any(client.exists(key) for client in voters(nodes).clients)

    with lab.run("early pauses"):
        assert set(side_by_side(one, [f"lock:early:{i}" for i in range(10)])) == {(None, (0, 0), False)}


# -- servers that forget, many keys at once
def rivals(nodes, fault, keys, ttl_ms: int = LONG_MS) -> tuple[int, int]:
    """A holds servers 1, 2, 3 under every key; the fault strikes server 3; B tries. How many got in: (of A, of B)."""
    clients = [node.client() for node in nodes]
    for client in clients:
        client.flushall()
    for client in clients[3:]:
        client.mset(dict.fromkeys(keys, "somebody"))  # as good as out of A's reach
    of_a = [recipes.Redlock(clients, key, ttl_ms).acquire() for key in keys]
    for client in clients[3:]:
        client.delete(*keys)
    fault(nodes[2])
    clients[2] = nodes[2].client()
    return sum(of_a), sum(recipes.Redlock(clients, key, LONG_MS).acquire() for key in keys)


KEYS = [f"key {i}" for i in range(40)]


def test_nothing_happens_and_no_rival_gets_in(nodes):
    assert rivals(nodes, lambda node: None, KEYS) == (40, 0)


def test_a_clock_that_jumps_makes_two_holders_of_every_lock(lab, nodes):
    if not lab.can("clock"):
        pytest.skip("no C compiler")
    with lab.run("a jump"):
        assert rivals(nodes, lambda node: lab.set_clock(node, jump_s=60), KEYS) == (40, 40)
    with lab.run("a jump before the lease is none"):
        lab.set_clock(nodes[2], jump_s=3600)
        assert rivals(nodes, lambda node: None, KEYS) == (40, 0)


@pytest.mark.parametrize(("config", "in_"), [({}, 40), ({"appendonly": "yes", "appendfsync": "always"}, 0)])
def test_a_server_that_comes_back_lets_a_rival_in_exactly_if_it_forgot(lab, config, in_):
    five = lab.redis(n=5, config=config)

    def restart(node):
        lab.kill(node)
        lab.restart(node, data="kept")

    assert rivals(five, restart, KEYS) == (40, in_)
    assert rivals(five, lab.kill, KEYS) == (40, 0)  # and while it stays away, nobody gets in
    for node in five:
        if node.state != "dead":
            lab.kill(node)


# -- the pieces
class Fake:
    """A server's answers for the arithmetic: yes or no, and each takes its time. Real ones are everywhere else."""

    def __init__(self, clock, yes: bool, took_s: float):
        self.clock, self.yes, self.took_s, self.given_back = clock, yes, took_s, 0

    def set(self, *what, **how):
        self.clock[0] += self.took_s
        return self.yes

    def eval(self, *what):
        self.given_back += 1
        return 1


@given(
    ttl_ms=st.integers(10, 60_000),
    shares=st.lists(st.floats(0, 0.5), min_size=5, max_size=5),
    votes=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_the_validity_is_ttl_less_elapsed_less_drift(ttl_ms, shares, votes):
    """Case 5: a library took elapsed - drift from the TTL, and so counted on too much."""
    clock = [100.0]
    fakes = [Fake(clock, yes, share * ttl_ms / 1000) for yes, share in zip(votes, shares, strict=True)]
    lock = recipes.Redlock(fakes, "lock", ttl_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
        held = lock.acquire()
        left_s = lock.valid_s()
    wanted_s = (ttl_ms - sum(shares) * ttl_ms - (ttl_ms * 0.01 + 2)) / 1000
    assert left_s == pytest.approx(wanted_s, abs=1e-6)
    assert held == (sum(votes) >= 3 and left_s > 0)
    assert {fake.given_back for fake in fakes} == {0 if held else 1}


class AnswerLost:
    """A client of a real server; the answer to its SET does not arrive."""

    def __init__(self, client):
        self.client, self.eval, self.get = client, client.eval, client.get

    def set(self, *what, **how):
        self.client.set(*what, **how)
        raise redis.exceptions.TimeoutError("no answer")


@pytest.mark.parametrize("lock_class", [recipes.Redlock, recipes.RedlockAtOnce])
@pytest.mark.parametrize("lost", [(2, 3, 4), (0, 2, 4), (0, 1, 2, 3, 4)])
def test_an_acquisition_that_failed_is_given_back_where_its_answer_was_lost(nodes, lock_class, lost):
    clients = [node.client() for node in nodes]
    for client in clients:
        client.flushall()
    over = [AnswerLost(client) if i in lost else client for i, client in enumerate(clients)]
    assert not lock_class(over, "lock", LONG_MS).acquire()
    # One that asks all at once leaves when three have answered: the other two may come later.
    eventually(lambda: not any(client.exists("lock") for client in clients), "it is given back")
    assert lock_class([AnswerLost(clients[0]), *clients[1:]], "lock", LONG_MS).acquire()  # one lost answer is borne


def test_whose_lock_it_is_the_servers_say_and_not_an_object(nodes):
    """Case 6: another object asks; a minority is no owner; nor is a holder whose copies are gone."""
    for node in nodes:
        node.client().flushall()
    lock, asker = recipes.Redlock(voters(nodes).clients, "lock", LONG_MS), voters(nodes)
    assert asker.owner("lock") is None
    assert lock.acquire() and asker.owner("lock") == lock.token
    for node in nodes[:2]:
        node.client().delete("lock")
    assert asker.owner("lock") == lock.token
    nodes[2].client().set("lock", "another")
    assert asker.owner("lock") is None and lock.valid_s() > 0
    assert not lock.release() and asker.clients[2].get("lock") == "another"


def test_asked_at_once_the_slow_ones_are_not_waited_for(lab, nodes):
    """A server that never answers costs the patient way its whole time-out, and the other way nothing."""
    for node in nodes:
        node.client().flushall()
    clients = [node.client(timeout_s=1.5) for node in nodes]
    took_s = {}
    with lab.run("one server is frozen"):
        lab.pause(nodes[0])
        for lock_class in (recipes.Redlock, recipes.RedlockAtOnce):
            lock, began = lock_class(clients, lock_class.__name__, LONG_MS), time.monotonic()
            assert lock.acquire()
            took_s[lock_class.__name__] = time.monotonic() - began
    assert took_s["Redlock"] >= 1.5 and took_s["RedlockAtOnce"] < took_s["Redlock"]


def test_a_lock_on_one_server_that_is_dead_is_no_lock_and_no_error(lab):
    alone = lab.redis()
    lock = recipes.OneRedis([alone.client()], "lock", LONG_MS)
    counted = recipes.CountedByRedis([alone.client()], "counted", LONG_MS)
    assert lock.acquire() and counted.acquire() and counted.fence == 1 and lock.release() and counted.release()
    assert counted.acquire() and counted.fence == 2
    lab.kill(alone)
    assert not lock.acquire() and not counted.release()


@pytest.mark.parametrize("lock_class", [recipes.Redlock, recipes.RedlockAtOnce, recipes.OneRedis])
def test_contenders_are_never_inside_together(lab, nodes, lock_class):
    with lab.run(f"{lock_class.__name__}, three contenders") as run:
        job = recipes.contend, nodes, lock_class, 5000, 15, f"lock {lock_class.__name__}"
        crowd = [lab.worker(name, *job).start() for name in "ABC"]
        tries = [one.join(90) for one in crowd]
    found = check.mutual_exclusion(run.timeline)
    assert found.ok, found
    assert min(tries) >= 15 and len(run.timeline.spans("holds")) == 45


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_the_locks_that_stand_for_chapter_03_exclude_and_are_given_back(lab, kind):
    node = getattr(lab, kind)()
    lock_class = {"etcd": recipes.EtcdLock, "zookeeper": recipes.ZooKeeperLock}[kind]
    with lab.run(f"{kind}, two contenders") as run:
        crowd = [lab.worker(n, recipes.contend, [node], lock_class, 20_000, 10, "lock").start() for n in "AB"]
        tries = [one.join(90) for one in crowd]
    assert check.mutual_exclusion(run.timeline).ok and min(tries) >= 10
    lab.kill(node)


def test_copies_whose_answers_were_lost_on_a_dead_way_stay_until_their_end(lab, nodes):
    for node in nodes:
        node.client().flushall()
    with lab.run("strays") as run:
        loser = lab.worker("A", lost_answers, nodes, recipes.Redlock, LONG_MS).run_to("connected")
        lab.cut(loser, *nodes[2:], how="replies")
        held, token = loser.join(60)
    assert not held and run.timeline.marks("has asked")[0].data["votes"] == 2
    assert [node.client().get("lock") for node in nodes[2:]] == [token] * 3
    assert all(0 < node.client().pttl("lock") <= LONG_MS for node in nodes[2:])


def lost_answers(w, nodes, lock_class, ttl_ms):
    """Its questions arrive, and the answers of three servers do not."""
    clients = [w.client(node, timeout_s=0.5) for node in nodes]
    for client in clients:
        client.ping()
    w.mark("connected")
    lock = lock_class(clients, "lock", ttl_ms, step=w.mark)
    return lock.acquire(), lock.token


def test_the_file_server_holds_what_came_with_the_highest_number(lab):
    dice = random.Random("files")
    with lab.run("files") as run:
        lab.worker("files", recipes.serve_files).run_to("serves").start()
        port, seen, holds = run.timeline.marks("serves")[0].data["port"], Counter(), {}
        for i in range(200):
            path, fence = f"/{dice.choice('ab')}", dice.randint(1, 40)
            server = HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.closing(server):
                server.request("PUT", path, f"{i}", {"Fence": str(fence)})
                answer = server.getresponse()
                body = answer.read().decode()
            if fence >= seen[path]:
                seen[path], holds[path] = fence, str(i)
                assert answer.status == 200
            else:
                assert answer.status == 412
            assert body == holds[path]
