"""The docker driver beside what the contract says: what it makes, what it leaves, and how it says that it cannot.

What needs an engine runs with `--driver docker`; how the lack of one is told is tested everywhere.
"""

import contextlib
import os
import socket
import threading
import time

import pytest
from docker.errors import APIError
from kernels import Kernel, alive, eventually, state

from labkit import Lab, LabError, ServerDied, drivers, servers
from labkit.clean import clean
from labkit.engine import LABEL, Engine, told


@pytest.fixture
def engine(driver):
    if driver != "docker":
        pytest.skip("needs a container engine: --driver docker")
    return Engine()


@pytest.fixture
def lab(engine):
    with Lab("containers", driver="docker") as lab:
        yield lab


def three_lines(error) -> str:
    text = str(error.value)
    assert len(text.splitlines()) == 3
    return text


def left_of(engine, session: str) -> bool:
    return session in engine.sessions()


def about(lab, node) -> dict:
    return lab._driver._engine.ask("looked", "inspect_container", f"{lab._session.id}-{node.name}")


# -- what it makes
def test_a_container_without_rights_that_nobody_outside_reaches(engine, lab):
    store = lab.redis()
    told = about(lab, store)
    assert told["HostConfig"]["PortBindings"] in (None, {}) and not told["HostConfig"]["Privileged"]
    assert told["HostConfig"]["CapDrop"] == ["ALL"] and told["HostConfig"]["Memory"] == 256 << 20
    assert told["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    assert told["Config"]["User"] == servers.of("redis").user and store.client().ping()
    (network,) = told["NetworkSettings"]["Networks"].values()
    assert network["IPAddress"] == store.host
    inside = engine.ask("looked", "inspect_network", lab._session.id)
    assert inside["Internal"] and inside["Labels"][f"{LABEL}session"] == lab._session.id
    volume = engine.ask("looked", "inspect_volume", f"{lab._session.id}-{store.name}")
    assert volume["Labels"] == inside["Labels"] and inside["Labels"].items() <= told["Config"]["Labels"].items()
    assert not told["Config"]["Labels"]["com.docker.compose.project"], "no business of any compose project"


def test_the_engine_and_its_version_are_told(engine, capsys):
    with Lab("banner", driver="docker") as lab:
        assert engine.version in capsys.readouterr().out and repr(lab).startswith("Lab(banner, docker")


def test_two_labs_do_not_see_each_other(engine, lab):
    with Lab("another", driver="docker") as another:
        mine, theirs = lab.redis(), another.redis()
        assert mine.host != theirs.host
        reach = ["timeout", "2", "redis-cli", "-h", theirs.host, "ping"]
        assert lab._driver._run_in(mine, reach)[0] != 0
        assert another._driver._run_in(theirs, reach)[0] == 0
        assert lab._driver._labels != another._driver._labels
    assert mine.client().ping() and not left_of(engine, another._session.id)


def test_auto_takes_what_is_there(engine, monkeypatch):
    monkeypatch.delenv(drivers.VARIABLE)
    with Lab("auto") as lab:
        assert lab._driver.name == "docker"
    monkeypatch.setenv("REDIS_IMAGE", "labkit-has-no-such-image:1")
    with Lab("auto") as lab:
        assert lab._driver.name == "local"


# -- faults, where they differ from those of processes
def test_a_dead_node_keeps_its_address_and_refuses(lab):
    store = lab.redis()
    address = (store.host, store.port)
    lab.kill(store)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)
    lab.restart(store, data="lost")
    assert (store.host, store.port) == address and store.client().ping()
    assert store.log.count("Ready to accept connections") == 2, "what it printed in both of its lives"


def test_a_pause_by_the_engine(lab, monkeypatch):
    """Where the container's processes are not to be seen, as from within another container."""
    monkeypatch.setattr(lab._driver, "_reaches", lambda node: False)
    store = lab.redis()
    store.client().set("k", "v")
    lab.pause(store)
    assert about(lab, store)["State"]["Paused"] and store.state == "frozen"
    lab.resume(store)
    assert not about(lab, store)["State"]["Paused"] and store.client().get("k") == "v"
    lab.pause(store)
    lab.kill(store)
    lab.restart(store, data="lost")
    assert store.client().get("k") is None


