"""Looks at this machine's processes, by /proc, and a stop that no child escapes."""

import contextlib
import os
import signal
import time


def stat_of(path: str) -> tuple[str, int] | None:
    """(state, parent's pid) of a process or thread, None when it is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def stopped(pid: int) -> bool:
    """Every thread of it stands still (or it is a zombie)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    states = [stat_of(f"/proc/{pid}/task/{thread}/stat") for thread in threads]
    return all(state is None or state[0] in "TtZX" for state in states)


def descendants(root: int) -> list[int]:
    """Pids of all processes below root, parents before children. Zombies count: they must be reaped."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := stat_of(f"/proc/{entry}/stat")):
            below.setdefault(stat[1], []).append(int(entry))
    found, level = [], [root]
    while level:
        level = [child for parent in level for child in below.get(parent, ())]
        found += level
    return found


def stop_all(root: int, tree: bool = True) -> list[int]:
    """Stop a process (`tree`: and all below it); look again until nobody moves or was born meanwhile. Their pids."""
    deadline, done = time.monotonic() + 2, []
    while time.monotonic() < deadline:
        whole = [root, *(descendants(root) if tree else ())]
        if whole == done:
            break
        moving = [pid for pid in whole if not stopped(pid)]
        for pid in moving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        done = [] if moving else whole
    return whole
