"""A kernel that is killed with SIGKILL, and what is left of its lab."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.processes import descendants, stat_of

_TOLD = "its lab: "


def processes_left(cell: str, timeout_s: float = 5) -> tuple[list[str], list[str]]:
    """Run `cell`, which has a `lab`, in a kernel of its own; kill that kernel, and wait until all of the lab is gone.

    Returns (the names of the lab's processes before, the names of what is left after `timeout_s`).
    """
    if os.environ.get("LABKIT_DRIVER") == "docker":
        pytest.skip("about processes; test_docker looks at what is left of containers")
    code = f"""
from labkit import Lab
lab = Lab("crash")
{cell}
print("{_TOLD}", lab._session.keeper_pid, lab._session.folder, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as kernel:
        told = next((line for line in kernel.stdout if line.startswith(_TOLD)), None)
        assert told, "the cell raised"
        keeper, folder = told.removeprefix(_TOLD).strip().split(" ", 1)
        before = {pid: _name(pid) for pid in [int(keeper), *descendants(int(keeper))]}
        kernel.kill()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        left = [name for pid, name in before.items() if _name(pid)] + [folder] * Path(folder).exists()
        if not left:
            break
        time.sleep(0.01)
    return sorted(before.values()), left


def _name(pid: int) -> str:
    """The program's name, '' when it does not run any more (its new parent, process 1, may be slow to bury it)."""
    stat = stat_of(f"/proc/{pid}/stat")
    if stat is None or stat[0] in "ZX":
        return ""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
