"""The recipes of chapter 04, from its own cells: list queues under seeded faults, the script of faults, its count."""

import contextlib
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle
import pytest
from plans import reaches

from labkit import Lab, check, programs, recall
from labkit.check import VIOLATED
from labkit.record import LAB, Event, Timeline

recipes = recall("04-queues")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

PLANS, AT_ONCE = 24, 8
MESSAGES = 6
PATIENCE = 8  # vain looks of 0.1 s at least; what lies in dead hands is given out again after 0.4 s


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes-04") as lab:
        yield lab


@pytest.fixture(scope="module")
def store(lab):
    return lab.redis(config={"appendonly": "yes"})


@pytest.fixture(scope="module")
def r(store):
    return store.client(timeout_s=20)


# -- list queues under seeded faults
class NeverBack(recipes.MovingQueue):
    """The planted fault: what was taken too long ago is forgotten, and not put back."""

    def sweep(self):
        puts_back = "    redis.call('RPUSH', KEYS[1], m)\n"
        assert puts_back in recipes.SWEEP
        self.r.eval(recipes.SWEEP.replace(puts_back, ""), len(self.keys), *self.keys, self.visible_ms)


KINDS = {
    "popped": recipes.BrpopQueue,
    "two lists": recipes.MovingQueue,
    "safe": recipes.SafeQueue,
    "planted": NeverBack,
}
SAFE = ("two lists", "safe")
FAULTS = ("kill", "kill", "freeze", "replies cut", "reset", "late")
PAY_ONCE = "if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then return redis.call('INCR', KEYS[2]) end"


@dataclass(frozen=True)
class Step:
    """When `who` has its nth message in its hands, the fault strikes, and the other works off all it can get."""

    who: str
    nth: int
    fault: str


def plan(seed: int) -> Step:
    dice = random.Random(f"plan {seed}")
    return Step(dice.choice("AB"), dice.choice((1, 1, 2, 3)), dice.choice(FAULTS))


class Enough(Exception):
    """Nothing has come for so long that nothing will."""


class Apart:
    """What `consume` sees as `w` in one of many experiments: its own names in the record, a bank, and an end."""

    def __init__(self, w, key, bank):
        self._w, self._key, self._vain, self._bank = w, key, 0, bank and w.client(bank, direct=True)

    def __getattr__(self, name):
        return getattr(self._w, name)

    def note(self, name):
        self._vain += name == "nothing came"
        if self._vain > PATIENCE:
            raise Enough

    @contextlib.contextmanager
    def span(self, name, *, message):
        self._vain = 0
        with self._w.span(name, message=f"{self._key} {message}"):
            self._bank.incr(f"{self._key}:paid:plainly")
            self._bank.eval(PAY_ONCE, 2, f"{self._key}:paid:by", f"{self._key}:paid:once", message)
            yield


def consumer(w, kind, store, key):
    with contextlib.suppress(Enough):
        recipes.consume(Apart(w, key, store), KINDS[kind], [store], key=key, work_s=0.002)


def send(w, places, store):
    """MESSAGES into each of these queues."""
    for key, kind in places:
        queue = KINDS[kind](w, [store], key)
        for i in range(MESSAGES):
            queue.put(f"m{i}")
            w.mark("sent", message=f"{key} m{i}")
        queue.r.close()


@dataclass
class Outcome:
    seed: int
    kind: str
    key: str
    struck: bool
    left: int = 0
    plainly: int = 0
    once: int = 0
    verdicts: tuple = ()

    @property
    def fault(self):
        return plan(self.seed).fault if self.struck else None

    def __repr__(self):
        return f"{self.kind} under plan {self.seed} {plan(self.seed)}: {self.verdicts}, left {self.left}"


def play(lab, store, seed: int, kind: str, key: str) -> Outcome:
    step = plan(seed)
    workers = {who: lab.worker(f"{who} {key}", consumer, kind, store, key) for who in "AB"}
    me, other = workers[step.who], workers["AB".replace(step.who, "")]
    struck = reaches(me, "works", step.nth)
    if struck:
        strike(lab, store, step.fault, me, other)
    for worker in workers.values():
        if worker.state != "killed":
            worker.join(90)
    return Outcome(seed, kind, key, struck)


def strike(lab, store, fault: str, me, other) -> None:
    if fault == "kill":
        lab.kill(me)
        return
    if fault == "freeze":
        lab.pause(me)
    elif fault in ("replies cut", "reset"):
        lab.cut(me, store, how=fault.split()[0])
        me.start()
    other.join(90)
    if fault == "freeze":
        lab.resume(me)
    elif fault in ("replies cut", "reset"):
        lab.heal(me, store)
    else:
        me.start()


def seen_by(timeline: Timeline, key: str) -> Timeline:
    """What the record tells of one experiment."""
    lanes = {LAB, f"A {key}", f"B {key}"}
    mine = [e for e in timeline.events if e.lane in lanes or e.data.get("message", "").startswith(f"{key} ")]
    return Timeline(tuple(mine))


