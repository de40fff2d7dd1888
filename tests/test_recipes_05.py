"""The recipes of chapter 05, from its own cells: streams under seeded faults, trimming, caches that are told."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import reaches

from labkit import Lab, check, recall
from labkit.check import VIOLATED
from labkit.record import LAB, Timeline

recipes = recall("05-streams")
handle, Onlooker = recall("04-queues", "handle", "Onlooker")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

PLANS, PLANTED_PLANS, AT_ONCE = 32, 16, 8
MESSAGES = 4


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes-05") as lab:
        yield lab


@pytest.fixture(scope="module")
def store(lab):
    return lab.redis()


@pytest.fixture(scope="module")
def r(store):
    return store.client(timeout_s=20)


# -- consumers under faults
class Eager(recipes.StreamQueue):
    """The planted fault: what is claimed is acknowledged at once, and not when it is done."""

    idle_ms = 0

    def take_over(self):
        message = super().take_over()
        if message:
            super().done(message)
        return message


KINDS = {
    "no claims": recipes.KeptQueue,
    "noack": recipes.NoAckQueue,
    "claims": recipes.StreamQueue,
    "eager": Eager,
}
FAULTS = ("kill", "kill", "freeze", "reset", "black hole")


@dataclass(frozen=True)
class Step:
    """When `who` begins its nth message, the fault strikes it; the others go on."""

    who: str
    nth: int
    fault: str
    again: bool  # and the consumer that comes next is killed as well, with what it took


def plan(seed: int) -> Step:
    dice = random.Random(f"plan {seed}")
    return Step(dice.choice("AB"), dice.choice((1, 1, 2)), dice.choice(FAULTS), dice.random() < 0.5)


def consumer(w, kind, store, key, n):
    """Take, work, confirm until n messages are done, with a new connection after a lost one. Bounded by its looks."""
    queue, looks = None, 0
    while looks < (400 if kind == "claims" else 60):
        try:
            queue = queue or KINDS[kind](w, [store], key)
            if queue.r.scard(f"{key}:done") == n:
                return
            looks += 1
            message = queue.take(0.02)
            if message:
                handle(w, message, (), 0.005)
                queue.r.sadd(f"{key}:done", message)
                queue.done(message)
        except recipes.StreamQueue.LOST:
            queue = None
            w.work(0.02)


def send(w, store, keys):
    for key in keys:
        queue = recipes.StreamQueue(w, [store], key)
        for i in range(MESSAGES):
            queue.put(f"{key}: m{i}")
            w.mark("sent", message=f"{key}: m{i}")
        queue.r.close()


@dataclass
class Outcome:
    seed: int
    kind: str
    key: str
    struck: bool
    left: int
    most: object = None
    least: object = None

    @property
    def step(self) -> Step:
        return plan(self.seed)

    def __repr__(self):
        return f"{self.kind} under plan {self.seed} {self.step}: {self.most}, {self.least}, {self.left} pending"


def play(lab, store, r, seed: int, kind: str, key: str) -> Outcome:
    step, job = plan(seed), (consumer, kind, store, key, MESSAGES)
    me = lab.worker(f"{step.who} {key}", *job)
    struck = reaches(me, "works", step.nth)
    if struck and step.fault == "kill":
        lab.kill(me)
        if step.again:
            second = lab.worker(f"C {key}", *job)
            if reaches(second, "works"):
                lab.kill(second)
    elif struck and step.fault == "freeze":
        lab.pause(me)
    elif struck:
        lab.cut(me, store, how=step.fault)
        me.start()
    last = lab.worker(f"D {key}", *job)
    last.join(120)
    if struck and step.fault == "freeze":
        lab.resume(me)
    elif struck and step.fault != "kill":
        lab.heal(me, store)
    if me.state != "killed":
        me.join(120)
    return Outcome(seed, kind, key, struck, r.xpending(key, "workers")["pending"])


def seen_by(timeline: Timeline, key: str) -> Timeline:
    """What the record tells of one experiment."""
    mine = [
        e for e in timeline.events
        if e.lane == LAB or e.lane.endswith(f" {key}") or str(e.data.get("message", "")).startswith(f"{key}: ")
    ]  # fmt: skip
    return Timeline(tuple(mine))


@pytest.fixture(scope="module")
def outcomes(lab, store, r) -> list[Outcome]:
    found = []
    for first in range(0, PLANS, AT_ONCE):
        kinds = KINDS if first < PLANTED_PLANS else ("claims",)
        experiments = [
            (seed, kind, f"{kind.replace(' ', '-')}-{seed}") for seed in range(first, first + AT_ONCE) for kind in kinds
        ]
        with lab.run(f"plans {first} to {first + AT_ONCE - 1}") as run:
            lab.worker("shop", send, store, [key for *_, key in experiments]).join(60)
            with ThreadPoolExecutor(len(experiments)) as pool:
                now = list(pool.map(lambda one: play(lab, store, r, *one), experiments))
        for outcome in now:
            told = seen_by(run.timeline, outcome.key)
            outcome.most, outcome.least = check.at_most_once(told), check.at_least_once(told)
        found += now
    return found


def of(outcomes, kind: str, **wanted) -> list[Outcome]:
    return [
        o for o in outcomes
        if o.kind == kind and all(getattr(o.step, name) == value for name, value in wanted.items())
    ]  # fmt: skip


def test_the_same_seed_makes_the_same_plan_and_plans_differ():
    steps = [plan(seed) for seed in range(PLANS)]
    assert steps == [plan(seed) for seed in range(PLANS)]
    assert {step.fault for step in steps} == set(FAULTS) and len(set(steps)) > 12


def test_whoever_claims_loses_nothing(outcomes):
    """Rows 18 and 19 of the faults that people met: killed between taking and done, and taken over while it sleeps."""
    ours = of(outcomes, "claims")
    assert len(ours) == PLANS and sum(o.struck for o in ours) > 20
    assert [o for o in ours if not o.least.ok] == []


def test_without_claims_the_message_of_the_dead_is_never_done(outcomes):
    killed = [o for o in of(outcomes, "no claims", fault="kill") if o.struck]
    assert len(killed) >= 3
    assert [o for o in killed if o.least.status != VIOLATED or not o.left] == []


def test_noack_loses_it_without_a_trace(outcomes):
    killed = [o for o in of(outcomes, "noack", fault="kill") if o.struck]
    assert len(killed) >= 3
    assert [o for o in killed if o.least.status != VIOLATED or o.left] == []


def test_the_check_sees_the_planted_fault(outcomes):
    """Only who dies with a message that was taken over can lose it: killed, and killed again."""
    killed = [o for o in of(outcomes, "eager", fault="kill", again=True) if o.struck and o.step.nth == 1]
    assert len(killed) >= 1
    assert [o for o in killed if o.least.status != VIOLATED] == []


def test_a_sleeper_is_robbed_and_its_message_runs_twice(outcomes):
    """Row 18: longer at work than the time limit. What is delivered twice is why handlers must bear it."""
    frozen = [o for o in of(outcomes, "claims", fault="freeze") if o.struck]
    assert len(frozen) >= 3
    assert [o for o in frozen if o.most.status != VIOLATED] == []


# -- poison
def test_poison_is_set_aside_once_and_for_all_after_its_tries(store, r):
    r.delete("bad", "bad:dead")

    class Quick(recipes.StreamQueue):
        idle_ms = 0

    queue = Quick(Onlooker(), [store], "bad")
    queue.put("poison")
    taken = [queue.take(0.01) for _ in range(queue.tries + 3)]
    assert taken == ["poison"] * queue.tries + [None] * 3
    assert queue.dead() == ["poison"] and r.xpending("bad", "workers")["pending"] == 0


# -- trimming
actions = st.lists(
    st.one_of(
        st.just(("add",)),
        st.tuples(st.just("read"), st.sampled_from("gh"), st.integers(1, 3)),
        st.tuples(st.just("ack"), st.sampled_from("gh"), st.integers(0, 5)),
        st.just(("trim",)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(actions)
def test_trimming_by_what_is_finished_takes_nothing_that_any_group_has_still_to_do(r, steps):
    r.delete("t")
    added, read, done = [], {"g": [], "h": []}, {"g": set(), "h": set()}
    for group in read:
        r.xgroup_create("t", group, id="0", mkstream=True)
    for what, *how in steps:
        if what == "add":
            added.append(r.xadd("t", {"n": 1}))
        elif what == "read":
            group, n = how
            read[group] += [id for id, _ in (r.xreadgroup(group, "c", {"t": ">"}, count=n) or [[0, []]])[0][1]]
        elif what == "ack" and (waiting := [id for id in read[how[0]] if id not in done[how[0]]]):
            id = waiting[how[1] % len(waiting)]
            done[how[0]].add(id)
            r.xack("t", how[0], id)
        elif what == "trim":
            recipes.keep_unfinished(r, "t")
        there = {id for id, _ in r.xrange("t")}
        assert there >= {id for id in added for group in done if id not in done[group]}
    recipes.keep_unfinished(r, "t")
    finished = [id for id in added if all(id in ids for ids in done.values())]
    if added and len(finished) == len(added):
        assert r.xlen("t") <= 1
    for group in read:
        _, _, gone = r.xautoclaim("t", group, "other", 0)
        assert gone == []


def test_without_a_group_nothing_is_trimmed(r):
    r.delete("t")
    r.xadd("t", {"n": 1})
    recipes.keep_unfinished(r, "t")
    assert r.xlen("t") == 1 and recipes.finished_before(r, "t") is None


def test_what_was_trimmed_while_pending_is_reported_and_the_rest_goes_on(store, r):
    """Row 20: entries trimmed from a stream stay pending, until XAUTOCLAIM finds that they are gone."""
    r.delete("eaten", "eaten:missing")

    class Quick(recipes.StreamQueue):
        idle_ms = 0

    queue = Quick(Onlooker(), [store], "eaten")
    for i in range(5):
        queue.put(f"m{i}")
    ids = [id for id, _ in r.xreadgroup("workers", "dead", {"eaten": ">"}, count=5)[0][1]]
    r.xtrim("eaten", maxlen=2, approximate=False)
    taken = []
    while (message := queue.take(0.01)) and len(taken) < 10:
        queue.done(message)
        taken.append(message)
    assert taken == ["m3", "m4"]
    assert r.lrange("eaten:missing", 0, -1) == ids[:3]
    assert r.xpending("eaten", "workers")["pending"] == 0


# -- pub/sub
def test_an_absent_subscriber_is_counted_and_its_loss_can_be_told(lab, store, r):
    """Row 21, absent: the publisher is told 0, and what was sent meanwhile never comes."""
    with lab.run("away") as run:
        ear = lab.worker("ear", recipes.listen, store, "row 21").run_to("listens").start()
        assert r.publish("row 21", "before") == 1
        lab.until("it is heard", lambda: [s.data["message"] for s in run.timeline.spans("hears")] == ["before"])
        lab.cut(ear, store, how="reset")
        lab.until("nobody listens", lambda: not r.pubsub_numsub("row 21")[0][1])
        assert r.publish("row 21", "lost") == 0
        lab.heal(ear, store)
        lab.until("it listens again", lambda: len(run.timeline.marks("listens")) > 1)
        r.publish("row 21", "after")
        lab.until("it is heard", lambda: "after" in [s.data["message"] for s in run.timeline.spans("hears")])
        assert [s.data["message"] for s in run.timeline.spans("hears")] == ["before", "after"]


def test_a_slow_subscriber_is_thrown_out_and_told_so(lab, store, r):
    """Row 21, slow: the server ends its connection; what waited is lost, and its own count shows the gap."""
    r.config_set("client-output-buffer-limit", "pubsub 1048576 0 0")
    with lab.run("slow"):
        slow = lab.worker("slow", recipes.count_news, store).run_to("listens").start()
        lab.pause(slow)
        published = 0
        while r.pubsub_numsub("bulk")[0][1] and published < 5000:
            published += 1
            r.publish("bulk", bytes(16_000))
        lab.resume(slow)
        heard, how = slow.join()
    assert how == "thrown out" and heard < published


CACHES = {
    "PlainCache": "100",
    "TtlCache": "90",
    "FlushingCache": "90",
    "TrackingCache": "90",
}


@pytest.mark.parametrize(("name", "price"), CACHES.items(), ids=CACHES)
def test_an_instance_that_missed_the_news_serves_the_old_value_unless_it_has_a_remedy(lab, store, r, name, price):
    r.set("price", 100)
    with lab.run(name) as run:
        b = lab.worker("B", recipes.serve, store, getattr(recipes, name)).run_to("serves 100").start()
        lab.until("B listens", lambda: len(run.timeline.marks("subscribed")) == 1)
        lab.cut(b, store, how="reset")
        r.set("price", 90)
        r.publish("stale", "price")
        lab.heal(b, store)
        lab.until("B listens again", lambda: len(run.timeline.marks("subscribed")) == 2)
        if price == "90":
            lab.until("B serves the new price", lambda: run.timeline.spans()[-1].name == "serves 90")
        else:
            lab.let_pass(0.3)
            assert {s.name for s in run.timeline.spans() if "price" in s.data} == {"serves 100"}
            r.publish("stale", "price")  # it is connected, and would have believed it
            lab.until("B serves the new price", lambda: run.timeline.spans()[-1].name == "serves 90")


# -- the readers of the channel and of the stream, by the same cut
def test_the_reader_of_a_stream_goes_on_where_it_stopped(lab, store, r):
    r.delete("row 21 log")
    with lab.run("resume") as run:
        eye = lab.worker("eye", recipes.follow, store, "row 21 log").run_to("listens").start()

        def read():
            return [s.data["message"] for s in run.timeline.spans("reads")]

        for n in range(3):
            r.xadd("row 21 log", {"message": n})
        lab.until("three are read", lambda: read() == ["0", "1", "2"])
        lab.cut(eye, store, how="reset")
        for n in range(3, 6):
            r.xadd("row 21 log", {"message": n})
        lab.heal(eye, store)
        lab.until("all are read", lambda: read() == [str(n) for n in range(6)])
