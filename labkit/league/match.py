"""One lock in the storm, a round at a time, and what came of it.

A step of the plan is a staged accident: everybody is led outside the lock, the fault strikes one of them just where the
plan says, the next one is let in if the lock lets him, and then the struck one goes on. Between the steps
all run freely. What the accounts themselves counted is the truth; the record only tells who believed what.
"""

import contextlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace

from .. import check, measure
from ..errors import LabError, Unsupported, WaitError, WorkerError
from ..record import LAB, Timeline
from . import job
from .plan import OUTSIDE, THOUGHT, Step

START, WORKERS, JUMP_S = 1_000_000, 4, 60
_HELD_S, _SHORT_S = 10.0, 0.25  # how long a worker is waited for that must come, and one that probably will not
_AFTER_S = 0.45  # of a double hold is shown
_BEGINS, _ENDS = "all are outside, and the fault strikes", "all are outside again"


@dataclass
class Scene:
    """What one step did: whom it struck (None: it could not), and how much money each account then had wrong.

    timeline -- the record of this step alone; verdict -- of mutual exclusion in it.
    """

    step: Step
    struck: str | None
    wrong: dict[str, int]
    timeline: Timeline
    verdict: check.Verdict

    @property
    def longest_s(self) -> float:
        """The longest time with two holders."""
        return max((evidence.end - evidence.start for evidence in self.verdict.evidence), default=0.0)

    @property
    def moment(self) -> Timeline:
        """What of it is worth a picture: to the end of the double hold and a little more, without the waiting."""
        until = max((e.end for e in self.verdict.evidence), default=self.timeline.seconds) + _AFTER_S
        waits = {(e.pid, e.data["span"]) for e in self.timeline.events if e.kind == "begin" and e.name == "waits"}
        shown = [
            e for e in self.timeline.events
            if e.t <= until and e.name != OUTSIDE and (e.pid, e.data.get("span")) not in waits
        ]  # fmt: skip
        return Timeline(tuple(shown), self.timeline.title)


@dataclass
class Tally:
    """One lock's results so far; `row()` is its line of the table. accounts -- the names of all in the league."""

    lock: str
    accounts: tuple[str, ...] = ()
    scenes: list[Scene] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    acquisitions: int = 0
    doubles: int = 0
    seconds: float = 0.0
    without_s: float = 0.0
    refused: Counter = field(default_factory=Counter)  # by account
    failed: Counter = field(default_factory=Counter)  # turns that ended in an error, by its class

    @property
    def worst(self) -> Scene | None:
        """The scene with the most money wrong, and of those the one with the longest double hold."""
        return max(self.scenes, key=lambda s: (sum(s.wrong.values()), s.longest_s), default=None)

    def wrong(self) -> dict[str, int | None]:
        """By account, all scenes together; None: this lock has no number for that account."""
        known = {name for scene in self.scenes for name in scene.wrong}
        return {n: sum(s.wrong[n] for s in self.scenes) if n in known else None for n in self.accounts}

    def row(self) -> dict:
        median_s, p99_s = measure.quantiles(self.waits_s, (0.5, 0.99)) if self.waits_s else (None, None)
        return {
            "lock": self.lock,
            "acquisitions": self.acquisitions,
            "double holds": self.doubles,
            **{f"wrong: {name}": wrong for name, wrong in self.wrong().items()},
            "a second": round(self.acquisitions / self.seconds, 1) if self.seconds else None,
            "median wait (s)": median_s and round(median_s, 4),
            "99 % wait (s)": p99_s and round(p99_s, 3),
            "without service (s)": round(self.without_s, 1),
            "seconds": round(self.seconds, 1),
        }


def open_accounts(bank, accounts) -> None:
    """The table with one account a kind, and the durable counter, as if new."""
    with bank.client() as db:
        db.execute("DROP TABLE IF EXISTS accounts")
        db.execute("DROP SEQUENCE IF EXISTS tokens")
        db.execute("CREATE SEQUENCE tokens")
        db.execute("CREATE TABLE accounts (name text PRIMARY KEY, balance int, writes int, seen bigint)")
        for name in accounts:
            db.execute("INSERT INTO accounts VALUES (%s, %s, 0, 0)", [name, START])