@pytest.fixture(scope="module")
def outcomes(lab, store, r) -> list[Outcome]:
    found = []
    for first in range(0, PLANS, AT_ONCE):
        todo = [(seed, kind, f"{kind}:{seed}") for seed in range(first, first + AT_ONCE) for kind in KINDS]
        with lab.run(f"plans {first} to {first + AT_ONCE - 1}") as run:
            lab.worker("shop", send, [(key, kind) for _, kind, key in todo], store).join(60)
            with ThreadPoolExecutor(len(todo)) as pool:
                now = list(pool.map(lambda one: play(lab, store, *one), todo))
        for o in now:
            told = seen_by(run.timeline, o.key)
            o.verdicts = check.at_most_once(told), check.at_least_once(told)
            o.left = r.llen(o.key) + r.llen(f"{o.key}:taken") + r.zcard(f"{o.key}:later")
            o.plainly, o.once = (int(r.get(f"{o.key}:paid:{how}") or 0) for how in ("plainly", "once"))
        found += now
    return found


def of(outcomes, *kinds: str) -> list[Outcome]:
    return [o for o in outcomes if o.kind in kinds]


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    steps = [plan(seed) for seed in range(PLANS)]
    assert steps == [plan(seed) for seed in range(PLANS)]
    assert {step.fault for step in steps} == set(FAULTS) and len(set(steps)) > 10


def test_two_lists_lose_nothing_whatever_happens(outcomes):
    ours = of(outcomes, *SAFE)
    assert len(ours) == 2 * PLANS and sum(o.struck for o in ours) > PLANS
    assert [o for o in ours if not o.verdicts[1].ok or o.left] == []


def test_a_message_in_dead_hands_is_lost_from_one_list_and_done_again_from_two(outcomes):
    """Killed between taking and done: celery #3501, #4354, rq #2061."""
    killed = [o for o in outcomes if o.fault == "kill"]
    popped, safe = of(killed, "popped"), of(killed, *SAFE)
    assert len(popped) >= 4 and len(safe) >= 8
    assert [o for o in popped if o.verdicts[1].status != VIOLATED] == []
    assert [o for o in safe if o.verdicts[0].status != VIOLATED] == []


def test_a_message_that_outlives_its_visibility_timeout_runs_twice_and_an_idempotent_handler_pays_once(outcomes):
    """Still at work when its time is over: kombu #337, celery #5935."""
    slow = [o for o in of(outcomes, *SAFE) if o.fault in ("freeze", "late")]
    assert len(slow) >= 6
    assert [o for o in slow if o.verdicts[0].status != VIOLATED or o.plainly <= MESSAGES] == []
    assert [(o, o.once) for o in of(outcomes, *SAFE) if o.once != MESSAGES] == []


def test_the_checks_see_the_planted_fault(outcomes):
    killed = [o for o in of(outcomes, "planted") if o.fault == "kill"]
    assert len(killed) >= 4
    assert [o for o in killed if o.verdicts[1].status != VIOLATED] == []


# -- one queue, step by step
@pytest.fixture
def queue(store):
    queue = recipes.SafeQueue(recipes.Onlooker(), [store], "steps")
    queue.clear()
    return queue


def test_it_is_first_in_first_out(queue):
    for message in ("m1", "m2", "m3"):
        queue.put(message)
    assert [queue.take(1) for _ in range(3)] == ["m1", "m2", "m3"]
    assert queue.take(0.01) is None


def test_what_is_done_leaves_nothing_behind(queue, r):
    queue.put("m1")
    assert queue.take(1) == "m1"
    queue.sweep()
    assert queue.done("m1") is True
    assert r.keys("steps*") == []


def test_who_comes_too_late_is_told_so_and_takes_nothing_away(queue, r, lab):
    queue.visible_ms = 20
    queue.put("m1")
    assert queue.take(1) == "m1"

    def put_back():
        queue.sweep()
        return r.lrange("steps", 0, -1) == ["m1"]

    lab.until("it was put back", put_back)
    assert queue.done("m1") is False and queue.failed("m1") == 0
    assert r.lrange("steps", 0, -1) == ["m1"] and queue.dead() == []


def test_failures_are_counted_tried_later_and_set_aside(queue, r, lab):
    queue.pause_ms = 20
    queue.put("m1")
    for failures in (1, 2):
        lab.until("it is due", lambda: queue.take(0.01) == "m1")
        assert queue.failed("m1") == failures
        assert r.llen("steps") == r.llen("steps:taken") == 0 and r.zcard("steps:later") == 1
    lab.until("it is due", lambda: queue.take(0.01) == "m1")
    assert queue.failed("m1") == queue.most
    assert queue.dead() == ["m1"] and r.keys("steps*") == ["steps:dead"]


def test_clear_takes_its_own_keys_only(queue, r):
    r.set("stepsister", "stays")
    queue.put("m1")
    queue.take(1)
    queue.sweep()
    queue.clear()
    assert r.keys("steps*") == ["stepsister"]
    r.delete("stepsister")


