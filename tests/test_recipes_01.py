"""The recipes of chapter 01, loaded from its own cells, under seeded faults: many small experiments side by side.

Each experiment has a database of its own on every server, so recipes run as they are written, all of them with a lock
called "lock". What the account itself counted is the truth: an answer that was cut off tells nobody what happened.
"""

import contextlib
import random
import sys
from dataclasses import dataclass

import cloudpickle
import psycopg
import pytest
import redis
from plans import eventually, reaches, side_by_side

from labkit import Lab, check, recall
from labkit.check import VIOLATED

pytest_plugins = ["told"]

recipes = recall("01-locks")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

PLANS, AT_ONCE, TIMES = 200, 20, 3
TTL_MS, LONG_MS, EVERY_S = 800, 30_000, 0.05
START = 1000


class Forgetful(recipes.CheckingAccount):
    """The planted fault: it looks at the number when it is read, and not when it is written."""

    write = recipes.Account.write


# What withdraws, and from where. The last is the planted fault, and runs under the first plans only.
KINDS = {
    "unchecked": (recipes.SafeLock, recipes.Account),
    "fenced": (recipes.FencedLock, recipes.CheckingAccount),
    "conditional": (recipes.SafeLock, recipes.SeenShop),
    "planted": (recipes.FencedLock, Forgetful),
}
PLANTED_PLANS = 60
FREE = 1 + len(KINDS) * PLANS  # from this place on there is room for the other experiments


# -- experiments that know nothing of each other
class Apart:
    """What a recipe sees as `w` in one of many experiments: databases of its own, and its own names in the record."""

    def __init__(self, w, place: int):
        self._w, self._place, self._clients = w, place, {}

    def __getattr__(self, name):
        return getattr(self._w, name)

    def client(self, node, **options):
        """The same one each time, while it lives: new connections for each withdrawal would take most of the time."""
        which = (node.name, *options.items())
        known = self._clients.get(which)
        if known is None or getattr(known, "closed", False):
            own = {"db": self._place} if node.kind == "redis" else {"options": f"-c search_path=place{self._place}"}
            known = self._clients[which] = self._w.client(node, **own, **options)
        return known

    def span(self, name, *, lock, **data):
        return self._w.span(name, lock=f"{lock} {self._place}", **data)

    def has_read(self, resource, *value, **data):
        self._w.has_read(f"{resource} {self._place}", *value, **data)

    def wrote(self, resource, *value, **data):
        self._w.wrote(f"{resource} {self._place}", *value, **data)


def apart(w, place, job, *what, **how):
    return job(Apart(w, place), *what, **how)


def again(w, times, failures, job, *what, **how):
    """A job again and again, whatever fails on the way."""
    for _ in range(times):
        with contextlib.suppress(*failures):
            job(w, *what, **how)


def over(client) -> None:
    """Wait until the lock that is there now is not there any more. Asserts nothing of how long that takes."""
    token = client.get("lock")
    eventually(lambda: token is None or client.get("lock") != token, "the lease is over")


def place(seed: int, kind: str) -> int:
    """The number of an experiment: of its databases, and in its names."""
    return 1 + PLANS * list(KINDS).index(kind) + seed


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes") as lab:
        yield lab


@pytest.fixture(scope="module")
def servers(lab):
    """(store, bank, db): two Redis with a database for each experiment, and a PostgreSQL with a schema for each."""
    store, bank = lab.redis(n=2, config={"databases": FREE + 100})
    db = lab.postgres(config={"max_connections": 200})
    with db.client() as client:
        for seed in range(PLANS):
            client.execute(f"CREATE SCHEMA place{place(seed, 'conditional')} CREATE TABLE stock (n int, writes int)")
            client.execute(f"INSERT INTO place{place(seed, 'conditional')}.stock VALUES ({START}, 0)")
    return store, bank, db


# -- 200 plans
@dataclass(frozen=True)
class Step:
    """When `who` gets to this mark, the fault strikes it (on its way to the store, or to the bank)."""

    who: str
    mark: str
    fault: str
    way: str

    @property
    def splits(self) -> bool:
        """It sleeps between its look at the balance and its write, until another one is inside."""
        return self.fault == "freeze" and self.mark in ("read", "has thought")


MARKS = ("holds", "read", "read", "has thought", "has thought", "wrote", "gives it back")
FAULTS = ("freeze", "freeze", "kill", "cut", "replies cut", "late")


def plan(seed: int) -> list[Step]:
    dice = random.Random(f"plan {seed}")
    return [
        Step(dice.choice("AB"), dice.choice(MARKS), dice.choice(FAULTS), dice.choice(("store", "bank")))
        for _ in range(dice.choice((1, 1, 2)))
    ]