def wrong_now(bank) -> dict[str, int]:
    """What each account has too much: the withdrawals it took, less what is gone from it."""
    with bank.client(timeout_s=10) as db:
        rows = db.execute("SELECT name, writes - (%s - balance) FROM accounts", [START]).fetchall()
    return dict(rows)


class Match:
    """An entrant on its servers, against a bank that no fault strikes unless the lock lives in it."""

    def __init__(self, lab, entrant, nodes, bank, accounts, ttl_ms: int = 1000, think_s: float = 0.02):
        self.lab, self.entrant, self.nodes, self.bank, self.accounts = lab, entrant, nodes, bank, accounts
        self.ttl_ms, self.think_s, self.tally = ttl_ms, think_s, Tally(entrant.name, tuple(accounts))
        self.patience_s = 2 * ttl_ms / 1000 + 2

    def play(self, steps, title: str = "") -> Tally:
        """One round: all steps of the plan in a run of its own. Adds to the tally, and returns it."""
        servers = self.entrant.servers
        servers.fresh(self.nodes)
        open_accounts(self.bank, {n: a for n, a in self.accounts.items() if a[0] != "own" or self.entrant.counts})
        before, told = wrong_now(self.bank), []
        with self.lab.run(title or f"{self.entrant.name} in the storm") as run:
            self._made = 0
            self.crew = [self._worker() for _ in range(WORKERS)]
            for step in steps:
                for worker in self.crew:
                    worker.start()
                self.lab.let_pass(step.calm_s)
                self._all_outside()
                self._note(_BEGINS)
                struck = self._strike(step)
                self._all_outside()
                self._note(_ENDS)
                now = wrong_now(self.bank)
                told.append((step, struck, {name: now[name] - before[name] for name in now}))
                before = now
        self._count(run.timeline, told)
        return self.tally

    def _note(self, what: str) -> None:
        self.lab.until(what, lambda: True)

    # -- the crew
    def _worker(self):
        self._made += 1
        what = self.entrant.make, self.nodes, self.bank, self.accounts, self.ttl_ms, self.think_s
        return self.lab.worker(f"W{self._made}", job.compete, *what)

    def _lead(self, worker, mark: str, timeout_s: float) -> bool:
        """Let it run to this mark and hold it there; False if it does not get there in time."""
        try:
            worker.run_to(mark, timeout_s)
            return True
        except (WaitError, WorkerError):
            if worker.state == "raised":
                worker.join()
            return False

    def _all_outside(self) -> None:
        """Whoever cannot be led outside is ended, and another one takes its place."""
        for i, worker in enumerate(self.crew):
            if not self._lead(worker, OUTSIDE, _HELD_S):
                with contextlib.suppress(LabError):
                    self.lab.kill(worker)
                self.crew[i] = self._worker()

    # -- the faults
    def _strike(self, step: Step) -> str | None:
        """Returns whom it struck; None where this fault does not exist for this lock, or nobody came to the place."""
        a, b, c, *_ = (self.crew[number] for number in step.order)
        if step.fault == "cut":
            return self._cut(a, step)
        if step.fault == "failover":
            return self._failover(a, b, c)
        places = [step.at] + [THOUGHT] * (step.fault == "kill")  # not every lock can be looked into
        if not any(self._lead(a, at, self.patience_s if at == THOUGHT else _SHORT_S) for at in places):
            return None
        scenes = {"kill": self._kill, "clock": self._clock, "long freeze": self._long_freeze}
        return scenes.get(step.fault, self._freeze)(a, b, c)

    def _rival(self, a, b, c, patience_s: float) -> None:
        """B comes in if the lock lets it; A goes on to the end of its turn; C tries; then B and C go on."""
        self._lead(b, THOUGHT, patience_s)
        if a.frozen:
            self.lab.resume(a)
        self._lead(a, OUTSIDE, _HELD_S)
        self._lead(c, THOUGHT, _SHORT_S)
        b.start(), c.start()

    def _freeze(self, a, b, c) -> str:
        self.lab.pause(a)
        self._rival(a, b, c, self.patience_s)
        return a.name

    def _long_freeze(self, a, b, c) -> str:
        """A wakes when B has come, written, and gone."""
        self.lab.pause(a)
        if self._lead(b, THOUGHT, self.patience_s):
            self._lead(b, OUTSIDE, _HELD_S)
        self.lab.resume(a)
        return a.name

    def _kill(self, a, b, c) -> str:
        self.lab.kill(a)
        self.crew[self.crew.index(a)] = self._worker()
        self._lead(b, THOUGHT, self.patience_s)
        return a.name

    def _cut(self, a, step: Step) -> str | None:
        ways = [node for node in self.nodes if node.kind != "sentinel"]
        for worker in self.crew:
            worker.start()
        for node in ways:
            self.lab.cut(a, node, how=step.how)
        self.lab.let_pass(step.seconds)
        self.lab.heal(a, *ways)
        return a.name

    def _failover(self, a, b, c) -> str | None:
        servers, struck = self.entrant.servers, None
        servers.prepare(self.lab, self.nodes)
        if self._lead(a, THOUGHT, self.patience_s):
            self.lab.pause(a)
            struck = servers.fail_over(self.lab, self.nodes)
            self._rival(a, b, c, self.patience_s)
        self._all_outside()
        servers.mend(self.lab, self.nodes, struck)
        return struck and struck.name

    def _clock(self, a, b, c) -> str | None:
        node = self.entrant.servers.clock(self.lab, self.nodes)
        if node is None:
            return None
        try:
            self.lab.set_clock(node, jump_s=JUMP_S)
            self._rival(a, b, c, self.ttl_ms / 3000)  # within A's lease, which has not run out by itself
            self._all_outside()
        except Unsupported:
            return None
        finally:
            with contextlib.suppress(LabError):
                self.lab.reset_clock(node)
        return node.name

    # -- what came of it
    def _count(self, timeline: Timeline, told) -> None:
        tally = self.tally
        ins = [span.start for span in timeline.spans("holds")]
        tally.acquisitions += len(ins)
        tally.doubles += len(check.mutual_exclusion(timeline).evidence)
        tally.seconds += timeline.seconds
        tally.waits_s += measure.durations(timeline, "waits")
        strikes = [e.t for e in timeline.events if e.data.get("fault") and e.kind in ("begin", "mark")]
        tally.without_s += without_service(strikes, ins, timeline.seconds)
        for mark in timeline.marks():
            if mark.data.get("op") and not mark.data["ok"]:
                tally.refused[mark.lane] += 1
            elif mark.name == "failed":
                tally.failed[mark.data["error"]] += 1
        begins, ends = ([e.t for e in timeline.events if e.lane == LAB and e.name == n] for n in (_BEGINS, _ENDS))
        for (step, struck, wrong), begin, end in zip(told, begins, ends, strict=True):
            title = f"{tally.lock}: {step.fault}"
            part = between(timeline, begin, end, title)
            tally.scenes.append(Scene(step, struck, wrong, part, check.mutual_exclusion(part)))


def between(timeline: Timeline, begin: float, end: float, title: str) -> Timeline:
    """A stretch of a record as one of its own, with the names of all workers and the deaths of processes in it."""
    made = [e for e in timeline.events if e.lane == LAB and e.data.get("what") == "worker"]
    events = [replace(e, t=e.t - begin) for e in timeline.events if begin <= e.t <= end and e not in made]
    return Timeline((*(replace(e, t=0.0) for e in made), *events), title)


def without_service(strikes: list[float], ins: list[float], until: float) -> float:
    """Seconds after a fault until the next one is in, overlaps counted once. ins -- when somebody got in, by time."""
    total, covered = 0.0, 0.0
    for strike in sorted(strikes):
        place = bisect_right(ins, strike)
        end = ins[place] if place < len(ins) else until
        total += max(0.0, end - max(strike, covered))
        covered = max(covered, end)
    return total
