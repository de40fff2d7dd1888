"""One lab's session: its folder, its record, its keeper. Everything that belongs to it carries LABKIT_SESSION."""

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from itertools import count
from pathlib import Path

from .errors import LabError

LABEL = "LABKIT_SESSION"
PREFIX = "labkit-"
_KEEP_RECORDS = 40


def home() -> Path:
    """Where records and the learner's progress are kept: LABKIT_HOME, else .labkit beside the course."""
    told = os.environ.get("LABKIT_HOME")
    return Path(told) if told else Path(__file__).resolve().parent.parent / ".labkit"


def scratch() -> Path:
    """Where the servers' folders lie: LABKIT_TMP, else /var/tmp, which is on a disk (a /tmp in memory has no fsync)."""
    return Path(os.environ.get("LABKIT_TMP", "/var/tmp"))


class Session:
    """Folder, record and keeper of one lab. The keeper ends everything when this process goes, however it goes."""

    def __init__(self, name: str, seed: int):
        word = re.sub(r"\W+", "-", name, flags=re.ASCII).strip("-")[:24] or "lab"
        self.id = f"{PREFIX}{word}-{secrets.token_hex(4)}"
        self.folder = _make(scratch() / self.id, "LABKIT_TMP")
        records = _make(home() / "records", "LABKIT_HOME", exist_ok=True)
        self.record = records / f"{self.id}.jsonl"
        _prune(records)
        self._lock, self._ids = threading.Lock(), count(1)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        above = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [above, os.environ.get("PYTHONPATH")]))
        arguments = [str(theirs.fileno()), str(self.folder), str(self.record), str(seed), str(os.getpid())]
        with theirs, open(self.folder / "keeper.log", "ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "labkit.keeper", *arguments], pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, LABEL: self.id},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.closed = False
        self.keeper_pid = self.ask("ready")["pid"]

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
        last = ""
        with contextlib.suppress(OSError):
            last = (self.folder / "keeper.log").read_text(errors="replace")[-300:].strip()
        return LabError(
            "The laboratory's keeper process is gone, and with it all servers and workers of this lab.",
            f"Something ended it from outside{', its last words: ' + last if last else ''}.",
            "Run the cell with Lab(...) again; leftovers, if any, go with: python -m labkit clean",
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
        try:
            self._keeper.wait(5)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # its children die with it
            self._keeper.wait(5)


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
    """Keep the latest records only."""
    old = sorted(records.glob(f"{PREFIX}*.jsonl"), key=lambda path: path.stat().st_mtime)[:-_KEEP_RECORDS]
    for path in old:
        path.unlink(missing_ok=True)
