"""`make doctor`: what this machine has, what it lacks, and what to type about it."""

import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from . import drivers, programs, servers
from .errors import LabError
from .session import home, scratch

_LEAST_PYTHON = (3, 11)
_LEAST_FREE_MB = 500
_PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    vital -- the first chapters do not run without it
    todo -- what to type, if it is not ok
    """

    topic: str
    name: str
    found: str
    ok: bool
    vital: bool = False
    todo: str = ""


def examine() -> list[Finding]:
    """Look at everything. Starts no server and changes nothing."""
    return [_python(), *_packages(), *_programs(), *_kernel(), *_folders(), *_drivers()]


def _python() -> Finding:
    ok = sys.version_info >= _LEAST_PYTHON
    todo = "" if ok else "install Python 3.11 or newer, then: make setup PYTHON=python3.11"
    return Finding("python", platform.python_implementation(), platform.python_version(), ok, vital=True, todo=todo)


def _packages() -> list[Finding]:
    try:
        wanted = importlib.metadata.requires("labkit") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding("package", "labkit", "not installed", False, vital=True, todo="make setup")]
    from packaging.requirements import Requirement  # comes with Jupyter, so it is here once labkit is installed

    findings = []
    for requirement in map(Requirement, wanted):
        if 'extra == "browser"' in str(requirement.marker):  # for the tests of the course alone
            continue
        optional = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        ok = bool(version) and requirement.specifier.contains(version)
        found = f"{version or 'not installed'} ({requirement.specifier})"
        todo = "" if ok else "rm -r .venv; make setup"
        findings.append(Finding("package", requirement.name, found, ok, vital=not optional, todo=todo))
    return findings


def _programs() -> list[Finding]:
    findings = []
    for program in programs.TABLE.values():
        vital = program.needed and "00" in program.chapters
        found = programs.find(program.name)
        if found is None:
            text, ok = f"missing (chapters {' '.join(program.chapters)})", False
        else:
            text, ok = f"{found.version or 'version unknown'} {found.path}", found.new_enough
        todo = "" if ok else programs.advice([program.name])
        findings.append(Finding("program", program.title, text, ok, vital, todo))
    return findings


def _kernel() -> list[Finding]:
    release = platform.release()
    todo = "Linux 5.3 or newer is needed"
    return [
        Finding("linux", "pidfd", release, (ok := _has_pidfd()), vital=True, todo="" if ok else todo),
        Finding("linux", "subreaper", release, (ok := _has_subreaper()), vital=True, todo="" if ok else todo),
        Finding(
            "linux",
            "setpriv",
            (found := shutil.which("setpriv")) or "missing (starts every server)",
            bool(found),
            vital=True,
            todo="" if found else "install util-linux",
        ),
    ]


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _has_subreaper() -> bool:
    try:
        return ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()), 0, 0, 0) == 0
    except (AttributeError, OSError):
        return False


def _folders() -> list[Finding]:
    findings = []
    for name, path, variable in (("records", home(), "LABKIT_HOME"), ("servers' data", scratch(), "LABKIT_TMP")):
        here = next(above for above in (path, *path.resolve().parents) if above.exists())
        free_mb = shutil.disk_usage(here).free // 10**6
        writable, kind = os.access(here, os.W_OK | os.X_OK), file_system(here)
        todo = ""
        if not writable or free_mb < _LEAST_FREE_MB:
            todo = f"export {variable}=/a/folder/of/yours/with/room"
        in_memory = ", in memory: its fsync proves nothing" if kind in ("tmpfs", "ramfs") else ""
        text = f"{path} ({kind}{in_memory}, {free_mb} MB free{'' if writable else ', cannot be written'})"
        findings.append(Finding("folder", name, text, not todo, vital=True, todo=todo))
    return findings


def file_system(path: Path) -> str:
    """The kind of file system a path lies on: 'ext4', 'tmpfs', …; '?' if the kernel does not tell."""
    best, kind = -1, "?"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return kind
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields.split()[4])  # a space is \040
        if len(mount) >= best and Path(path).resolve().is_relative_to(mount):
            best, kind = len(mount), rest.split()[0]
    return kind


def _drivers() -> list[Finding]:
    missing = [program.title for program in programs.missing() if "00" in program.chapters]
    text = f"needs {', '.join(missing)}" if missing else "servers as processes of this machine"
    return [
        Finding("driver", "local", text, not missing, vital=True, todo="make setup" if missing else ""),
        _docker(),
    ]


def _docker() -> Finding:
    """The engine, and which images it has of those that the labs are made of."""
    if not drivers.engine_expected():
        todo = "start Docker, or go on without"
        return Finding("driver", "containers", "no engine (the course runs without)", False, todo=todo)
    from .containers import image_of
    from .engine import Engine

    try:
        engine = Engine()
        images = {image_of(servers.of(kind)) for kind in servers.kinds()}
        lacking = sorted(image for image in images if not engine.has_image(image))
    except LabError as error:
        return Finding("driver", "containers", error.what, False, todo=error.todo)
    text = f"engine {engine.version}, {len(images) - len(lacking)} of {len(images)} images"
    todo = f"docker pull {lacking[0]}    (also: {', '.join(lacking[1:])})" if lacking else ""
    return Finding("driver", "containers", text, not lacking, todo=todo)


def main(as_json: bool = False) -> int:
    """Print the report. Returns 0 if the first chapters can run here."""
    findings = examine()
    ready = all(finding.ok for finding in findings if finding.vital)
    if as_json:
        print(json.dumps({"ready": ready, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings, ready)
    return 0 if ready else 1


def _print(findings: list[Finding], ready: bool) -> None:
    wide = max(len(finding.name) for finding in findings)
    for finding in findings:
        state = "ok" if finding.ok else "LACKING" if finding.vital else "absent"
        print(f"{state:8}{finding.topic:9}{finding.name:{wide}}  {finding.found}")
        if finding.todo:
            print(f"{'':17}{'':{wide}}  -> {finding.todo}")
    print("Ready: the first chapters run here." if ready else "Not ready: see the lines marked LACKING.")
