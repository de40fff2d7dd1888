"""The recipes of chapter 03, loaded from its own cells, under seeded faults: many small experiments side by side.

Each has a lock of its own in etcd or ZooKeeper, and an account in a database of its own. What the account counted is
the truth: an answer that was cut off tells nobody what happened.
"""

import contextlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import cloudpickle
import grpc
import pyetcd
import pytest
import redis
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from plans import eventually, reaches, side_by_side

from labkit import Lab, check, programs, recall
from labkit.check import VIOLATED

pytest_plugins = ["told"]
missing = [name for name in ("etcd", "zookeeper", "java") if not programs.find(name)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not on this machine: {missing}")

recipes = recall("03-consensus-locks")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

PLANS, LEADERS, AT_ONCE, TIMES = 40, 10, 10, 1
TTL_S, START = 2, 1000
FAILED = (OSError, grpc.RpcError, pyetcd.Etcd3Exception, KazooException, KazooTimeoutError, redis.exceptions.RedisError)


class Forgetful(recipes.CheckingAccount):
    """The planted fault: it looks at the number when it is read, and not when it is written."""

    write = recipes.Account.write


def again(w, *what, **how):
    """Withdraw again and again, whatever fails on the way."""
    for _ in range(TIMES):
        with contextlib.suppress(*FAILED):
            recipes.withdraw(w, *what, **how)


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes03") as lab:
        yield lab


@pytest.fixture(scope="module")
def servers(lab):
    """(the members of etcd, those of ZooKeeper, the bank with a database for each experiment)."""
    return lab.etcd(3), lab.zookeeper(3), lab.redis(config={"databases": 2000})


# -- the plans
@dataclass(frozen=True)
class Plan:
    """When `who` gets to this mark, the fault strikes it, or the leaders of both clusters."""

    who: str
    mark: str
    fault: str

    @property
    def splits(self) -> bool:
        """It sleeps between its last look at its lease and its write, until the other one is inside."""
        return self.fault == "freeze" and self.mark == "has thought"


MARKS = ("holds", "read", *["has thought"] * 5, "wrote", "gives it back")
FAULTS = (*["freeze"] * 5, "kill", "lock cut", "lock replies cut", "bank cut")


def plan(seed: int) -> Plan:
    """Of each 40 the last 10 kill the leaders."""
    dice = random.Random(f"plan {seed}")
    fault = "leader" if seed % PLANS >= PLANS - LEADERS else dice.choice(FAULTS)
    return Plan(dice.choice("AB"), dice.choice(MARKS), fault)


SPLIT = [seed for seed in range(PLANS) if plan(seed).splits]
OTHERS = [seed for seed in range(PLANS - LEADERS) if seed not in SPLIT][:4]

# What withdraws, from where, and under which plans. The last is the planted fault.
KINDS = {
    "etcd, checked": (recipes.EtcdQueue, recipes.CheckingAccount, range(PLANS)),
    "ZooKeeper, checked": (recipes.ZooQueue, recipes.CheckingAccount, range(PLANS)),
    "etcd, unchecked": (recipes.EtcdQueue, recipes.Account, SPLIT[::2] + OTHERS[::2]),
    "ZooKeeper, unchecked": (recipes.ZooQueue, recipes.Account, SPLIT[1::2] + OTHERS[1::2]),
    "planted": (recipes.ZooQueue, Forgetful, SPLIT[::2] + OTHERS),
}


@dataclass
class Outcome:
    seed: int
    kind: str
    number: int
    struck: bool  # the fault came, and the other one wrote after it
    taken: int = -1
    writes: int = -1
    order: check.Verdict | None = None

    @property
    def right(self) -> bool:
        return self.taken == self.writes

    @property
    def split(self) -> bool:
        return self.struck and plan(self.seed).splits


class Experiment:
    """Two workers withdraw, the plan strikes, all is mended, both come to their end."""

    def __init__(self, lab, servers, seed: int, kind: str, number: int):
        etcds, zoos, self.bank = servers
        lock, account, _ = KINDS[kind]
        self.lab, self.plan, self.outcome = lab, plan(seed), Outcome(seed, kind, number, struck=False)
        members = list(etcds if issubclass(lock, recipes.EtcdLock) else zoos)
        random.Random(seed).shuffle(members)
        self.members = members
        self.bank.client(db=number).set("balance", START)
        job = again, lock, members, self.bank, account, f"lock{number}", TTL_S, f"balance {number}", 1
        workers = {who: lab.worker(f"{who}{number}", *job, db=number) for who in "AB"}
        self.me = workers.pop(self.plan.who)
        (self.other,) = workers.values()

    def strike(self) -> None:
        fault, me, lab = self.plan.fault, self.me, self.lab
        if not reaches(me, self.plan.mark):
            return
        where = [self.bank] if fault.startswith("bank") else self.members
        if fault == "leader":
            self.outcome.struck = True
            return
        if fault == "freeze":
            lab.pause(me)
        elif fault == "kill":
            lab.kill(me)
        else:
            lab.cut(me, *where, how="replies" if "replies" in fault else "black hole")
            me.start()
        self.outcome.struck = reaches(self.other, "wrote")
        if fault == "freeze":
            lab.resume(me)
        elif fault != "kill":
            lab.heal(me, *where)

    def finish(self) -> Outcome:
        for worker in (self.me, self.other):
            if worker.state not in ("killed", "done"):
                worker.start()
        for worker in (self.me, self.other):
            if worker.state != "killed":
                worker.join(90)
        client = self.bank.client(db=self.outcome.number)
        self.outcome.taken = START - int(client.get("balance"))
        self.outcome.writes = int(client.get("writes") or 0)
        return self.outcome


def kill_leaders(lab, servers) -> list:
    """Kill the leaders of both; wait until the others lead. Returns the dead."""
    dead = [lab.leader(members) for members in servers[:2]]
    for node in dead:
        lab.kill(node)
    for members in servers[:2]:
        lab.until("another one leads", lambda members=members: lab.leader(members), timeout_s=60)
    return dead


def play(lab, servers, seeds, first_number: int) -> list[Outcome]:
    """The plans of these seeds, all kinds side by side."""
    pairs = [(seed, kind) for seed in seeds for kind in KINDS if seed % PLANS in KINDS[kind][2]]
    with lab.run(f"plans {seeds[0]} to {seeds[-1]}") as run:
        experiments = [Experiment(lab, servers, *pair, first_number + i) for i, pair in enumerate(pairs)]
        side_by_side(Experiment.strike, experiments)
        leaders = [plan(seed).fault == "leader" for seed in seeds]
        assert all(leaders) or not any(leaders)
        dead = kill_leaders(lab, servers) if all(leaders) else []
        outcomes = side_by_side(Experiment.finish, experiments)
    for node in dead:
        lab.restart(node, data="kept")
    for outcome in outcomes:
        outcome.order = check.token_order(run.timeline, f"balance {outcome.number}")
    return outcomes


def play_all(lab, servers, plans: int, first_number: int = 1) -> list[Outcome]:
    found = []
    for first in range(0, plans, AT_ONCE):
        found += play(lab, servers, range(first, first + AT_ONCE), first_number + len(found))
    return found


@pytest.fixture(scope="module")
def outcomes(lab, servers) -> list[Outcome]:
    return play_all(lab, servers, PLANS)


def of(outcomes, *kinds) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind in kinds]


