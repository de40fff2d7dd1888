"""`make clean`: removes what a crash left, folders, processes and containers, and nothing else.

A keeper holds a lock on a file in its lab's folder as long as it lives. So a folder whose lock is free is a leftover,
and so is a process of a session (see `session_of`) that has neither a folder nor a keeper. Containers, volumes and
networks bear labels that tell whose they are. No name tells anything.
"""

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from . import drivers
from .errors import LabError
from .session import LOCK, end_processes, is_session, scratch, session_of, this_machine

_YOUNG_S = 60.0  # a folder without its lock may belong to a lab that is being made right now


def clean() -> list[str]:
    """Remove this user's leftovers below `scratch()`. Returns what was done, in words, a line each."""
    told = _containers()
    for folder in _folders():
        if not _in_use(folder):
            told += _end(folder)
            try:
                shutil.rmtree(folder)
            except OSError as error:
                told.append(f"could not remove the folder {folder}: {error.strerror}")
            else:
                told.append(f"removed the folder {folder}")
    for folder in _without_folder():
        told += _end(folder)
    return told


def _folders() -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(scratch()) as entries:
        return [
            Path(entry.path) for entry in entries
            if is_session(entry.name) and entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == os.getuid()
        ]  # fmt: skip
    return []


def _in_use(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):  # its keeper removed it this moment
            return time.time() - folder.stat().st_mtime < _YOUNG_S
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _containers() -> list[str]:
    """Remove the containers of dead sessions. Where no engine is, there are none."""
    if not drivers.engine_expected():
        return []
    from .engine import Engine  # its SDK takes a quarter of a second to import

    try:
        engine = Engine()
        return [
            line for session, labels in engine.sessions().items() if _is_dead(engine, labels)
            for line in engine.remove(session)
        ]  # fmt: skip
    except LabError as error:
        return [f"could not look for containers: {error.what}"]


def _is_dead(engine, labels: dict[str, str]) -> bool:
    """Of a session that we can judge: of a lab container that is gone, or a lab of this user in this place."""
    inside, folder = labels["labkit.inside"], Path(labels["labkit.folder"])
    if inside != (engine.own_container() or ""):
        return bool(inside) and not engine.runs(inside)
    if not is_session(folder.name) or folder.parent != scratch() or labels["labkit.user"] != str(os.getuid()):
        return False
    there, here = labels["labkit.machine"].split(), this_machine().split()
    if there != here:  # an earlier boot; or a namespace of this one, whose folders we may not see
        return there[0] != here[0]
    return not folder.exists() or not _in_use(folder)


def _without_folder() -> set[Path]:
    """The folders, gone by now, of the sessions of this user's processes that have no keeper."""
    found, kept = set(), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may end any moment, and others' we may not look at
            folder = session_of(int(pid))
            if folder and folder.parent == scratch() and os.stat(f"/proc/{pid}").st_uid == os.getuid():
                found.add(folder)
                if any(_is_lock(folder, f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
                    kept.add(folder)
    return {folder for folder in found - kept if not folder.exists()}


def _is_lock(folder: Path, link: str) -> bool:
    try:
        return os.readlink(link).removesuffix(" (deleted)") == str(folder / LOCK)
    except OSError:
        return False


def _end(folder: Path) -> list[str]:
    return [f"ended the process {pid} of {folder.name}" for pid in end_processes(folder)]


def main() -> int:
    """Clean, and say what was removed."""
    print("\n".join(clean()) or "Nothing was left behind.")
    return 0