@dataclass
class Outcome:
    seed: int
    kind: str
    place: int
    struck: list[Step]  # after which the other one came in and wrote
    taken: int
    writes: int
    stuck: bool
    recorded: int = -1  # how many of the writes the record tells of; what follows is judged from it
    updates: check.Verdict | None = None
    order: check.Verdict | None = None

    @property
    def right(self) -> bool:
        return self.taken == self.writes

    @property
    def split(self) -> bool:
        """The last fault was a sleep between look and write, and another one wrote meanwhile."""
        return self.struck[-1:] == plan(self.seed)[-1:] and self.struck[-1].splits


def play(lab, servers, seed: int, kind: str) -> Outcome:
    """Two workers withdraw, the plan strikes them, all is mended, both come to their end; then the sums."""
    store, bank, db = servers
    lock_class, account = KINDS[kind]
    number = place(seed, kind)
    money = db if kind == "conditional" else bank
    locks, client = store.client(db=number), bank.client(db=number)
    client.set("balance", START)
    # A worker imports what it is sent: psycopg takes as long as all the rest, so only those get it who need it.
    failures = (redis.exceptions.RedisError, *([psycopg.Error] if kind == "conditional" else []))
    job = again, TIMES, failures, recipes.withdraw, store, money, lock_class, TTL_MS, 1, account, EVERY_S
    workers = {who: lab.worker(f"{who}{number}", apart, number, *job) for who in "AB"}
    struck = [step for step in plan(seed) if strike(lab, step, workers, {"store": store, "bank": money}, locks)]
    for worker in workers.values():
        if worker.state != "killed":
            worker.join(60)
    if kind == "conditional":
        with db.client(options=f"-c search_path=place{number}") as table:
            left, writes = table.execute("SELECT n, writes FROM stock").fetchone()
    else:
        left, writes = int(client.get("balance")), int(client.get("writes") or 0)
    return Outcome(seed, kind, number, struck, START - left, writes, stuck=locks.pttl("lock") == -1)


def strike(lab, step: Step, workers, ways, locks) -> bool:
    """True if the fault struck, and the other one came in and wrote before it was over."""
    me, other = workers[step.who], workers["AB".replace(step.who, "")]
    if me.state == "killed" or not reaches(me, step.mark):
        return False
    way = ways[step.way]
    if step.fault == "freeze":
        lab.pause(me)
        over(locks)
    elif step.fault == "kill":
        lab.kill(me)
    elif step.fault == "late":
        lab.delay(me, way, ms=150)
        me.start()
    else:
        lab.cut(me, way, how="replies" if step.fault == "replies cut" else "black hole")
        me.start()
    wrote = other.state != "killed" and reaches(other, "wrote")
    if step.fault == "freeze":
        lab.resume(me)
    elif step.fault != "kill":
        lab.heal(me, way)
    if wrote:
        other.start()
    return wrote


@pytest.fixture(scope="module")
def outcomes(lab, servers) -> list[Outcome]:
    found = []
    for first in range(0, PLANS, AT_ONCE):
        kinds = [kind for kind in KINDS if kind != "planted" or first < PLANTED_PLANS]
        experiments = [(seed, kind) for seed in range(first, first + AT_ONCE) for kind in kinds]
        with lab.run(f"plans {first} to {first + AT_ONCE - 1}") as run:
            now = side_by_side(lambda pair: play(lab, servers, *pair), experiments)
        for outcome in now:
            resource = f"{KINDS[outcome.kind][1].name} {outcome.place}"
            outcome.recorded = len(check.history(run.timeline, resource))
            outcome.updates = check.no_lost_update(run.timeline, resource)
            outcome.order = check.token_order(run.timeline, resource)
        found += now
    return found


def of(outcomes, kind: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == kind]


def test_what_came_of_the_plans_is_told(outcomes, record_property):
    for kind in KINDS:
        ours = of(outcomes, kind)
        wrong, split = sum(not o.right for o in ours), sum(o.split for o in ours)
        record_property("told", f"01, {kind}: of {len(ours)} plans {split} let a holder sleep on, {wrong} did harm")
    assert {o.seed for o in outcomes} == set(range(PLANS))


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    assert [plan(seed) for seed in range(PLANS)] == [plan(seed) for seed in range(PLANS)]
    steps = [step for seed in range(PLANS) for step in plan(seed)]
    assert {step.fault for step in steps} == set(FAULTS) and {step.mark for step in steps} == set(MARKS)
    assert sum(plan(seed)[-1].splits for seed in range(PLANTED_PLANS)) >= 10