def safe_ones_are_right(outcomes, plans: int) -> None:
    for kind in ("etcd, checked", "ZooKeeper, checked"):
        ours = of(outcomes, kind)
        assert len(ours) == plans
        assert [o for o in ours if not o.right] == []
        assert [o for o in ours if o.order.status == VIOLATED] == []
        assert sum(o.split for o in ours) >= plans // 8, "the plans hardly ever made two holders"
        assert min(o.writes for o in ours) > 0


def test_what_came_of_the_plans_is_told(outcomes, record_property):
    for kind in KINDS:
        ours = of(outcomes, kind)
        wrong, split = sum(not o.right for o in ours), sum(o.split for o in ours)
        record_property("told", f"03, {kind}: of {len(ours)} plans {split} let a holder sleep on, {wrong} did harm")
    assert {o.seed for o in outcomes} == set(range(PLANS))
    assert sum(o.struck and plan(o.seed).fault == "leader" for o in outcomes) >= 2 * LEADERS - 2


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    assert [plan(seed) for seed in range(PLANS)] == [plan(seed) for seed in range(PLANS)]
    assert {plan(seed).fault for seed in range(PLANS)} == {*FAULTS, "leader"}
    assert {plan(seed).mark for seed in range(PLANS)} == set(MARKS)


def test_an_account_that_looks_at_the_number_is_never_wrong(outcomes):
    safe_ones_are_right(outcomes, PLANS)


