"""The recipes of chapter 06, from its own cells: boards against a plain reference, and delay queues under faults."""

import contextlib
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle
import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plans import reaches

from labkit import Lab, check, recall
from labkit.check import VIOLATED
from labkit.record import LAB, Timeline

recipes = recall("06-sorted-sets")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

PLANS, AT_ONCE = 48, 12
JOBS = 4


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes-06") as lab:
        yield lab


@pytest.fixture(scope="module")
def store(lab):
    return lab.redis(config={"databases": 1 + PLANS * 4})


@pytest.fixture(scope="module")
def r(store):
    return store.client(timeout_s=20)


# -- boards
PLAYERS = [f"{name}{i}" for name in ("a", "B", "é", "~") for i in range(5)]
scores = st.dictionaries(st.sampled_from(PLAYERS), st.integers(0, 30), min_size=1)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(PLAYERS), st.integers(-3, 9)), min_size=1, max_size=60))
def test_a_board_answers_as_a_sorted_list_does(r, updates):
    r.delete("board")
    board, points = recipes.Board(r, "board"), Counter()
    for player, more in updates:
        points[player] += more
        assert board.add(player, more) == points[player]
    by_hand = sorted(points, key=lambda p: (points[p], p.encode()), reverse=True)
    assert board.top(5) == [(p, points[p]) for p in by_hand[:5]]
    assert [board.rank(p) for p in by_hand] == list(range(len(by_hand)))
    assert board.between(2, 9) == [p for p in by_hand[::-1] if 2 <= points[p] <= 9]
    assert board.rank("nobody") is None


@settings(max_examples=60)
@given(scores)
def test_buckets_rank_as_one_board_and_the_rule_that_is_told_does_not(r, points):
    whole, buckets = recipes.Board(r, "whole"), recipes.RankedBuckets(r, "part", width=7, n=4)
    r.delete("whole", *buckets.keys)
    r.zadd("whole", points)
    for player, score in points.items():
        buckets.add(player, score)
    assert buckets.top(7) == whole.top(7)
    assert {p: buckets.rank(p, s) for p, s in points.items()} == {p: whole.rank(p) for p in points}
    assert {p: buckets.rank_from_below(p, s) for p, s in points.items()} == {p: r.zrank("whole", p) for p in points}
    if len({buckets.place_of(score) for score in points.values()}) > 1:
        assert [p for p, s in points.items() if buckets.rank_as_told(p, s) != whole.rank(p)]


# -- scores that must stay exact, and ties that must be fair
moments = st.tuples(st.integers(0, recipes.POINTS - 1), st.integers(0, recipes.SECONDS - 1))
CORNERS = [(0, 0), (0, recipes.SECONDS - 1), (recipes.POINTS - 1, 0), (recipes.POINTS - 1, recipes.SECONDS - 1)]


@settings(max_examples=60)
@given(st.lists(moments, min_size=1, unique=True))
@example(CORNERS)
def test_of_equal_points_the_earlier_is_first_whatever_the_names(r, reached):
    r.delete("season")
    names = [f"player {i}" for i in range(len(reached))]
    r.zadd("season", {name: recipes.earlier_first(*one) for name, one in zip(names, reached, strict=True)})
    wanted = [names[i] for i in sorted(range(len(reached)), key=lambda i: (-reached[i][0], reached[i][1]))]
    found = r.zrange("season", 0, -1, desc=True, withscores=True)
    assert [name for name, _ in found] == wanted
    assert [recipes.points_of(score) for _, score in found] == sorted((points for points, _ in reached), reverse=True)


@pytest.mark.parametrize("beyond", [(recipes.POINTS, 0), (0, recipes.SECONDS), (-1, 0), (0, -1)])
def test_a_score_beyond_its_bound_is_refused_loudly(beyond):
    with pytest.raises(ValueError, match="do not fit"):
        recipes.earlier_first(*beyond)


def test_the_bound_is_where_redis_begins_to_lose_units(r):
    top = recipes.earlier_first(recipes.POINTS - 1, 0)
    assert top == 2**53 - 1
    r.delete("exact")
    r.zadd("exact", {"the bound": top, "one less": top - 1, "beyond": 2**53 + 1, "one less beyond": 2**53})
    kept = {name: int(score) for name, score in r.zrange("exact", 0, -1, withscores=True)}
    assert kept["the bound"] == top and kept["one less"] == top - 1
    assert kept["beyond"] == kept["one less beyond"]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, unique=True))
