"""Programs: finding them, their versions, and the installation, which must leave the system's services alone."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import programs
from labkit.errors import LabError, Unsupported

PROJECT = Path(programs.__file__).parent.parent


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A PATH with nothing on it: the folder to put programs into."""
    folder = tmp_path / "bin é x"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(programs, "_SYSTEM_PATHS", str(folder))
    return folder


def three_lines(error: Exception) -> list[str]:
    lines = str(error).splitlines()
    assert len(lines) == 3 and all(lines)
    return lines


# Finding


def test_needs_only_python_itself():
    code = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from labkit import programs; print(len(programs.TABLE))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(programs.TABLE)


def test_the_redis_of_this_machine_is_found():
    found = programs.need("redis-server")
    assert os.access(found.path, os.X_OK)
    assert found.version[0].isdigit() and found.new_enough


@pytest.mark.parametrize(
    ("name", "command", "says", "version"),
    [
        (
            "redis-server",
            "redis-server",
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64",
            "7.0.15",
        ),
        ("etcd", "etcd", "etcd Version: 3.5.16\nGit SHA: Not provided\nGo Version: go1.24.4", "3.5.16"),
        ("java", "java", 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', "17.0.15"),
        ("java", "java", 'openjdk version "21" 2023-09-19', "21"),
        ("nginx", "nginx", "nginx version: nginx/1.26.3", "1.26.3"),
        ("cc", "gcc", "gcc (Ubuntu 13.2.0-23ubuntu4) 13.2.0\nCopyright (C) 2023", "13.2.0"),
        ("redis-server", "redis-server", "an unheard-of answer", ""),
    ],
)
@pytest.mark.parametrize("stream", ["1", "2"])
def test_versions(bare, name, command, says, version, stream):
    path = script(bare / command, f"echo '{says}' >&{stream}")
    found = programs.find(name)
    assert (found.path, found.version) == (path, version)
    assert found.new_enough


def test_versions_in_paths():
    path = Path("/usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin/rabbitmq-server")
    assert programs.TABLE["rabbitmq-server"].version(path) == "4.0.5"
    assert programs.TABLE["zookeeper"].version(Path("/usr/share/java/zookeeper-3.9.3.jar")) == "3.9.3"


def test_of_many_the_newest_is_taken(bare, tmp_path, monkeypatch):
    for release in ("9.6", "15", "9"):
        script(tmp_path / release / "bin" / "postgres", f"echo 'postgres (PostgreSQL) {release}'")
    row = programs.TABLE["postgres"]
    changed = {**row.__dict__, "places": (f"{tmp_path}/*/bin/postgres",)}
    monkeypatch.setitem(programs.TABLE, "postgres", programs.Program(**changed))
    assert programs.find("postgres").version == "15"


def test_versions_are_compared_as_numbers(bare):
    script(bare / "redis-server", "echo Redis server v=10.0.0")
    assert programs.find("redis-server").new_enough


def test_a_missing_program_names_its_package(bare):
    script(bare / "apt-get", "exit 1")
    assert programs.find("redis-server") is None
    with pytest.raises(Unsupported) as caught:
        programs.need("redis-server")
    lines = three_lines(caught.value)
    assert "not on this machine" in lines[0]
    if os.geteuid() == 0:
        assert "make setup" in lines[2] and "redis-server" in lines[2]
        with pytest.raises(Unsupported, match="labkit setup java"):  # ZooKeeper's packages bring it
            programs.need("java")


def test_a_program_that_is_too_old(bare):
    script(bare / "redis-server", "echo Redis server v=5.0.14")
    script(bare / "cc", "exit 0")
    assert not programs.find("redis-server").new_enough
    both = ["redis-server", "cc"]
    assert [row.name for row in programs.missing(both)] == ["redis-server"]
    with pytest.raises(Unsupported, match="5.0.14 is too old: the laboratory needs 7.0 or newer"):
        programs.need("redis-server")
    script(bare / "apt-get", f"touch '{bare}/called'")
    with pytest.raises(LabError, match="too old"):
        programs.install(both)
    assert not (bare / "called").exists()  # what somebody chose is not replaced


def test_a_compiler_without_its_headers_does_not_count(bare):
    script(bare / "cc", "exit 1")
    assert programs.find("cc") is None
    script(bare / "clang", "echo clang version 14.0.6")
    assert programs.find("cc").path == bare / "clang"


def test_a_program_that_cannot_be_run(bare):
    (bare / "redis-server").write_text("no program")
    (bare / "redis-server").chmod(0o755)
    assert programs.find("redis-server").version == ""


def test_an_unknown_name():
    with pytest.raises(LabError, match="redis-server") as caught:
        programs.find("rediss")
    assert "'rediss'" in three_lines(caught.value)[0]


def test_the_table():
    for name, row in programs.TABLE.items():
        assert row.name == name and row.packages and row.chapters and programs._numbers(row.least)
    assert set(programs.needed()) <= set(programs.TABLE)
    assert programs.TABLE["redis-server"].needed


# Installing: when and how


def test_what_is_here_is_not_touched(bare):
    script(bare / "redis-server", "echo Redis server v=7.0.15")
    script(bare / "cc", "exit 0")
    script(bare / "apt-get", f"touch '{bare}/called'")
    assert programs.missing(["redis-server", "cc"]) == ()
    assert programs.install(["redis-server", "cc"]) == ()
    assert not (bare / "called").exists()


def test_without_apt_get(bare):
    with pytest.raises(LabError) as caught:
        programs.install(["redis-server"])
    lines = three_lines(caught.value)
    assert "no apt-get" in lines[1] and "Redis 7.0 or newer" in lines[2]


def test_without_the_right_to(bare, monkeypatch):
    script(bare / "apt-get", f"touch '{bare}/called'")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LabError) as caught:
        programs.install(["redis-server", "cc"])
    assert three_lines(caught.value)[2].endswith("apt.sh / redis-server gcc libc6-dev")
    assert three_lines(caught.value)[2].startswith("Type as root:")

    script(bare / "sudo", "exit 1")  # there, but it asks, and there is no terminal
    with pytest.raises(LabError) as caught:
        programs.install(["redis-server"])
    assert three_lines(caught.value)[2].startswith("Type in a terminal: sudo sh ")
    assert not (bare / "called").exists()