def test_an_account_that_does_not_look_is_wrong_whenever_a_holder_sleeps_over_its_write(outcomes):
    split = [o for o in of(outcomes, "etcd, unchecked", "ZooKeeper, unchecked") if o.split]
    assert {o.kind for o in split} == {"etcd, unchecked", "ZooKeeper, unchecked"}
    assert [o for o in split if o.right] == []


def test_the_checks_see_the_planted_fault(outcomes):
    ours = of(outcomes, "planted")
    split = [o for o in ours if o.split]
    assert split and [o for o in split if o.right or o.order.status != VIOLATED] == []
    assert sum(o.right for o in ours) >= 2, "even the plans without a sleep did harm"


@pytest.mark.long
def test_many_more_plans(lab, servers):
    outcomes = play_all(lab, servers, 5 * PLANS, first_number=500)
    safe_ones_are_right(outcomes, 5 * PLANS)
    assert [o for o in of(outcomes, "etcd, unchecked", "ZooKeeper, unchecked") if o.split and o.right] == []


# -- what people met in public
def here(name: str):
    """What a recipe sees as `w`, in the test's own process and without links."""
    return SimpleNamespace(
        name=name, client=lambda node, **how: node.client(**how), address=lambda node: (node.host, node.port),
        mark=lambda *a, **b: None, work=threading.Event().wait,
    )  # fmt: skip


def lock(servers, kind, name: str, key: str, ttl_s=10):
    return kind(here(name), servers[0] if issubclass(kind, recipes.EtcdLock) else servers[1], key, ttl_s)


def standing(servers, kind, key: str) -> int:
    """How many stand in the queue."""
    if issubclass(kind, recipes.EtcdLock):
        with contextlib.closing(recipes.reach(here("look"), servers[0])) as client:
            return len(client.get_prefix_response(f"{key}/").kvs)
    client = servers[1][0].client()
    try:
        return len(client.get_children(f"/{key}"))
    finally:
        client.stop()


QUEUES = pytest.mark.parametrize("kind", [recipes.EtcdQueue, recipes.ZooQueue], ids=lambda kind: kind.__name__)


@QUEUES
def test_whoever_loses_patience_leaves_nothing_in_the_queue(servers, kind):
    key = f"patience{kind.__name__}"
    holder, waiter, third = (lock(servers, kind, name, key) for name in "ABC")
    assert holder.acquire() and not waiter.acquire(patience_s=0.3)
    eventually(lambda: standing(servers, kind, key) == 1, "only the holder stands there")
    assert holder.release() and third.acquire(patience_s=20) and third.release()


@QUEUES
def test_an_error_in_the_queue_leaves_nothing_there_either(servers, kind):
    key = f"error{kind.__name__}"
    holder, waiter = (lock(servers, kind, name, key) for name in "AB")
    assert holder.acquire()

    def interrupted(*what, **data):
        raise KeyboardInterrupt

    waiter.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire()
    eventually(lambda: standing(servers, kind, key) == 1, "only the holder stands there")
    assert holder.release()


def test_a_waiter_whose_lease_ended_in_the_queue_is_not_let_in(servers):
    holder, waiter = (lock(servers, recipes.EtcdQueue, name, "ended") for name in "AB")
    assert holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiter.acquire)
        eventually(lambda: standing(servers, recipes.EtcdQueue, "ended") == 2, "B waits")
        waiter.client.revoke_lease(waiter.lease.id)
        assert holder.release()
        assert answer.result(30) is False


