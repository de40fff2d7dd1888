"""The plan of a storm: pure, and the same for each lock and each run of the same seed."""

import random
from dataclasses import dataclass

# Marks of a worker; see job.py. The first comes after its last look whether the lock is still its own.
THOUGHT, IN_THE_LOCK, OUTSIDE = "has thought", "in the lock", "outside"

# One round strikes each of them once, in an order of its own.
FAULTS = ("freeze", "long freeze", "freeze in the lock", "kill", "cut", "failover", "clock")
CUTS = ("black hole", "replies", "reset")


@dataclass(frozen=True)
class Step:
    """One fault.

    fault -- one of FAULTS. at -- the mark where it strikes. order -- the workers' numbers: whom it strikes, who comes
    next, who comes third. calm_s -- how long all run freely before it. seconds -- how long it lasts, where it is not
    ended by an event. how -- for a cut, one of CUTS.
    """

    fault: str
    at: str
    order: tuple[int, ...]
    calm_s: float
    seconds: float
    how: str = ""


def plan(seed: int, number: int, workers: int = 4, quick: bool = False) -> list[Step]:
    """The steps of round `number`. quick -- shorter times, and the same faults."""
    dice = random.Random(f"league {seed}/{number}")
    steps = []
    for fault in dice.sample(FAULTS, len(FAULTS)):
        at = {"kill": dice.choice((THOUGHT, IN_THE_LOCK)), "freeze in the lock": IN_THE_LOCK}.get(fault, THOUGHT)
        order = tuple(dice.sample(range(workers), workers))
        calm_s, seconds = dice.uniform(0.2, 1.0), dice.uniform(0.5, 2.0)
        how = dice.choice(CUTS) if fault == "cut" else ""
        steps.append(Step(fault, at, order, calm_s / 4 if quick else calm_s, seconds / 4 if quick else seconds, how))
    return steps