@pytest.mark.parametrize("kind", ["fenced", "conditional"])
def test_a_resource_that_checks_is_never_wrong(outcomes, kind):
    ours = of(outcomes, kind)
    assert len(ours) == PLANS
    assert [o for o in ours if not o.right or o.stuck] == []
    assert [o for o in ours if o.order.status == VIOLATED] == []
    assert sum(o.split for o in ours) >= 15, "the plans hardly ever made two holders"
    assert min(o.writes for o in ours) > 0


def test_a_resource_that_does_not_check_is_wrong_whenever_a_holder_sleeps_over_its_write(outcomes):
    ours = of(outcomes, "unchecked")
    split = [o for o in ours if o.split]
    assert len(split) >= 15
    assert [o for o in split if o.right] == []
    assert [o for o in ours if o.stuck] == []


def test_the_checks_see_the_planted_fault(outcomes):
    ours = of(outcomes, "planted")
    split = [o for o in ours if o.split]
    assert len(ours) == PLANTED_PLANS and len(split) >= 5
    assert sum(o.right for o in ours) >= 5, "even the plans without a sleep between look and write did harm"
    assert [o for o in split if o.right] == []
    assert [o for o in split if o.order.status != VIOLATED] == []


def test_the_check_on_the_record_says_what_the_account_says(outcomes):
    """Where the record tells of every write that the account took, its verdict is that of the sums."""
    whole = [o for o in outcomes if o.recorded == o.writes]
    assert len(whole) > len(outcomes) / 2
    assert [o for o in whole if (o.updates.status == VIOLATED) == o.right] == []


# -- the locks with a piece missing, and the watchdogs
def doubled(run) -> set[str]:
    """The workers that were ever inside together with another one."""
    return {lane for evidence in check.mutual_exclusion(run.timeline).evidence for lane in evidence.lanes}


def withdrawing(lab, servers, number: int, name: str, lock_class, ttl_ms: int, **how):
    store, bank, _ = servers
    job = apart, number, recipes.withdraw, store, bank, lock_class, ttl_ms
    return lab.worker(f"{name}{number}", *job, **how)


def fresh(servers, number: int):
    """A client of the experiment's own locks, with nothing in it and an account of 100."""
    store, bank, _ = servers
    locks = store.client(db=number)
    locks.flushdb()
    bank.client(db=number).set("balance", 100)
    return locks


def test_a_death_between_setnx_and_pexpire_blocks_everybody_and_a_death_after_one_set_does_not(lab, servers):
    def play(number):
        lock_class, mark = [(recipes.FirstLock, "no end yet"), (recipes.SafeLock, "holds")][number % 2]
        locks = fresh(servers, number)
        a = withdrawing(lab, servers, number, "A", lock_class, TTL_MS).run_to(mark)
        lab.kill(a)
        b = withdrawing(lab, servers, number, "B", lock_class, TTL_MS, patience_s=2 * TTL_MS / 1000)
        return number % 2, b.join() is None, locks.pttl("lock") == -1

    with lab.run("deaths"):
        assert set(side_by_side(play, range(FREE, FREE + 20))) == {(0, True, True), (1, False, False)}


def test_a_late_owner_deletes_a_strangers_lock_only_when_it_looks_and_deletes_in_two_commands(lab, servers):
    def play(number):
        lock_class, mark = [(recipes.TokenLock, "the owner is me"), (recipes.SafeLock, "gives it back")][number % 2]
        locks = fresh(servers, number)
        a = withdrawing(lab, servers, number, "A", lock_class, TTL_MS).run_to(mark)
        over(locks)
        b = withdrawing(lab, servers, number, "B", lock_class, LONG_MS).run_to("has thought")
        owner = locks.get("lock")
        a_said = a.join()
        c = withdrawing(lab, servers, number, "C", lock_class, LONG_MS, patience_s=0)
        c_said = c.join()
        b.join()
        return number % 2, owner is not None, a_said, c_said

    with lab.run("late owners") as run:
        said = side_by_side(play, range(FREE, FREE + 20))
    assert set(said) == {(0, True, (True, True), (True, True)), (1, True, (True, False), None)}
    torn = {f"{name}{number}" for number in range(FREE, FREE + 20) if number % 2 == 0 for name in "BC"}
    assert doubled(run) == torn