@example([2**53, 2**53 + 1, 2**53 + 2, 2**64 - 1, 2**64 - 2, 0])
def test_numbers_of_64_bits_rank_by_their_parts(r, numbers):
    r.delete("ids")
    parts = [recipes.by_parts(number, "x") for number in numbers]
    assert all(score < 2**53 for score, _ in parts)
    r.zadd("ids", {member: score for score, member in parts})
    assert [int(member.split(":")[0]) for member in r.zrange("ids", 0, -1)] == sorted(numbers)


# -- delay queues
class NeverAgain(recipes.LeaseQueue):
    """The planted fault: a lease that is over is forgotten, and not given back."""

    def take(self):
        gives_back = "  redis.call('ZADD', KEYS[1], now, job)\n"
        assert gives_back in recipes.TAKE
        found = self.r.eval(recipes.TAKE.replace(gives_back, ""), 2, self.key, self.taken, self.lease_ms)
        if found:
            self.mine = found
            return found[0]


KINDS = {
    "hopeful": recipes.DelayQueue,
    "asking": recipes.AskingQueue,
    "lease": recipes.LeaseQueue,
    "planted": NeverAgain,
}
PLANTED_PLANS = 24
FAULTS = ("kill", "kill", "freeze", "replies cut", "late")


@dataclass(frozen=True)
class Step:
    """When `who` comes to this mark for the nth time, the fault strikes it, and the other works off all it can get."""

    who: str
    mark: str
    nth: int
    fault: str


def plan(seed: int) -> Step:
    dice = random.Random(f"plan {seed}")
    mark = dice.choice(("works", "works", "looked"))
    return Step(dice.choice("AB"), mark, dice.choice((1, 1, 2)), dice.choice(FAULTS))


class Apart:
    """What `poll` sees as `w` in one of many experiments: a database of its own, and its own names in the record."""

    def __init__(self, w, place: int):
        self._w, self._place = w, place

    def __getattr__(self, name):
        return getattr(self._w, name)

    def client(self, node, **options):
        return self._w.client(node, db=self._place, **options)

    def span(self, name, *, message):
        return self._w.span(name, message=f"{self._place}: {message}")


def poller(w, place, store, kind, patience):
    """`poll`, taken up again after what the network did to it."""
    for _ in range(3):
        with contextlib.suppress(redis.exceptions.RedisError):
            return recipes.poll(Apart(w, place), store, kind, patience)


def send(w, places, store):
    """JOBS jobs, due at once, into each of these databases."""
    for place in places:
        client = w.client(store, db=place)
        for i in range(JOBS):
            recipes.DelayQueue(client, "jobs").put(f"job {i}", 0)
            w.mark("sent", message=f"{place}: job {i}")
        client.close()


@dataclass
class Outcome:
    seed: int
    kind: str
    place: int
    struck: bool
    left: int
    killed_at_work: bool
    met: bool  # the other one took everything while this one had only looked
    verdicts: tuple = ()

    def __repr__(self):
        return f"{self.kind} under plan {self.seed} {plan(self.seed)}: {self.verdicts}, {self.left} left"


def play(lab, store, seed: int, kind: str, place: int) -> Outcome:
    step, there = plan(seed), store.client(db=place, timeout_s=20)
    job = poller, place, store, KINDS[kind], 300
    workers = {who: lab.worker(f"{who}{place}", *job) for who in "AB"}
    me, other = workers[step.who], workers["AB".replace(step.who, "")]
    struck = reaches(me, step.mark, step.nth)
    waiting = there.zcard("jobs")
    if struck:
        strike(lab, store, step.fault, me, other)
    for worker in workers.values():
        if worker.state != "killed":
            worker.join(60)
    left = there.zcard("jobs") + there.zcard("jobs:taken")
    there.close()
    met = struck and step.mark == "looked" and step.fault in ("late", "freeze") and waiting > 0
    return Outcome(seed, kind, place, struck, left, struck and (step.fault, step.mark) == ("kill", "works"), met)


def strike(lab, store, fault: str, me, other) -> None:
    if fault == "kill":
        lab.kill(me)
        return
    if fault == "freeze":
        lab.pause(me)
    elif fault == "replies cut":
        lab.cut(me, store, how="replies")
        me.start()
    other.join(60)
    if fault == "freeze":
        lab.resume(me)
    elif fault == "replies cut":
        lab.heal(me, store)
    else:
        me.start()


def seen_by(timeline: Timeline, place: int) -> Timeline:
    """What the record tells of one experiment."""
    lanes = {LAB, f"A{place}", f"B{place}"}
    mine = [e for e in timeline.events if e.lane in lanes or e.data.get("message", "").startswith(f"{place}: ")]
    return Timeline(tuple(mine))


