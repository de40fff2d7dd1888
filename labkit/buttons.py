"""What a learner sees of a lab and can do to it: a row for each worker and node, with its state and its buttons.

A button is a verb of the lab in a learner's words: "freeze A", "fail the primary", "cut A from redis-1".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .errors import LabError
from .observe import OBSERVER
from .record import LAB, Timeline

JUMP_S, PACE, LATE_MS = 60, 10, 200
_SAME = {"pause": "freeze", "resume": "wake"}  # the lab's word -> the button's; `press` takes both
_CHIEF = {"members": "primary", "peers": "leader"}  # the option that names a group -> who is first in it


@dataclass(frozen=True)
class Button:
    """One button: its words, what it does, whether that is possible now.

    rare -- it stands behind "more". hides -- it is not shown at all while it is not possible.
    """

    words: str
    do: Callable[[], None]
    possible: bool = True
    rare: bool = False
    hides: bool = False


@dataclass(frozen=True)
class Row:
    """A worker, a node, or (name "") servers that belong together.

    state -- running, frozen, held, ready, done or dead; words -- the same as it is shown; role -- of a server in its
    group; details -- where it is held, what is broken.
    """

    name: str
    buttons: tuple[Button, ...]
    state: str = ""
    words: str = ""
    role: str = ""
    details: tuple[str, ...] = ()


def rows(lab, timeline: Timeline | None = None, roles: dict[str, str] | None = None) -> list[Row]:
    """All rows: servers together, then workers, then nodes.

    timeline -- the record of the run that goes on, roles -- what `ask_roles` said, each if it is known already.
    """
    run = lab.run_now
    timeline = timeline or (run.timeline if run else Timeline())
    roles = ask_roles(lab) if roles is None else roles
    ends = {e.data["pid"]: e.data["how"] for e in timeline.events if e.lane == LAB and e.name == "exit"}
    ends |= {e.pid: e.name for e in timeline.events if e.data.get("raised") and e.pid in ends}
    workers = [w for w in run.workers.values() if w.name[0] != OBSERVER] if run else []
    together = _together(lab, roles)
    return [
        *([together] if together.buttons else []),
        *(_of_worker(lab, worker, ends) for worker in workers),
        *(_of_node(lab, node, roles[node.name]) for node in lab.nodes if node.name in roles),
    ]


def ask_roles(lab) -> dict[str, str]:
    """Who is primary, replica, leader, … now; each server that runs is asked once."""
    return {node.name: node.role for node in lab.nodes}


def find(lab, words: str) -> Button:
    """The button with these words; "pause A" finds "freeze A". Raises LabError if there is none."""
    first, _, rest = words.partition(" ")
    wanted = f"{_SAME.get(first, first)} {rest}"
    known = {} if lab.closed else {button.words: button for row in rows(lab) for button in row.buttons}
    if wanted in known:
        return known[wanted]
    raise LabError(
        f"The panel has no button {words!r}.",
        "The name may be misspelt, or there is no such worker or node now.",
        f"Press one of: {', '.join(known) or 'none, the laboratory is closed'}",
    )


# -- workers
def _of_worker(lab, worker, ends: dict[int, str]) -> Row:
    name, (state, words) = worker.name, _state_of_worker(worker, ends)
    alive = state in ("running", "held", "ready", "frozen")
    made = [Button(f"start {name}", worker.start, state in ("ready", "held")), *_verbs(lab, worker, state, alive)]
    for node in lab.nodes:
        broken = bool(lab._link_faults(name, node))
        whole = alive and not broken
        answers = partial(lab.cut, worker, node, how="replies")
        made += [
            Button(f"cut {name} from {node.name}", partial(lab.cut, worker, node), whole, True),
            Button(f"lose answers to {name} from {node.name}", answers, whole, True),
            Button(f"slow {name} to {node.name}", partial(lab.delay, worker, node, LATE_MS), whole, True),
            Button(f"heal {name} to {node.name}", partial(lab.heal, worker, node), broken, True),
        ]
    place = [worker.state] if state in ("held", "frozen") and worker.state.startswith("at ") else []
    place += [ends[worker.pid].removeprefix("raised ")] if words == "raised" and worker.pid in ends else []
    return Row(name, tuple(made), state, words, "", (*place, *_broken(lab, name)))


def _state_of_worker(worker, ends: dict[int, str]) -> tuple[str, str]:
    """What the record knows counts too: a worker that nobody joined has ended all the same.

    ends -- pid -> how its process ended: "ended", "killed by …", "raised …".
    """
    if end := ends.get(worker.pid):
        word = end.split()[0]
        return ("dead", word) if word in ("killed", "raised") else ("done", "done")
    if worker._over:
        return ("done" if worker.state == "done" else "dead"), worker.state
    if worker.frozen:
        return "frozen", "frozen"
    if worker.state == "new":
        return "ready", "not started"
    return ("held", "held") if worker.state.startswith("at ") else ("running", "running")


# -- nodes
def _of_node(lab, node, role: str) -> Row:
    name = node.name
    state = node.state if node.state in ("running", "frozen") else "dead"
    up, dead = state == "running", state == "dead"
    made = [
        *_verbs(lab, node, state, not dead),
        Button(f"restart {name}, data kept", partial(lab.restart, node, data="kept"), dead, hides=True),
        Button(f"restart {name}, data lost", partial(lab.restart, node, data="lost"), dead, hides=True),
    ]
    if "members" in node.options:
        made += _of_replication(lab, node, role, up)
    if node.options.get("peer_links"):
        cut = any(fault.startswith("cut from") for fault in _broken(lab, name))
        made += [
            Button(f"cut {name} from its peers", partial(lab.cut_peers, node), up and not cut, True),
            Button(f"heal {name} to its peers", partial(lab.heal_peers, node), cut, True),
        ]
    if node.kind in ("redis", "cluster") and lab.can("clock"):
        wrong = any(fault.startswith("clock") for fault in _broken(lab, name))
        made += [
            Button(f"jump the clock of {name}", partial(lab.set_clock, node, jump_s=JUMP_S), up, True),
            Button(f"run the clock of {name} fast", partial(lab.set_clock, node, rate=PACE), up, True),
            Button(f"set the clock of {name} right", partial(lab.reset_clock, node), wrong, True),
        ]
    role = "" if role in ("single", node.kind) else f"was {role}" if dead else role
    return Row(name, tuple(made), state, state, role, tuple(_broken(lab, name)))


def _of_replication(lab, node, role: str, up: bool) -> list[Button]:
    """What only a server with replicas, or a replica, can suffer; and only what can be done where it stands."""
    name, faults = node.name, _broken(lab, node.name)
    watched = any(node.name == told[0] for other in lab.nodes for told in other.options.get("watched", ()))
    primary, replica = up and role == "primary", up and role == "replica"
    late = any(fault.startswith("replication ") for fault in faults)
    made = [Button(f"cut replication to {name}", partial(lab.cut_replication, node), replica and not late, True)]
    if node.kind == "redis" and not watched:
        slow = partial(lab.delay_replication, node, LATE_MS)
        made.append(Button(f"slow replication to {name}", slow, replica and not late, True))
    made.append(Button(f"heal replication to {name}", partial(lab.heal_replication, node), late, True))
    if node.kind == "redis" and not watched:
        made.append(Button(f"promote {name}", partial(lab.promote, node), replica, True))
    if node.kind == "redis":
        alone = "isolated" in faults
        made += [
            Button(f"isolate {name}", partial(lab.isolate, node), primary and not alone, True),
            Button(f"rejoin {name}", partial(lab.rejoin, node), alone, True),
        ]
    return made


# -- servers together
def _together(lab, roles: dict[str, str]) -> Row:
    """One button for each group of servers that has a first to fail, and who is first in it now."""
    groups = {}
    for node in lab.nodes:
        for option, chief in _CHIEF.items():
            if node.kind != "cluster" and len(names := tuple(node.options.get(option, ()))) > 1:
                groups.setdefault((chief, names), [])
                if node.state == "running" and roles.get(node.name) == chief:
                    groups[chief, names].append(node.name)
    made, told = [], []
    for (chief, names), found in groups.items():
        alone = [other for other, _ in groups].count(chief) == 1
        words = f"fail the {chief}" + ("" if alone else f" of {', '.join(names)}")
        made.append(Button(words, partial(_fail, lab, chief, names), bool(found)))
        told.append(f"{chief}: {' and '.join(found) or 'none now'}")
    return Row("", tuple(made), details=tuple(told))


def _fail(lab, chief: str, names: tuple[str, ...]) -> None:
    nodes = [node for node in lab.nodes if node.name in names]
    found = lab.primary(nodes) if chief == "primary" else lab.leader(nodes)
    if found is None:
        raise LabError(
            f"There is no {chief} to fail.",
            "It is frozen or dead, and no other has taken its place yet.",
            f"Wait until another is {chief}, or wake or restart the old one.",
        )
    lab.kill(found)


# -- both
def _verbs(lab, who, state: str, alive: bool) -> list[Button]:
    return [
        Button(f"freeze {who.name}", partial(lab.pause, who), alive and state != "frozen"),
        Button(f"wake {who.name}", partial(lab.resume, who), state == "frozen"),
        Button(f"kill {who.name}", partial(lab.kill, who), alive),
    ]


def _broken(lab, name: str) -> list[str]:
    """What is wrong with it, besides what its state says."""
    return [fault for lane, fault in list(lab._faults) if lane == name and fault not in ("frozen", "dead")]