def test_a_clock_that_is_put_right_while_the_engine_holds_its_node(lab, monkeypatch):
    monkeypatch.setattr(lab._driver, "_reaches", lambda node: False)
    store = lab.redis()
    ahead_s = lambda: store.client().time()[0] - time.time()  # noqa: E731
    lab.set_clock(store, jump_s=5000)
    assert ahead_s() > 4000
    lab.pause(store)
    lab.reset_clock(store)
    lab.resume(store)
    assert abs(ahead_s()) < 1000


def test_a_stranger_s_process_is_never_signalled(lab):
    store = lab.redis()
    store.pid = os.getpid()
    lab.pause(store)
    assert state(os.getpid()) != "T" and about(lab, store)["State"]["Paused"]
    lab.resume(store)


def test_a_container_that_ended_by_itself_is_told_at_the_next_verb(lab):
    store = lab.redis()
    lab._driver._engine.ask("killed", "kill", f"{lab._session.id}-{store.name}")
    with pytest.raises(ServerDied, match="is not running any more") as died:
        lab.pause(store)
    three_lines(died)
    lab.restart(store, data="kept")
    assert store.client().ping()


# -- what it leaves
CRASHED = """
    import os, signal
    from labkit import Lab
    lab = Lab("crashed", driver="docker")
    a, b, c = lab.redis(n=3)
    lab.pause(a)
    lab.kill(b)
    print(lab._session.id, lab._session.keeper_pid, flush=True)
    input()
"""


def test_a_killed_kernel_leaves_nothing(engine):
    with Kernel(CRASHED) as kernel:
        session, keeper = kernel.line().split()
        assert left_of(engine, session)
        kernel.kill()
    eventually(lambda: not alive(int(keeper)), "the keeper has gone", 60)
    assert not left_of(engine, session)


def test_a_killed_keeper_is_no_excuse(engine):
    lab = Lab("bereft", driver="docker")
    lab.redis()
    os.kill(lab._session.keeper_pid, 9)
    lab.close()
    assert not left_of(engine, lab._session.id)


def test_clean_takes_what_a_crash_left_and_nothing_else(engine, lab, tmp_path, monkeypatch):
    living, foreign = lab.redis(), f"labkit-foreign-{os.getpid()}"
    image = about(lab, living)["Config"]["Image"]
    engine.ask("made", "create_container", image, name=foreign, labels={"labkit": "no label of ours"})
    try:
        monkeypatch.setenv("LABKIT_TMP", str(tmp_path))
        with Kernel(CRASHED) as kernel:
            session, keeper = kernel.line().split()
            os.kill(int(keeper), 9)
            kernel.kill()
        eventually(lambda: not alive(int(keeper)), "the keeper has gone")
        assert left_of(engine, session)
        monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "elsewhere"))
        assert clean() == [] and left_of(engine, session), "a session of another place"
        monkeypatch.setenv("LABKIT_TMP", str(tmp_path))
        done = clean()
        assert sum(line.startswith(f"removed the container {session}-redis-") for line in done) == 3
        assert f"removed the network {session}" in done and all(session in line for line in done)
        assert not left_of(engine, session) and clean() == []
        assert living.client().ping() and engine.ask("looked", "inspect_container", foreign)
    finally:
        engine.ask("removed", "remove_container", foreign, v=True)


# -- what goes wrong
def test_a_container_that_ends_while_it_starts_is_told_with_its_last_words(engine, lab):
    with pytest.raises(ServerDied, match="ended while it was starting") as died:
        lab.redis(config={"maxmemory": "plenty"})
    assert "maxmemory" in died.value.why and "memory value" in died.value.why
    three_lines(died)
    assert lab.nodes == [] and lab.redis().client().ping(), "the lab stays usable"
    assert len(engine._everything(f"{LABEL}session={lab._session.id}")["volumes"]) == 1


