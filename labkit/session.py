"""One lab's session: its folder, its record, its keeper. Everything that belongs to it carries LABKIT_SESSION."""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

from .errors import LabError

LABEL = "LABKIT_SESSION"
PREFIX = "labkit-"
LOCK = "keeper.lock"  # held as long as a keeper lives: a folder whose lock is free is a leftover
_NAME = re.compile(PREFIX + r"[\w-]{1,24}-[0-9a-f]{8}", re.ASCII)
_SCRATCH = "/var/tmp"
_KEEP_RECORDS = 40
_END_S, _END_WITH_CONTAINERS_S, _REMOVE_S = 5, 90, 60  # at most, of a keeper and of the removal in it


def home() -> Path:
    """Where records and the learner's progress are kept: LABKIT_HOME, else .labkit beside the course."""
    told = os.environ.get("LABKIT_HOME")
    return Path(told).absolute() if told else Path(__file__).resolve().parent.parent / ".labkit"


def scratch() -> Path:
    """Where the servers' folders lie: LABKIT_TMP, else /var/tmp, which is on a disk (a /tmp in memory has no fsync)."""
    return Path(os.environ.get("LABKIT_TMP") or _SCRATCH).resolve()


class Session:
    """Folder, record and keeper of one lab. The keeper ends everything when this process goes, however it goes."""

    def __init__(self, name: str, seed: int):
        word = re.sub(r"\W+", "-", name, flags=re.ASCII).strip("-")[:24] or "lab"
        self.id = f"{PREFIX}{word}-{secrets.token_hex(4)}"
        records = _make(home() / "records", "LABKIT_HOME", exist_ok=True)
        self.record = records / f"{self.id}.jsonl"
        _prune(records)
        self.folder = scratch() / self.id
        self.closed, self._keeper, self._log = False, None, None
        self._engine: str | None = None
        self._lock, self._ids = threading.Lock(), count(1)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _make(self.folder, "LABKIT_TMP")
            self._log = (self.folder / "keeper.log").open("a+b")  # kept open: the keeper removes it with the folder
            with theirs:
                self._start_keeper(theirs.fileno(), seed)
            self.keeper_pid = self.ask("ready", timeout_s=60)["pid"]
        except BaseException:  # an interrupt too: nothing may be left
            self.close()
            raise

    def _start_keeper(self, control: int, seed: int) -> None:
        above = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))
        lock = os.open(self.folder / "new.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the keeper inherits it
            os.rename(self.folder / "new.lock", self.folder / LOCK)  # never seen unlocked
            arguments = [control, lock, self.folder, self.record, seed, os.getpid()]
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "labkit.keeper", *map(str, arguments)], pass_fds=[control, lock],
                env={**os.environ, "PYTHONPATH": path, LABEL: self.id, "LABKIT_TMP": str(self.folder.parent)},
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(lock)

    def use_engine(self, url: str) -> None:
        """From here on the session may have containers at this engine: they are removed at its end, however it ends."""
        self._engine = url
        self.ask("engine", url=url)

    def ask(self, op: str, fds=(), timeout_s: float = 10.0, **what) -> dict:
        """One request, one answer. An answer that an interrupted request left behind is recognised by its id."""
        with self._lock:
            number = next(self._ids)
            try:
                socket.send_fds(self._control, [json.dumps({"id": number, "op": op, **what}).encode()], fds)
                self._control.settimeout(timeout_s)
                while True:
                    answer = json.loads(self._control.recv(1 << 20) or b"{}")
                    if not answer:
                        raise ConnectionError
                    if answer["id"] == number:
                        break
            except TimeoutError:
                raise LabError(
                    f"The laboratory's keeper process did not answer within {timeout_s:g} s ({op}).",
                    "The machine may be very busy, or something stopped the keeper.",
                    "Try again; if it stays so, run the cell with Lab(...) again.",
                ) from None
            except (OSError, ValueError):
                raise self._lost() from None
        if "error" in answer:
            raise LabError(
                f"The laboratory could not do it ({op}): {answer['error']}.",
                "The machine may be short of processes, memory or open files.",
                "Close what you do not need (lab.close()), or run: python -m labkit doctor",
            )
        return answer

    def _lost(self) -> LabError:
        self._bury_keeper()
        said = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace").split("\n")
        last = " / ".join(line.strip() for line in said if line.strip())[-300:]
        return LabError(
            "The laboratory's keeper process is gone, and with it all servers and workers of this lab.",
            f"It failed; its last words: {last}" if last else "Something ended it from outside.",
            "Run the cell with Lab(...) again.",
        )

    def close(self) -> None:
        """End everything of this session and remove its folder. Harmless when it is closed already."""
        if self.closed:
            return
        self.closed = True
        with self._lock:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"id": 0, "op": "close"}).encode())
            self._control.close()
        self._bury_keeper()
        if self._log:
            self._log.close()

    def _bury_keeper(self) -> None:
        """Wait for its end. If it was killed, its children died with it, but their children and the folder are left."""
        if self._keeper:
            try:
                self._keeper.wait(_END_WITH_CONTAINERS_S if self._engine else _END_S)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait(5)
        if os.path.exists(self.folder):
            end_processes(self.folder)
            if self._engine:
                remove_containers(self._engine, self.id)
            shutil.rmtree(self.folder, ignore_errors=True)


def this_machine() -> str:
    """One word for where a process's number means something: this boot of this machine, and this namespace of pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def remove_containers(engine: str, session: str) -> None:
    """Remove what a session has at a container engine: in a process of its own, as the SDK is large."""
    remove = [sys.executable, "-m", "labkit.engine", engine, session]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, timeout=_REMOVE_S)


def session_of(pid: int) -> Path | None:
    """The folder of the session that a process belongs to, None if to none, or if we may not look.

    Its environment says so, or the file it prints to: some servers write over their environment to show a title.
    """
    with contextlib.suppress(OSError):
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        told = {os.fsdecode(name): os.fsdecode(value) for name, _, value in (pair.partition(b"=") for pair in pairs)}
        if LABEL in told:
            folder = Path(told.get("LABKIT_TMP") or _SCRATCH, told[LABEL])
        else:
            folder = Path(os.readlink(f"/proc/{pid}/fd/1")).parent
        if is_session(folder.name):
            return folder
    return None


def is_session(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def end_processes(folder: Path) -> list[int]:
    """End all processes of a session whose keeper is gone; returns their pids."""
    ended: dict[int, None] = {}
    for _ in range(100):  # a process may make another one before it is killed
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if session_of(pid) == folder]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                process = os.pidfd_open(pid)
                try:
                    if session_of(pid) == folder:  # the same process still
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        ended[pid] = None
                finally:
                    os.close(process)
        time.sleep(0.005)
    return list(ended)


def _make(path: Path, variable: str, exist_ok: bool = False) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok, mode=0o711)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"x")
    except OSError as error:
        raise LabError(
            f"The laboratory cannot write in {path.parent}: {error.strerror}.",
            "The folder may be read-only, belong to somebody else, or lie on a full disk.",
            f"Set another one before starting Jupyter: export {variable}=/a/folder/of/yours",
        ) from None
    return path


def _prune(records: Path) -> None:
    """Keep the latest records, and those of labs in use."""
    ages = {}
    for path in records.glob(f"{PREFIX}*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # another lab that starts now may have removed it
            ages[path] = path.stat().st_mtime
    for path in sorted(ages, key=ages.get)[:-_KEEP_RECORDS]:
        if not (scratch() / path.stem).exists():
            path.unlink(missing_ok=True)
