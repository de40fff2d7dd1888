"""The limiters of chapters 07a and 07b, from their cells: random traffic, many processes, a clock that steps."""

import contextlib
import random
import secrets
import sys
import threading

import cloudpickle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit import Lab, LabError, check, recall
from labkit.record import Event, Timeline

limiters, production = recall("07a-limiting-algorithms"), recall("07b-limiting-in-production")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

EPOCH_MS = limiters.EPOCH_MS
# Under a controlled clock the keys still expire by the server's: no machine stands still for two of these windows.
WINDOW_MS = 60_000
LIMIT = 7


@pytest.fixture(scope="module")
def lab():
    with Lab("recipes-07") as lab:
        yield lab


@pytest.fixture(scope="module")
def store(lab):
    return lab.redis()


@pytest.fixture(scope="module")
def r(store):
    return store.client(timeout_s=20)


def fresh(r, kind, *more, limit=LIMIT, window_ms=WINDOW_MS):
    return kind(r, f"limit:{secrets.token_hex(6)}", limit, window_ms, *more)


def asked(limiter, moments_ms) -> Timeline:
    """The answers of one limiter at these moments of a controlled clock, in this order."""
    events = []
    for n, ms in enumerate(moments_ms):
        ok, at_ms = limiter.allow(EPOCH_MS + ms)
        events.append(Event(float(n), "W", "mark", "admitted" if ok else "refused", {"at": at_ms / 1000}))
    return Timeline(tuple(events))


def moments_of(timeline) -> list[int]:
    return [round(e.data["at"] * 1000) - EPOCH_MS for e in timeline.marks("admitted")]