@pytest.fixture(scope="module")
def outcomes(lab, store) -> list[Outcome]:
    found = []
    for first in range(0, PLANS, AT_ONCE):
        kinds = [kind for kind in KINDS if kind != "planted" or first < PLANTED_PLANS]
        experiments = [
            (seed, kind, 1 + PLANS * i + seed)
            for seed in range(first, first + AT_ONCE)
            for i, kind in enumerate(KINDS)
            if kind in kinds
        ]
        with lab.run(f"plans {first} to {first + AT_ONCE - 1}") as run:
            lab.worker("shop", send, [place for *_, place in experiments], store).join(60)
            with ThreadPoolExecutor(len(experiments)) as pool:
                now = list(pool.map(lambda one: play(lab, store, *one), experiments))
        for outcome in now:
            told = seen_by(run.timeline, outcome.place)
            outcome.verdicts = check.at_most_once(told), check.at_least_once(told)
        found += now
    return found


def of(outcomes, kind: str) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind == kind]


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    steps = [plan(seed) for seed in range(PLANS)]
    assert steps == [plan(seed) for seed in range(PLANS)]
    assert {step.fault for step in steps} == set(FAULTS) and len(set(steps)) > 15


def test_a_leased_job_is_done_whatever_happens(outcomes):
    ours = of(outcomes, "lease")
    assert len(ours) == PLANS and sum(o.struck for o in ours) > 20
    assert [o for o in ours if not o.verdicts[1].ok or o.left] == []


def test_a_job_that_goes_by_the_answer_of_zrem_is_never_taken_up_twice(outcomes):
    ours = of(outcomes, "asking")
    assert len(ours) == PLANS
    assert [o for o in ours if not o.verdicts[0].ok] == []


def test_and_is_lost_when_its_poller_is_killed_at_work(outcomes):
    killed = [o for o in of(outcomes, "asking") if o.killed_at_work]
    assert len(killed) >= 5
    assert [o for o in killed if o.verdicts[1].status != VIOLATED] == []


def test_a_job_that_is_run_whatever_zrem_says_runs_twice_when_two_meet(outcomes):
    met = [o for o in of(outcomes, "hopeful") if o.met]
    assert len(met) >= 3
    assert [o for o in met if o.verdicts[0].status != VIOLATED] == []


def test_the_checks_see_the_planted_fault(outcomes):
    killed = [o for o in of(outcomes, "planted") if o.killed_at_work]
    assert len(killed) >= 3
    assert [o for o in killed if o.verdicts[1].status != VIOLATED] == []


def test_a_late_poller_cannot_cross_off_the_lease_of_another(lab, r):
    r.delete("late", "late:taken")
    a, b = (recipes.LeaseQueue(r, "late", lease_ms=ms) for ms in (30, 60_000))
    a.put("job", 0)
    assert a.take() == "job"
    lab.until("the lease of A is over", lambda: b.take() == "job")
    assert a.done() is False and r.zcard("late:taken") == 1
    assert b.done() is True and r.zcard("late:taken") == 0
    assert b.take() is None


# -- woken, and not polling
def sleeper(w, store, key, n):
    """Run n jobs as they become due, asleep in between; what it took, and whether it was too early."""
    queue = recipes.WakingQueue(w.client(store, timeout_s=20), key)
    taken = []
    w.mark("ready")
    while len(taken) < n:
        if job := queue.take():
            taken.append((job, queue.now_ms()))
            queue.done()
        else:
            queue.wait(most_s=1.0)
    return taken


@pytest.mark.parametrize("lost", [False, True], ids=["told", "the message is lost"])
def test_an_earlier_job_wakes_the_sleeper_and_no_job_is_early(lab, store, r, lost):
    r.delete("wake", "wake:taken")
    queue = recipes.WakingQueue(r, "wake")
    queue.put("far", 30_000)
    due = {"far": r.zscore("wake", "far")}
    with lab.run("asleep until the far one"):
        worker = lab.worker("A", sleeper, store, "wake", 1).run_to("ready").start()
        lab.until("it listens", lambda: r.pubsub_numsub("wake:wake")[0][1] == 1)
        due["near"] = queue.now_ms() + 100  # or, when it is told, a little later
        if lost:
            r.zadd("wake", {"near": due["near"]})  # nobody is told
        else:
            queue.put("near", 100)
        ((job, at_ms),) = worker.join(25)
    assert job == "near" and due["near"] <= at_ms < due["far"]
    assert r.zrange("wake", 0, -1) == ["far"]
