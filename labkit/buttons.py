"""What a learner can do to a lab, as buttons: its verbs in a learner's words, and which are possible now."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .errors import LabError
from .observe import OBSERVER
from .record import LAB

JUMP_S, LATE_MS = 60, 200
_SAME = {"pause": "freeze", "resume": "wake"}  # the lab's word -> the button's; `press` takes both


@dataclass(frozen=True)
class Button:
    """One button: its words, what it does, whether that is possible now, and whether it is wanted rarely."""

    words: str
    do: Callable[[], None]
    possible: bool = True
    rare: bool = False


def workers(lab) -> list:
    """The workers of the run that goes on, without the observers."""
    run = lab.run_now
    return [w for w in run.workers.values() if w.name[0] != OBSERVER] if run else []


def state(lab, who) -> tuple[str, str]:
    """(running, frozen, held, ready, done or dead; the same in words) of a worker or a node."""
    if who in lab.nodes:
        broken = [fault for lane, fault in lab._faults if lane == who.name and fault not in ("frozen", "dead")]
        words = ", ".join([f"{who.role}, {who.state}", *broken])
        return {"running": "running", "frozen": "frozen"}.get(who.state, "dead"), words
    if who.frozen:
        return "frozen", who._status
    if who.state in ("raised", "killed"):
        return "dead", who.state
    if who.state == "done" or _exited(lab, who):
        return "done", "done"
    if who.state == "new":
        return "ready", "not started"
    return ("held", f"held {who.state}") if who.state.startswith("at ") else ("running", "running")


def _exited(lab, worker) -> bool:
    events = lab.run_now.timeline.events if lab.run_now else ()
    return any(e.lane == LAB and e.name == "exit" and e.data["pid"] == worker.pid for e in events)


def of_worker(lab, worker) -> list[Button]:
    now = state(lab, worker)[0]
    alive = now in ("running", "held", "ready", "frozen")
    made = [
        Button(f"start {worker.name}", worker.start, now in ("ready", "held")),
        *_freeze_wake_kill(lab, worker, alive, now),
    ]
    for node in lab.nodes:
        broken = bool(lab._link_faults(worker.name, node))
        whole = alive and not broken
        made += [
            Button(f"cut {worker.name} from {node.name}", partial(lab.cut, worker, node), whole, True),
            Button(f"slow {worker.name} to {node.name}", partial(lab.delay, worker, node, LATE_MS), whole, True),
            Button(f"heal {worker.name} to {node.name}", partial(lab.heal, worker, node), broken, True),
        ]
    return made


def of_node(lab, node) -> list[Button]:
    now = state(lab, node)[0]
    up = now == "running"
    made = [
        *_freeze_wake_kill(lab, node, now in ("running", "frozen"), now),
        Button(f"restart {node.name}, data kept", lambda: lab.restart(node, data="kept"), now == "dead"),
        Button(f"restart {node.name}, data lost", lambda: lab.restart(node, data="lost"), now == "dead"),
    ]
    if node.kind in ("redis", "cluster") and "members" in node.options:
        primary = up and node.role == "primary"
        cut = any(lane == node.name and fault.startswith("replication") for lane, fault in lab._faults)
        alone = (node.name, "isolated") in lab._faults
        made += [
            Button(
                f"cut replication to {node.name}",
                lambda: lab.cut_replication(node),
                up and not primary and not cut,
                True,
            ),
            Button(f"heal replication to {node.name}", lambda: lab.heal_replication(node), cut, True),
            Button(f"promote {node.name}", lambda: lab.promote(node), up and not primary, True),
            Button(f"isolate {node.name}", lambda: lab.isolate(node), primary and not alone, True),
            Button(f"rejoin {node.name}", lambda: lab.rejoin(node), alone, True),
        ]
    if node.kind == "redis" and lab.can("clock"):
        moved = any(lane == node.name and fault.startswith("clock") for lane, fault in lab._faults)
        made += [
            Button(f"jump the clock of {node.name}", lambda: lab.set_clock(node, jump_s=JUMP_S), up, True),
            Button(f"set the clock of {node.name} right", lambda: lab.reset_clock(node), moved, True),
        ]
    return made


def of_lab(lab) -> list[Button]:
    """One button for each group of servers that has a primary to fail."""
    groups = {tuple(n.options["members"]): n for n in lab.nodes if n.kind == "redis" and "members" in n.options}
    one = len(groups) == 1
    return [
        Button("fail the primary" + ("" if one else f" of {', '.join(names)}"), partial(_fail_primary, lab, node))
        for names, node in groups.items()
    ]


def _fail_primary(lab, member) -> None:
    primary = lab.primary(lab._group(member))
    if primary is None:
        raise LabError(
            "There is no primary to fail.",
            "It is dead already, and no replica has been promoted yet.",
            "Wait for the Sentinels, or promote a replica.",
        )
    lab.kill(primary)


def _freeze_wake_kill(lab, who, alive: bool, now: str) -> list[Button]:
    return [
        Button(f"freeze {who.name}", lambda: lab.pause(who), alive and now != "frozen"),
        Button(f"wake {who.name}", lambda: lab.resume(who), now == "frozen"),
        Button(f"kill {who.name}", lambda: lab.kill(who), alive),
    ]


def all_of(lab) -> dict[str, list[Button]]:
    """Every row of buttons: the lab's own under "", then one a worker, one a node."""
    rows = {"": of_lab(lab)}
    rows |= {worker.name: of_worker(lab, worker) for worker in workers(lab)}
    return rows | {node.name: of_node(lab, node) for node in lab.nodes}


def find(lab, words: str) -> Button:
    """The button with these words; "pause A" finds "freeze A". Raises LabError if there is none."""
    first, _, rest = words.partition(" ")
    wanted = f"{_SAME.get(first, first)} {rest}"
    known = {} if lab.closed else {button.words: button for row in all_of(lab).values() for button in row}
    if wanted in known:
        return known[wanted]
    raise LabError(
        f"The panel has no button {words!r}.",
        "The name may be misspelt, or there is no such worker or node now.",
        f"Press one of: {', '.join(known) or 'none, the laboratory is closed'}",
    )