def test_an_image_that_is_not_there(lab, monkeypatch):
    monkeypatch.setenv("REDIS_IMAGE", "labkit-has-no-such-image:1")
    monkeypatch.setenv("CLOCK_IMAGE", "labkit-has-no-such-image:2")
    assert not lab.can("clock")
    with pytest.raises(LabError, match="The image labkit-has-no-such-image:1 is not on this machine") as lacking:
        lab.redis()
    assert "docker pull labkit-has-no-such-image:1" in three_lines(lacking) and lab.nodes == []


def test_a_range_of_networks_that_is_taken(engine, lab, monkeypatch):
    monkeypatch.setenv("LABKIT_NETWORKS", str(lab._driver._network))
    with pytest.raises(LabError, match="No network is free") as taken:
        Lab("no room", driver="docker")
    assert "LABKIT_NETWORKS" in three_lines(taken)


@pytest.mark.parametrize("told", ["nonsense", "10.1.2.3/8", "10.1.2.0/28", "fd00::/48"])
def test_a_range_of_networks_that_is_none(engine, monkeypatch, told):
    monkeypatch.setenv("LABKIT_NETWORKS", told)
    with pytest.raises(LabError, match="LABKIT_NETWORKS names no range") as wrong:
        Lab("no range", driver="docker")
    three_lines(wrong)


class Door:
    """A way to the engine that the test can shut."""

    def __init__(self, to: str, path):
        self.to, self.url, self.sockets = to.removeprefix("unix://"), f"unix://{path}", []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, far = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self.to)
                self.sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        with contextlib.suppress(OSError):
            while piece := one.recv(65536):
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)

    def shut(self):
        for sock in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def test_an_engine_that_goes_in_the_middle(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path))
    door = Door(engine.url, tmp_path / "door.sock")
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", door.url)
        lab = Lab("in the middle", driver="docker")
        store = lab.redis()
        door.shut()
        with pytest.raises(LabError, match="No container engine answers") as gone:
            lab.kill(store)
        three_lines(gone)
        with pytest.raises(LabError, match="No container engine answers"):
            lab.redis()
        lab.close()
        assert any("could not look for containers" in line for line in clean())
    session = lab._session.id
    assert left_of(engine, session)
    assert f"removed the container {session}-{store.name}" in clean()
    assert not left_of(engine, session)


# -- without an engine
@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TMP", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def refused(match: str) -> str:
    with pytest.raises(LabError, match=match) as error:
        Lab("no engine", driver="docker")
    assert 'driver="local"' in error.value.todo
    return three_lines(error)


def test_no_engine(scratch, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert "nobody.sock" in refused("No container engine answers")
    assert os.listdir(scratch) == []
    monkeypatch.delenv(drivers.VARIABLE)
    with Lab("auto") as lab:
        assert lab._driver.name == "local"


def test_an_engine_that_hangs(scratch, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen(8)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/silent.sock")
        start = time.monotonic()
        refused("did not answer in time")
        assert time.monotonic() - start < 20, "each wait is 2 s; the rest is a busy machine"
    assert os.listdir(scratch) == []


def test_an_engine_that_may_not_be_used(scratch, tmp_path, monkeypatch):
    def refuses(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/theirs.sock")
    monkeypatch.setattr("docker.transport.unixconn.socket.socket.connect", refuses)
    with pytest.raises(LabError, match="you may not use it") as error:
        Engine()
    assert "usermod" in three_lines(error)


def test_an_address_that_is_none(scratch, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "nonsense://x")
    refused("No container engine answers")


def test_a_full_disk_is_told_as_such():
    with pytest.raises(LabError, match="the disk of the container engine is full") as full, told("It could not start"):
        raise APIError("500 Server Error", explanation="write /var/lib/x: no space left on device")
    assert "docker system df" in three_lines(full)


def test_what_the_engine_refuses_is_told_in_its_words():
    with (
        pytest.raises(LabError, match="It could not start: the container engine refused") as no,
        told("It could not start"),
    ):
        raise APIError("409 Conflict", explanation="the name is in use")
    assert "the name is in use" in three_lines(no)