def test_one_failed_renewal_ends_the_naive_watchdog_and_not_the_careful_one(lab, servers):
    def play(number):
        dog = [recipes.NaiveWatchdog, recipes.Watchdog][number % 2]
        locks, store = fresh(servers, number), servers[0]
        a = lab.worker(f"A{number}", apart, number, recipes.long_job, store, dog, 1500, leases=1.5)
        b = withdrawing(lab, servers, number, "B", recipes.SafeLock, LONG_MS)
        a.run_to("works").start()
        lab.cut(a, store, how="reset")
        failed = lambda: any(e.lane == a.name for e in run.timeline.marks("renewal failed"))  # noqa: E731
        eventually(lambda: failed() or not locks.exists("lock"), "a renewal failed")
        lab.heal(a, store)
        return number % 2, b.join()

    with lab.run("failed renewals") as run:
        said = side_by_side(play, range(FREE, FREE + 8))
    assert set(said) == {(0, (True, True)), (1, (True, True))}
    assert doubled(run) == {f"{name}{number}" for number in range(FREE, FREE + 8) if number % 2 == 0 for name in "AB"}


def test_the_naive_watchdog_outlives_its_lock_and_the_careful_one_does_not(lab, servers):
    def play(number):
        dog = [recipes.NaiveWatchdog, recipes.Watchdog][number % 2]
        fresh(servers, number)
        a = lab.worker(f"A{number}", apart, number, recipes.long_job, servers[0], dog, 1200, leases=0.2, stay=10)
        a.run_to("lives on").start()
        b = withdrawing(lab, servers, number, "B", recipes.SafeLock, 1200).run_to("holds")
        lab.kill(b)
        c = withdrawing(lab, servers, number, "C", recipes.SafeLock, 1200, patience_s=2.4)
        return number % 2, c.join() is None

    with lab.run("watchdogs that outlive their locks"):
        assert set(side_by_side(play, range(FREE, FREE + 8))) == {(0, True), (1, False)}


def test_a_holder_that_slept_is_told_by_the_careful_watchdog_only(lab, servers):
    def play(number):
        dog, at = [recipes.NaiveWatchdog, recipes.Watchdog][number % 2], random.Random(number).randrange(1, 4)
        locks = fresh(servers, number)
        a = lab.worker(f"A{number}", apart, number, recipes.long_job, servers[0], dog, TTL_MS, leases=1)
        for _ in range(at):
            a.run_to("works")
        lab.pause(a)
        over(locks)
        b = withdrawing(lab, servers, number, "B", recipes.SafeLock, LONG_MS).run_to("holds")
        lab.resume(a)
        said = a.join()
        return number % 2, said, locks.exists("lock"), b.join()

    with lab.run("sleepers"):
        said = side_by_side(play, range(FREE, FREE + 8))
    told = {0: "done", 1: "stopped: the lock is lost"}
    assert set(said) == {(kind, told[kind], 1, (True, True)) for kind in told}


# -- what people met in public
@pytest.fixture
def locks(servers):
    return fresh(servers, FREE)


def test_two_acquisitions_in_one_thread_have_a_token_each(locks):
    first, second = recipes.SafeLock(locks, "lock", LONG_MS), recipes.SafeLock(locks, "lock", LONG_MS)
    assert first.acquire() and not second.acquire() and second.token is None
    locks.delete("lock")  # the first one's lease is over
    assert second.acquire() and second.token != first.token
    assert not first.release() and locks.get("lock") == second.token
    assert second.release() and not locks.exists("lock")


def test_a_renewal_replaces_what_is_left_and_asks_for_the_owner(locks):
    lock = recipes.SafeLock(locks, "lock", LONG_MS)
    assert lock.acquire()
    assert [recipes.renew(locks, lock) for _ in range(3)] == [True] * 3
    assert 0 < locks.pttl("lock") <= LONG_MS
    locks.set("lock", "somebody else", px=5000)
    assert not recipes.renew(locks, lock) and locks.pttl("lock") <= 5000


def test_a_number_counts_acquisitions_and_refused_tries_take_none(locks):
    first, second = recipes.FencedLock(locks, "lock", LONG_MS), recipes.FencedLock(locks, "lock", LONG_MS)
    assert first.acquire() and not second.acquire()
    assert first.release() and second.acquire() and (first.fence, second.fence) == (1, 2)


def test_a_confirmation_by_one_replica_does_not_survive_the_promotion_of_another(lab):
    alone, replica = lab.redis(replicas=1)
    lab.cut_replication(replica)
    assert not recipes.WaitLock(alone.client(), "lock", LONG_MS).acquire()
    assert not alone.client().exists("lock"), "it was not given back"
    old, _, behind = lab.redis(replicas=2)
    lab.cut_replication(behind)
    assert recipes.WaitLock(old.client(), "lock", LONG_MS).acquire()
    lab.kill(old)
    lab.promote(behind)
    assert recipes.SafeLock(behind.client(), "lock", LONG_MS).acquire()