# -- random traffic on a controlled clock
gaps = st.lists(
    st.one_of(st.integers(0, 30), st.integers(0, WINDOW_MS // 3), st.integers(0, 3 * WINDOW_MS)), max_size=60
)
steps = st.lists(
    st.one_of(st.integers(0, WINDOW_MS // 4), st.just(0), st.integers(-2 * WINDOW_MS, 2 * WINDOW_MS)), max_size=60
)


def times(gaps) -> list[int]:
    """Moments from what lies between them; never before the epoch."""
    now, moments = 10 * WINDOW_MS, []
    for gap in gaps:
        now = max(0, now + gap)
        moments.append(now)
    return moments


def exact(kind, *more):
    return lambda r: fresh(r, kind, *more)


STRICT = {
    "log": exact(limiters.Log),
    "counter, 1 and one more": exact(limiters.SmallWindows, 1, 1),
    "counter, 10 and one more": exact(limiters.SmallWindows, 10, 1),
    "counter, 7 and one more": exact(limiters.SmallWindows, 7, 1),
}


@pytest.mark.parametrize("make", STRICT.values(), ids=STRICT)
@settings(max_examples=40)
@given(gaps=gaps)
@example(gaps=[WINDOW_MS - 1] + [0] * 9 + [1] + [0] * 9)
def test_a_strict_limiter_keeps_its_limit_in_every_window(r, make, gaps):
    timeline = asked(make(r), times(gaps))
    if timeline.marks("admitted"):
        assert check.within_limit(timeline, LIMIT, WINDOW_MS / 1000).ok


@pytest.mark.parametrize("make", STRICT.values(), ids=STRICT)
@settings(max_examples=40)
@given(steps=steps)
@example(steps=[0] * 9 + [-2 * WINDOW_MS] + [0] * 9 + [WINDOW_MS] + [0] * 9)
@example(steps=[0] * 9 + [2 * WINDOW_MS, -2 * WINDOW_MS] + [0] * 9)
def test_it_keeps_it_while_the_clock_steps(r, make, steps):
    timeline = asked(make(r), times(steps))
    if timeline.marks("admitted"):
        assert check.within_limit(timeline, LIMIT, WINDOW_MS / 1000).ok


@pytest.mark.parametrize(("kind", "more", "grain_ms"), [(limiters.Log, (), 0), (limiters.SmallWindows, (10, 1), 6000)])
@settings(max_examples=40)
@given(steps=steps)
def test_its_time_never_runs_back_by_more_than_its_grain(r, kind, more, grain_ms, steps):
    passed = moments_of(asked(fresh(r, kind, *more), times(steps)))
    assert all(later >= earlier - grain_ms for earlier, later in zip(passed, passed[1:], strict=False))


@settings(max_examples=40)
@given(gaps=gaps)
def test_a_log_refuses_only_when_it_must(r, gaps):
    passed = []
    for ms in times(gaps):
        passed.append((ms, sum(ok and ms - WINDOW_MS < then <= ms for then, ok in passed) < LIMIT))
    assert [e.name == "admitted" for e in asked(fresh(r, limiters.Log), times(gaps)).marks()] == [
        ok for _, ok in passed
    ]


@settings(max_examples=40)
@given(gaps=gaps)
@example(gaps=[WINDOW_MS - 1] + [0] * 9 + [1] + [0] * 9)
def test_a_fixed_window_keeps_the_calendar_and_at_most_doubles(r, gaps):
    timeline = asked(fresh(r, limiters.FixedWindow), times(gaps))
    if timeline.marks("admitted"):
        assert check.within_limit(timeline, LIMIT, WINDOW_MS / 1000, fixed=True).ok
        assert check.within_limit(timeline, 2 * LIMIT, WINDOW_MS / 1000).ok


@settings(max_examples=40)
@given(steps=steps, capacity=st.integers(1, 12), part=st.sampled_from((0.1, 0.5, 1, 2.5)))
def test_a_token_bucket_gives_its_capacity_and_its_rate(r, steps, capacity, part):
    timeline = asked(fresh(r, limiters.TokenBucket, capacity), times(steps))
    if timeline.marks("admitted"):
        bound = capacity + LIMIT * part + 1e-6
        assert check.within_limit(timeline, bound, part * WINDOW_MS / 1000).ok


@settings(max_examples=40)
@given(gaps=gaps, places=st.integers(0, 12))
def test_a_leaky_bucket_spaces_what_it_admits_and_queues_no_more_than_it_says(r, gaps, places):
    gap = WINDOW_MS / LIMIT
    timeline = asked(fresh(r, limiters.LeakyBucket, places), times(gaps))
    passed = moments_of(timeline)
    assert all(later - earlier > gap - 1.001 for earlier, later in zip(passed, passed[1:], strict=False))
    for ms, e in zip(times(gaps), timeline.marks(), strict=True):
        wait = round(e.data["at"] * 1000) - EPOCH_MS - ms
        assert e.name == "refused" or 0 <= wait <= places * gap + 1


# -- the unsafe ones are caught, and so is a planted fault
HARM = [WINDOW_MS // 10 - 1] * LIMIT + [WINDOW_MS] * LIMIT
BORDER = [WINDOW_MS - 1] * LIMIT + [WINDOW_MS] * LIMIT


class OneTooMany(limiters.Log):
    """The planted fault."""

    script = limiters.Log.script.replace(">= limit", "> limit")


@pytest.mark.parametrize(
    ("make", "moments"),
    [
        (exact(limiters.FixedWindow), BORDER),
        (exact(limiters.SmallWindows, 10, 0), HARM),
        (exact(limiters.TokenBucket, LIMIT), [0] * LIMIT + [WINDOW_MS // LIMIT * i for i in range(1, LIMIT)]),
        (exact(OneTooMany), [0] * (LIMIT + 1)),
    ],
    ids=["fixed window", "small windows", "token bucket", "planted"],
)
def test_more_than_the_limit_is_seen(r, make, moments):
    assert not check.within_limit(asked(make(r), moments), LIMIT, WINDOW_MS / 1000).ok


# -- what people met in public
def test_requests_of_one_millisecond_do_not_share_a_name(r):
    log = fresh(r, limiters.Log, limit=50)
    assert len(asked(log, [5] * 60).marks("admitted")) == 50 == r.zcard(log.key)


@pytest.mark.parametrize("make", STRICT.values(), ids=STRICT)
def test_a_refused_request_leaves_no_trace_and_a_polite_retrier_gets_in(r, make):
    limiter = make(r)
    asked(limiter, [0] * LIMIT)
    full = r.dump(limiter.key)
    pushy = asked(limiter, range(0, WINDOW_MS // 2, 100))
    assert not pushy.marks("admitted") and r.dump(limiter.key) == full
    assert limiter.allow(EPOCH_MS + 3 * WINDOW_MS)[0]


def test_a_log_that_adds_first_never_lets_a_pushy_one_in_again(r):
    pushy = range(0, 5 * WINDOW_MS, WINDOW_MS // 20)
    assert len(asked(fresh(r, limiters.AddFirstLog), pushy).marks("admitted")) == LIMIT
    assert len(asked(fresh(r, limiters.Log), pushy).marks("admitted")) == 5 * LIMIT


ALL = STRICT | {
    "fixed window": exact(limiters.FixedWindow),
    "token bucket": exact(limiters.TokenBucket, 3),
    "leaky bucket": exact(limiters.LeakyBucket, 3),
}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_no_key_stays_for_ever_not_even_after_the_first_request(r, make):
    limiter = make(r)
    limiter.allow()
    assert 0 < r.pttl(limiter.key) <= 3 * WINDOW_MS


def one_request(w, store, kind, key):
    return kind(w.client(store), key, LIMIT, WINDOW_MS, step=w.mark).allow()


def test_a_death_between_incr_and_expire_is_for_ever_where_only_the_first_request_expires(lab, store, r):
    for kind, after_the_next in ((limiters.FirstHitLimiter, False), (limiters.PrintedLimiter, True)):
        key = f"count:{secrets.token_hex(6)}"
        with lab.run("A dies in between"):
            a, b = (lab.worker(name, one_request, store, kind, key) for name in "AB")
            lab.kill(a.run_to("counted"))
            b.join()
        assert (r.pttl(key) > 0) is after_the_next


def test_expire_on_each_request_shuts_a_steady_client_out_and_on_the_first_it_does_not(r):
    key, pushed = f"count:{secrets.token_hex(6)}", []
    printed = limiters.PrintedLimiter(r, key, LIMIT, WINDOW_MS)
    for _ in range(3 * LIMIT):
        r.pexpire(key, WINDOW_MS // 2)  # as if half a window had passed
        pushed.append(printed.allow())
        assert r.pttl(key) > WINDOW_MS // 2
    assert pushed == [True] * LIMIT + [False] * 2 * LIMIT
    first_hit = limiters.FirstHitLimiter(r, f"{key}:first", LIMIT, WINDOW_MS)
    first_hit.allow()
    r.pexpire(f"{key}:first", WINDOW_MS // 2)
    first_hit.allow()
    assert r.pttl(f"{key}:first") <= WINDOW_MS // 2


# -- concurrent processes, on the server's own clock, which steps
SHORT_MS, PAIRS = 500, 12
CLOCKED = {
    "log": (limiters.Log, (), False),
    "counter and one more": (limiters.SmallWindows, (10, 1), False),
    "fixed window": (limiters.FixedWindow, (), True),
}


def ask_often(w, store, kind, more, key, n):
    """Ask n times at random moments."""
    limiter = kind(w.client(store, timeout_s=20), key, LIMIT, SHORT_MS, *more)
    for _ in range(n):
        ok, at_ms = limiter.allow()
        w.mark("admitted" if ok else "refused", at=at_ms / 1000)
        w.work(random.expovariate(1 / 0.006))


def clocked(lab, store, name, jumps_s):
    """Pairs of processes, each pair with a limit of its own; the clock steps, and now and then one is killed.

    Returns (one record a pair, the keys that would stay for ever).
    """
    kind, more, _ = CLOCKED[name]
    client, prefix, dice = store.client(timeout_s=20), f"{name}:{secrets.token_hex(3)}", random.Random(name)
    with lab.run(f"{name}: a clock that steps") as e:
        pairs = [
            [lab.worker(f"{who}{i}", ask_often, store, kind, more, f"{prefix}:{i}", 50) for who in "AB"]
            for i in range(PAIRS)
        ]
        for worker in (one for pair in pairs for one in pair):
            worker.start()
        for jump_s in jumps_s:
            lab.let_pass(0.1)
            lab.set_clock(store, jump_s=jump_s)
            with contextlib.suppress(LabError):  # it came to its end before
                lab.kill(dice.choice(pairs)[0])
        for one in (one for pair in pairs for one in pair if one.state != "killed"):
            one.join(60)
    told = [
        Timeline(tuple(event for event in e.timeline.events if event.lane in (f"A{i}", f"B{i}"))) for i in range(PAIRS)
    ]
    return told, [key for key in client.scan_iter(f"{prefix}:*") if client.pttl(key) == -1]


@pytest.mark.parametrize("name", CLOCKED)
@pytest.mark.parametrize(
    ("jumps_s", "bound"),
    [((0.0, 0.0), LIMIT), ((0.4, 0.1, 2.0), LIMIT), ((-0.1, -3.0), LIMIT), ((2.0, -2.0), 2 * LIMIT)],
    ids=["right", "forwards", "back", "forwards and back"],
)
def test_processes_keep_a_common_limit_on_a_clock_that_steps(lab, name, jumps_s, bound):
    if any(jumps_s) and not lab.can("clock"):
        pytest.skip("no C compiler: the clock of a server cannot be moved")
    told, for_ever = clocked(lab, lab.redis(), name, [jump for jump in jumps_s if jump])
    verdicts = [check.within_limit(one, bound, SHORT_MS / 1000, fixed=CLOCKED[name][2]) for one in told]
    assert [verdict for verdict in verdicts if not verdict.ok] == []
    assert sum(len(one.marks("refused")) for one in told) > 20, "there was hardly anything to refuse"
    assert for_ever == []


def test_the_check_sees_a_limiter_that_lets_one_too_many_through(lab, store):
    with lab.run("the planted fault, in processes") as e:
        team = [lab.worker(who, ask_often, store, OneTooMany, (), "planted", 60) for who in "ABC"]
        for one in [one.start() for one in team]:
            one.join(60)
    assert not check.within_limit(e.timeline, LIMIT, SHORT_MS / 1000).ok


# -- in production: one bucket for many
BUCKETS = {"loose": production.LooseBucket, "watched": production.WatchedBucket, "scripted": production.ScriptBucket}


def caller(w, store, kind, key, n):
    """Ask n times; returns how many were admitted."""
    bucket = kind(w.client(store, timeout_s=20), key, step=w.mark)
    return sum(bucket.allow() for _ in range(n))


@pytest.mark.parametrize("name", BUCKETS)
def test_callers_that_meet_take_the_tokens_there_are_and_the_loose_bucket_gives_more(lab, store, r, name):
    key, tokens, callers = f"tokens:{name}", 4, 10
    r.set(key, tokens)
    with lab.run(f"{callers} callers meet: {name}"):
        team = [lab.worker(f"W{i}", caller, store, BUCKETS[name], key, 1) for i in range(callers)]
        for one in team:
            one.run_to("read")
        admitted = sum(one.join() for one in team)
    assert admitted == (callers if name == "loose" else tokens)
    assert int(r.get(key)) == (tokens - 1 if name == "loose" else 0)


@pytest.mark.parametrize("name", ["watched", "scripted"])
def test_no_token_is_lost_or_made_while_callers_come_and_are_killed(lab, store, r, name):
    key, tokens = f"stock:{name}", 120
    r.set(key, tokens)
    with lab.run(f"callers and deaths: {name}"):
        team = [lab.worker(f"W{i}", caller, store, BUCKETS[name], key, 30) for i in range(6)]
        doomed, rest = [one.run_to("read") for one in team[:2]], [one.start() for one in team[2:]]
        for one in doomed:
            lab.kill(one)
        admitted = sum(one.join(60) for one in rest)
    by_the_killed = tokens - int(r.get(key)) - admitted
    assert admitted > 0 and 0 <= by_the_killed <= 60 and int(r.get(key)) >= 0


@settings(max_examples=40)
@given(pauses=st.lists(st.floats(-5, 5), min_size=1, max_size=80), rate=st.floats(0.1, 20), capacity=st.integers(1, 9))
def test_a_local_bucket_gives_its_capacity_and_its_rate_whatever_its_clock_does(pauses, rate, capacity):
    clock = [100.0]
    bucket = production.LocalBucket(rate, capacity, now=lambda: clock[0])
    highest, admitted = clock[0], 0
    for pause in pauses:
        clock[0] += pause
        highest = max(highest, clock[0])
        admitted += bucket.allow()
        assert admitted <= capacity + rate * (highest - 100.0) + 1e-6


def test_threads_share_a_local_bucket_exactly():
    bucket, answers = production.LocalBucket(0, 50), []
    team = [threading.Thread(target=lambda: answers.extend(bucket.allow() for _ in range(200))) for _ in range(16)]
    for one in team:
        one.start()
    for one in team:
        one.join()
    assert sum(answers) == 50


def test_a_guarded_limiter_goes_on_without_redis_and_returns_by_itself(lab):
    node = lab.redis()
    log = limiters.Log(node.client(timeout_s=2), "limit", 5, 60_000)
    asked_locally = []

    def otherwise():
        asked_locally.append(1)
        return False

    guarded = production.Guarded(lambda: log.allow()[0], otherwise, again_s=0.05)
    assert [guarded.allow() for _ in range(6)] == [(True, "redis")] * 5 + [(False, "redis")]
    lab.kill(node)
    assert guarded.allow() == (False, "otherwise") and asked_locally == [1]
    lab.restart(node, data="lost")
    lab.until("Redis decides again", lambda: guarded.allow() == (True, "redis"))
    lab.pause(node)
    assert guarded.allow() == (False, "otherwise")
    lab.resume(node)
    lab.until("Redis decides again", lambda: guarded.allow()[1] == "redis")


def test_a_mistake_is_not_taken_for_an_outage():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        production.Guarded(broken, lambda: True).allow()


# -- nginx
def passed(lab, front, path, n) -> tuple[int, float]:
    """(how many of n requests at once were answered 200, the seconds until the last answer)."""
    with lab.run(f"{n} at once to {path}"):
        answers = lab.worker("W", production.at_once, front, path, n).join(60)
    assert len(answers) == n and {status for status, _ in answers} <= {200, 503}
    return sum(status == 200 for status, _ in answers), max(seconds for _, seconds in answers)


@pytest.mark.parametrize(("burst", "more"), [(0, ""), (3, "nodelay"), (8, "nodelay"), (5, "delay=5")])
def test_nginx_lets_burst_and_one_pass(lab, burst, more):
    rule = f"limit_req zone=all {f'burst={burst}' if burst else ''} {more};"
    front = lab.nginx(rule, http="limit_req_zone $uri zone=all:1m rate=1r/m;")
    assert passed(lab, front, "/", 20)[0] == burst + 1


def test_six_thousand_a_minute_are_one_each_ten_milliseconds(lab):
    """Who reads it as "six thousand in any minute" is refused early."""
    front = lab.nginx("limit_req zone=all burst=20 nodelay;", http="limit_req_zone $uri zone=all:1m rate=6000r/m;")
    got, took_s = passed(lab, front, "/", 100)
    assert 21 <= got <= 22 + 100 * took_s