def test_sudo_that_does_not_ask_is_used(bare, monkeypatch, capsys):
    script(bare / "apt-get", "exit 0")
    script(bare / "sudo", f'[ "$2" = true ] || printf "%s " "$@" > \'{bare}/asked\'\nexit 0')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="Still missing"):  # this sudo installs nothing
        programs.install(["nginx"])
    assert (bare / "asked").read_text().split() == ["-n", "sh", *str(programs.APT).split(), "/", "nginx"]
    assert "Installing nginx with apt-get" in capsys.readouterr().out


def test_an_installation_that_fails(bare, monkeypatch):
    script(bare / "apt-get", "exit 0")
    script(bare / "sudo", '[ "$2" = true ] && exit 0\necho E: the mirror is asleep >&2\nexit 100')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="the mirror is asleep") as caught:
        programs.install(["nginx"])
    assert "apt.sh / nginx" in three_lines(caught.value)[2]


# Installing: the script, on a system made of folders

MINE = "#!/bin/sh\n# mine\nexit 0\n"
WANTS = "etc/systemd/system/multi-user.target.wants"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A root folder with a service that is switched on, and an apt-get that switches on another one."""
    root, tools = tmp_path / "root é x", tmp_path / "tools"
    for folder in ("usr/sbin", "run", WANTS, "etc/rc3.d"):
        (root / folder).mkdir(parents=True)
    (root / WANTS / "old.service").symlink_to("/lib/systemd/system/old.service")
    (root / "etc/rc3.d/S01old").symlink_to("../init.d/old")
    script(tools / "update-rc.d", f'echo "$@" >> "{root}/update-rc.d"')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    apt_get(root, tools)
    return root


def apt_get(root: Path, tools: Path, first: str = "", at_install: str = "") -> None:
    script(
        tools / "apt-get",
        f'''
echo "$@" >> "{root}/asked"
{first}
case "$*" in *--download-only*|*update*) exit 0 ;; esac
cp -p "{root}/usr/sbin/policy-rc.d" "{root}/policy-then"
ln -s /lib/systemd/system/new.service "{root}/{WANTS}/new.service"
ln -s ../init.d/new "{root}/etc/rc3.d/S01new"
{at_install}
exit 0''',
    )


def run_apt(root: Path) -> subprocess.CompletedProcess:
    return subprocess.run(["sh", programs.APT, root, "new-server"], capture_output=True, text=True, timeout=60)


def links(root: Path) -> set[str]:
    return {path.name for path in (root / WANTS).iterdir()}


def test_nothing_is_started_and_nothing_switched_on(system):
    done = run_apt(system)
    assert done.returncode == 0, done.stderr
    then = system / "policy-then"
    assert os.access(then, os.X_OK)
    assert subprocess.run([then, "new", "start"]).returncode == 101  # what a maintainer script was told
    assert links(system) == {"old.service"}
    assert (system / "update-rc.d").read_text() == "new disable\n"
    assert not list((system / "usr/sbin").iterdir())
    assert "--no-install-recommends" in (system / "asked").read_text()


def test_an_own_policy_comes_back_as_it_was(system):
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text(MINE)
    policy.chmod(0o750)
    assert run_apt(system).returncode == 0
    assert "exit 101" in (system / "policy-then").read_text()
    assert policy.read_text() == MINE and policy.stat().st_mode & 0o777 == 0o750
    assert list((system / "usr/sbin").iterdir()) == [policy]


def test_package_lists_are_fetched_when_they_are_absent(system, tmp_path):
    tools = tmp_path / "tools"
    apt_get(
        system,
        tools,
        first=f'case "$*" in *update*) touch "{system}/lists" ;; *) [ -e "{system}/lists" ] || exit 100 ;; esac',
    )
    assert run_apt(system).returncode == 0
    asked = (system / "asked").read_text()
    assert asked.count("update\n") == 1 and asked.count("--download-only") == 2

    (system / "asked").unlink()
    (system / WANTS / "new.service").unlink(missing_ok=True)
    (system / "etc/rc3.d/S01new").unlink()
    assert run_apt(system).returncode == 0
    assert "update" not in (system / "asked").read_text()


def test_a_failure_also_puts_everything_back(system, tmp_path):
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text(MINE)
    apt_get(system, tmp_path / "tools", at_install="echo E: broken >&2; exit 100")
    done = run_apt(system)
    assert done.returncode == 100 and "E: broken" in done.stderr
    assert links(system) == {"old.service"} and policy.read_text() == MINE


def test_what_a_killed_run_left_is_put_right(system):
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\n# set up by labkit for the time of one installation\nexit 101\n")
    Path(f"{policy}.kept-by-labkit").write_text(MINE)
    assert run_apt(system).returncode == 0
    assert policy.read_text() == MINE and list((system / "usr/sbin").iterdir()) == [policy]


@pytest.mark.parametrize("moment", ["download", "install"])
def test_interrupted(system, tmp_path, moment):
    """Ctrl-C goes to the whole process group: downloading stops, but packages are not left half installed."""
    policy = system / "usr/sbin/policy-rc.d"
    policy.write_text(MINE)
    here, go = tmp_path / "here", tmp_path / "go"
    os.mkfifo(here)
    os.mkfifo(go)
    wait = f'echo here > "{here}"; read -r word < "{go}"'
    stop = {"download": {"first": wait}, "install": {"at_install": f'{wait}; touch "{system}/whole"'}}
    apt_get(system, tmp_path / "tools", **stop[moment])
    process = subprocess.Popen(["sh", programs.APT, system, "new-server"], start_new_session=True)
    try:
        here.read_text()  # returns when apt-get has come there
        os.killpg(process.pid, signal.SIGINT)
        if moment == "install":
            go.write_text("on\n")
            assert process.wait(60) == 0
            assert (system / "whole").exists()
        else:
            assert process.wait(60) == 130
            assert not (system / "policy-then").exists()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert links(system) == {"old.service"} and policy.read_text() == MINE


def test_the_installation_is_waited_for_when_interrupted(bare, monkeypatch, tmp_path):
    """An interrupt ends neither the script nor the wait for it, and is raised when the script has ended."""
    monkeypatch.setenv("PATH", os.defpath)
    end = tmp_path / "end"
    shell = f'trap "" INT; kill -INT {os.getpid()}; sleep 0.2; touch "{end}"'  # the time a tidying script takes
    with pytest.raises(KeyboardInterrupt):
        programs._run([shutil.which("sh"), "-c", shell])
    assert end.exists()