# -- the script, and its count
class AtOnce(recipes.MovingQueue):
    """A message that failed is back at once, for ever."""

    name = "List, tried at once"

    def failed(self, message):
        self.r.lrem(self.taken, 1, message)
        self.r.rpush(self.key, message)


NONE = {"lost": [], "repeated": [], "late": 0, "parked": [], "endless": [], "behind": []}


def played(lab, fault, queue_class, nodes, **how):
    _, got = recipes.suffer(lab, fault, queue_class, nodes, **how)
    assert got.pop("sent") == 12
    return got


@pytest.mark.parametrize("kind", ["popped", "safe", "planted"])
def test_without_a_fault_the_script_counts_nothing(lab, store, kind):
    got = played(lab, "nothing", KINDS[kind], [store])
    assert {**got, "repeated": [], "late": 0} == NONE  # a stall of this machine may make a repeat


def test_a_kill_loses_just_what_was_in_its_hands(lab, store):
    assert played(lab, "consumer killed", recipes.BrpopQueue, [store]) == {**NONE, "lost": ["m02"]}
    assert played(lab, "consumer killed", NeverBack, [store])["lost"] == ["m02"]


def test_when_the_only_consumer_is_killed_the_script_comes_to_an_end(lab, store):
    got = played(lab, "consumer killed", recipes.SafeQueue, [store], consumers=1)
    assert got == {**NONE, "lost": [f"m{i:02}" for i in range(2, 13)]}


def test_a_poison_that_is_tried_at_once_is_endless_and_nobody_says_what_is_lost(lab, store):
    got = played(lab, "poison", AtOnce, [store])
    assert got["endless"] == ["m03"] and got["lost"] == []


def test_a_failover_loses_what_the_replica_had_not(lab):
    got = played(lab, "primary fails over", recipes.SafeQueue, lab.redis(replicas=1))
    assert got["lost"] == ["m07", "m08", "m09"] and got["repeated"] >= ["m01", "m02"]


def test_a_consumer_that_raises_ends_the_script_with_its_error(lab, store):
    class Broken(recipes.BrpopQueue):
        def done(self, message):
            raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        recipes.suffer(lab, "nothing", Broken, [store])


def record(*events) -> Timeline:
    """(lane, kind, name, message, more): a moment each."""
    made, opened = [], {}
    for i, (lane, kind, name, message, *more) in enumerate(events):
        data = {"message": message, **(more[0] if more else {})}
        if kind == "begin":
            opened[lane] = data["span"] = i
        if kind == "end":
            data = {"span": opened.pop(lane), **(more[0] if more else {})}
        made.append(Event(i / 10, lane, kind, name, data, pid=sum(map(ord, lane))))
    return Timeline(tuple(made))


def sent(*messages):
    return [("shop", "mark", "sent", m) for m in messages]


def worked(lane, message, outcome="ok"):
    return [(lane, "begin", "works", message), (lane, "end", "", message, {"outcome": outcome})]


def test_the_count_tells_lost_repeated_late_and_set_aside():
    t = record(
        *sent("m1", "m2", "m3", "m4", "m5"),
        *worked("A", "m2"),
        *worked("A", "m1"),
        *worked("B", "m2"),
        *worked("B", "m4", "fail"),
        *worked("B", "m5", "unknown"),
    )
    assert recipes.tally(t, dead=["m4"]) == {
        "sent": 5,
        "lost": ["m3", "m5"],
        "repeated": ["m2"],
        "late": 1,
        "parked": ["m4"],
        "endless": [],
        "behind": [],
    }


def test_the_count_calls_nothing_lost_behind_a_message_that_comes_again_and_again():
    again = [e for _ in range(recipes.MANY) for e in worked("A", "m1", "fail")]
    got = recipes.tally(record(*sent("m1", "m2"), *again))
    assert (got["endless"], got["behind"], got["lost"], got["repeated"]) == (["m1"], ["m2"], [], [])


def test_the_count_agrees_with_the_checks(lab, store):
    e, got = recipes.suffer(lab, "consumer frozen", recipes.SafeQueue, [store])
    assert bool(got["lost"]) is not check.at_least_once(e.timeline).ok
    assert bool(got["repeated"]) is not check.at_most_once(e.timeline).ok
    assert got["repeated"] and not got["lost"]


# -- RabbitMQ
@pytest.mark.skipif(not programs.find("rabbitmq-server"), reason="RabbitMQ is not on this machine")
def test_rabbitmq_loses_nothing_that_is_confirmed_by_hand_and_what_is_confirmed_unseen(lab):
    broker = [lab.rabbitmq()]
    by_hand = played(lab, "consumer killed", recipes.RabbitQueue, broker)
    assert by_hand["lost"] == [] and "m02" in by_hand["repeated"]
    poisoned = played(lab, "poison", recipes.RabbitQueue, broker)
    assert poisoned["parked"] == ["m03"] and poisoned["lost"] == []
    assert "m02" in played(lab, "consumer killed", recipes.AutoAckQueue, broker)["lost"]