def test_a_write_guarded_by_the_create_revision_is_refused_once_the_lock_is_lost(servers):
    mine = lock(servers, recipes.EtcdQueue, "A", "guard")
    assert mine.acquire()
    client = recipes.reach(here("A"), servers[0])
    client.put("balance (guard)", "100")
    plain, guarded = recipes.EtcdAccount(client), recipes.GuardedAccount(client)
    plain.lock = guarded.lock = mine
    assert guarded.write(100, 90, mine.fence)
    mine.client.revoke_lease(mine.lease.id)
    assert guarded.write(90, 80, mine.fence) is None and plain.read(None) == 90
    assert plain.write(90, 80, mine.fence), "a plain put asks nobody"
    assert mine.release() is False


def test_a_new_leader_gives_every_lease_its_full_time_again(lab, servers):
    members = servers[0]
    old = lab.leader(members)
    others = [node for node in members if node is not old]
    with others[0].client() as client:
        lease = client.lease(60)
        eventually(lambda: lease.remaining_ttl < 58, "some of it is over")
        lab.kill(old)
        lab.until("another one leads", lambda: lab.leader(others), timeout_s=60)
        eventually(lambda: told(lease) >= 58, "it has its time again")
        lease.revoke()
    lab.restart(old, data="kept")


def told(lease) -> int:
    """What is left of it; the first answers after an election may be errors."""
    with contextlib.suppress(pyetcd.Etcd3Exception, grpc.RpcError):
        return lease.remaining_ttl
    return 0


def unsure(w, members):
    """Hold a lock through SUSPENDED, and into LOST."""
    mine = recipes.ZooQueue(w, members, "states", 3)
    assert mine.acquire() and mine.sure()
    w.mark("in")
    for sure, mark in ((False, "suspended"), (True, "connected again")):
        while mine.sure() is not sure:
            w.work(0.01)
        w.mark(mark)
    while "LOST" not in mine.states:
        w.work(0.01)
    eventually(lambda: mine.client.connected, "it has a new session")
    return mine.sure(), mine.release()


def test_a_holder_is_unsure_while_suspended_and_for_ever_once_lost(lab, servers):
    with lab.run("states"):
        a = lab.worker("A", unsure, servers[1]).run_to("in")
        lab.cut(a, *servers[1], how="reset")
        a.run_to("suspended", timeout_s=30)
        lab.heal(a, *servers[1])
        a.run_to("connected again", timeout_s=30)
        lab.pause(a)
        lab.until("its session is over", lambda: standing(servers, recipes.ZooQueue, "states") == 0, timeout_s=30)
        lab.resume(a)
        assert a.join(60) == (False, False)


def test_the_fence_of_zookeeper_rises_when_the_parent_is_made_anew(servers):
    client, fences, numbers = servers[1][0].client(), [], []
    for _ in range(2):
        for name in "AB":
            mine = lock(servers, recipes.ZooQueue, name, "anew")
            assert mine.acquire()
            fences.append(mine.fence)
            numbers.append(int(mine.node[-10:]))
            assert mine.release()
        client.sync("/anew")
        client.delete("/anew")
    client.stop()
    assert fences == sorted(set(fences)) and numbers == [0, 1, 0, 1]


def test_a_release_wakes_one_in_the_queue_and_all_of_those_who_watch_one_key(servers):
    woken = {}
    for kind in (recipes.OneKeyLock, recipes.EtcdQueue):
        holder, *waiters = (lock(servers, kind, f"W{i}", f"herd{kind.__name__}") for i in range(6))
        seen = []
        for one in waiters:
            one.step = lambda what, seen=seen, **data: seen.append(what)
        assert holder.acquire()
        with ThreadPoolExecutor(5) as pool:
            turns = [pool.submit(lambda one=one: one.acquire() and one.release()) for one in waiters]
            eventually(lambda seen=seen: seen.count("waits") >= 5, "all wait")
            assert holder.release()
            assert [turn.result(60) for turn in turns] == [True] * 5
        woken[kind] = seen.count("woken")
    assert woken[recipes.EtcdQueue] <= 5 < woken[recipes.OneKeyLock]
