"""Programs: which server programs this machine has, and how it gets the ones it lacks.

Needs nothing but Python itself, so that set-up and doctor can ask before anything else is installed.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path

from .errors import LabError, Unsupported

APT = Path(__file__).with_name("apt.sh")
_SYSTEM_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH, and nginx lies there


@dataclass(frozen=True)
class Program:
    """One row of the table: a program that the laboratory starts, or needs to start another one.

    places -- command names (looked up on PATH) or file patterns, the best one first
    version -- reads the version from the program's path; "" if it does not tell
    least -- the oldest version that will do
    packages -- what Debian and Ubuntu call the packages that bring it
    chapters -- the chapters that use it
    needed -- set-up installs it without being asked
    works -- arguments with which it must succeed before it counts as found
    """

    name: str
    title: str
    places: tuple[str, ...]
    version: Callable[[Path], str]
    least: str
    packages: tuple[str, ...]
    chapters: tuple[str, ...]
    needed: bool = False
    works: tuple[str, ...] = ()

    def __repr__(self):
        return f"Program({self.title} {self.least} or newer)"


@dataclass(frozen=True)
class Found:
    """A program of this machine."""

    program: Program
    path: Path

    @cached_property
    def version(self) -> str:
        return self.program.version(self.path)

    @property
    def new_enough(self) -> bool:
        """A version that does not tell its number gets the benefit of the doubt."""
        return not self.version or _numbers(self.version) >= _numbers(self.program.least)

    def __repr__(self):
        return f"Found({self.program.name} {self.version}, {self.path})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _first_version(text: str) -> str:
    found = re.search(r"\d+(\.\d+)*", text)
    return found[0] if found else ""


def _asked(*arguments: str) -> Callable[[Path], str]:
    def version(path: Path) -> str:
        try:
            done = subprocess.run(
                [path, *arguments], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return _first_version(done.stdout + done.stderr)  # nginx and java answer on stderr

    return version


def _in_path(path: Path) -> str:
    named = re.findall(r"[-_](\d+(?:\.\d+)+)", str(path))  # rabbitmq_server-3.10.8/sbin/…, zookeeper-3.8.0.jar
    return named[-1] if named else ""


_EVERY = tuple(f"{number:02}" for number in range(12))

TABLE: dict[str, Program] = {
    program.name: program
    for program in (
        Program(
            "redis-server", "Redis", ("redis-server",), _asked("--version"), "7.0", ("redis-server",), _EVERY,
            needed=True,
        ),
        Program(
            "cc", "C compiler", ("cc", "gcc", "clang"), _asked("--version"), "8", ("gcc", "libc6-dev"),
            ("01", "02", "07"), needed=True, works=("-E", "-x", "c", "-include", "time.h", "/dev/null"),
        ),
        Program(
            "etcd", "etcd", ("etcd",), _asked("--version"), "3.4", ("etcd-server",), ("02", "03", "11"), needed=True,
        ),
        Program(
            "java", "Java", ("java",), _asked("-version"), "11", ("default-jre-headless",), ("02", "03", "05", "11"),
        ),
        Program(
            "zookeeper", "ZooKeeper", ("/usr/share/java/zookeeper-[0-9]*.jar",), _in_path, "3.5",
            ("libzookeeper-java", "default-jre-headless"), ("02", "03", "11"), needed=True,
        ),
        Program(
            "postgres", "PostgreSQL", ("/usr/lib/postgresql/*/bin/postgres", "postgres"), _asked("--version"), "13",
            ("postgresql",), ("01", "02", "06", "09", "11"), needed=True,
        ),
        Program(
            "rabbitmq-server", "RabbitMQ", ("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",),
            _in_path, "3.9", ("rabbitmq-server",), ("04", "05", "06"), needed=True,
        ),
        Program("nginx", "nginx", ("nginx",), _asked("-v"), "1.18", ("nginx",), ("07", "08"), needed=True),
    )
}  # fmt: skip


def needed() -> tuple[str, ...]:
    """The names of the programs that set-up installs without being asked."""
    return tuple(name for name, program in TABLE.items() if program.needed)


def named(name: str) -> Program:
    """The row of a program.

    Raises LabError for a name that is not in the table.
    """
    if name not in TABLE:
        raise LabError(
            f"There is no program {name!r} in the laboratory's table.",
            "The name may be misspelt: it is the server program's own name.",
            f"Take one of: {', '.join(TABLE)}",
        )
    return TABLE[name]


def find(name: str) -> Found | None:
    """Where a program of the table is on this machine, or None. It may be too old: ask `.new_enough`."""
    program = named(name)
    for place in program.places:
        if "/" in place:
            hits = sorted(glob(place), key=_numbers, reverse=True)
        else:
            hit = shutil.which(place, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATHS}")
            hits = [hit] if hit else []
        for hit in hits:
            if not program.works or _succeeds(hit, program.works):
                return Found(program, Path(hit))
    return None


def _succeeds(path: str, arguments: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([path, *arguments], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def need(name: str) -> Found:
    """Where a program is.

    Raises Unsupported if it is missing or too old; the text names the package of this system.
    """
    found = find(name)
    if found and found.new_enough:
        return found
    raise Unsupported(*_lacking(named(name), found), advice([name]))


def missing(names: Iterable[str] | None = None) -> tuple[Program, ...]:
    """Those of the named programs (default: the needed ones) that are not here, or too old."""
    rows = [named(name) for name in (needed() if names is None else names)]
    return tuple(row for row in rows if not ((found := find(row.name)) and found.new_enough))


def install(names: Iterable[str] | None = None) -> tuple[Program, ...]:
    """Get what is missing of the named programs (default: the needed ones) from the system's package manager.

    Returns what was installed. A program that is here already is never touched, no service is started or
    switched on, and one line says what is installed before it is.
    Raises LabError if this system has no apt-get, if we may not use it, or if it fails.
    """
    wanted = missing(names)
    if not wanted:
        return ()
    for program in wanted:
        if found := find(program.name):  # too old; its package manager has nothing newer, or somebody chose it
            raise LabError(*_lacking(program, found), advice([program.name]))
    packages = _packages(wanted)
    how = _as_root()
    if not shutil.which("apt-get") or how is None:
        raise LabError(
            f"Missing on this machine: {', '.join(program.title for program in wanted)}.",
            "This system has no apt-get, and set-up knows no other package manager." if not shutil.which("apt-get")
            else "Installing packages takes the rights of root, and set-up may not use sudo here without asking.",
            advice([program.name for program in wanted]),
        )  # fmt: skip
    print(f"Installing {' '.join(packages)} with apt-get. No service is started or switched on.", flush=True)
    _run([*how, "sh", str(APT), "/", *packages])
    if still := missing(names):
        raise LabError(
            f"Still missing or too old after the installation: {', '.join(program.title for program in still)}.",
            "The packages of this system's release may be older than the laboratory needs.",
            advice(program.name for program in still),
        )
    return wanted


def _lacking(program: Program, found: Found | None) -> tuple[str, str]:
    if found:
        return (
            f"{program.title} {found.version} is too old: the laboratory needs {program.least} or newer.",
            f"This is the one that is found first: {found.path}",
        )
    return f"{program.title} is not on this machine.", "Set-up has not installed it yet, or it was removed since."


def advice(names: Iterable[str]) -> str:
    """What to type to get these programs on this system, in one line."""
    names = list(names)
    programs = [named(name) for name in names]
    if any(find(name) for name in names) or not shutil.which("apt-get"):
        wanted = ", ".join(f"{program.title} {program.least} or newer" for program in programs)
        return f"Install {wanted} in this system's own way (conda: environment.yml), then type: make setup"
    if _as_root() is None:
        become = "sudo " if shutil.which("sudo") else ""
        command = shlex.join(["sh", str(APT), "/", *_packages(programs)])
        return f"Type {'in a terminal' if become else 'as root'}: {become}{command}"
    if all(program.needed for program in programs):
        return f"Type: make setup    (it installs {' '.join(_packages(programs))} and starts no service)"
    return f"Type: {shlex.join([sys.executable, '-m', 'labkit', 'setup', *names])}"


def _packages(programs: Iterable[Program]) -> list[str]:
    return list(dict.fromkeys(package for program in programs for package in program.packages))


def _as_root() -> list[str] | None:
    """What to put before a command that needs root: nothing, sudo, or None where we may not."""
    if os.geteuid() == 0:
        return []
    if not shutil.which("sudo"):
        return None
    if subprocess.run(["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
        return ["sudo", "-n"]
    return ["sudo"] if sys.stdin and sys.stdin.isatty() else None


def _run(command: list[str]) -> None:
    """Run to the end, also when interrupted: the script puts the system's settings back before it leaves."""
    interrupted = False

    def interrupt(*_) -> None:  # the script has got the same signal from the terminal, and knows when it can stop
        nonlocal interrupted
        interrupted = True
        print("Stopping, as soon as no package would be left half installed ...", file=sys.stderr, flush=True)

    with tempfile.TemporaryFile("w+", errors="replace") as log:
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            code = subprocess.run(command, stdout=log, stderr=log).returncode
        finally:
            signal.signal(signal.SIGINT, before)
        log.seek(0)
        last = [line.strip() for line in log.read().splitlines() if line.strip()][-3:]
    if interrupted:
        raise KeyboardInterrupt
    if code:
        raise LabError(
            f"apt-get could not install the packages: {' / '.join(last) or f'exit code {code}'}",
            "The machine may be offline, its package lists out of date, or another installation half done.",
            f"Try by hand and read what it says: {shlex.join(command)}",
        )
