import os
import socket
from dataclasses import replace

import pytest
from kernels import Kernel, alive, eventually, state

from labkit import Lab, LabError, ServerDied, servers

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def lab():
    with Lab("local") as lab:
        yield lab


@pytest.fixture
def store(lab):
    return lab.redis()


def three_lines(error) -> bool:
    return len(str(error.value).splitlines()) == 3


def test_a_server_is_a_process_of_its_own_that_serves_when_it_is_there(lab, store):
    told = store.client().info("server")
    assert (told["process_id"], told["tcp_port"]) == (store.pid, store.port)
    assert os.readlink(f"/proc/{store.pid}/cwd") == str(lab._session.folder / store.name)
    assert os.getsid(store.pid) == store.pid, "no key pressed in a terminal reaches it"


def test_settings_reach_the_server(lab):
    node = lab.redis(
        config={"maxmemory": "4mb", "save": "900 1", "appendonly": "yes", "maxmemory-policy": "allkeys-lru"}
    )
    told = node.client().config_get("maxmemory", "save", "appendonly", "maxmemory-policy")
    assert told == {
        "maxmemory": str(4 << 20), "save": "900 1", "appendonly": "yes", "maxmemory-policy": "allkeys-lru",
    }  # fmt: skip


def test_what_it_printed(store):
    assert "Ready to accept connections" in store.log


def test_nodes_have_ports_and_folders_of_their_own(lab):
    nodes = lab.redis(n=5)
    assert len({node.port for node in nodes}) == 5 == len({node.pid for node in nodes})
    for number, node in enumerate(nodes):
        node.client().set("me", number)
    assert [node.client().get("me") for node in nodes] == [str(number) for number in range(5)]
    assert len({os.readlink(f"/proc/{node.pid}/cwd") for node in nodes}) == 5


def test_the_port_of_a_dead_node_is_kept_for_it(lab, store):
    port = store.port
    lab.kill(store)
    with socket.socket() as thief, pytest.raises(OSError):
        thief.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    lab.restart(store, data="lost")
    assert store.port == port and store.client().ping()


# -- what goes wrong


def test_a_server_that_dies_while_it_starts_is_told_with_its_last_words(lab):
    before = list(lab.nodes)
    with pytest.raises(ServerDied, match="ended while it was starting") as died:
        lab.redis(config={"maxclients": "many"})
    assert three_lines(died)
    assert "maxclients" in died.value.why and "couldn't be parsed" in died.value.why
    assert "maxclients" in died.value.todo
    assert lab.nodes == before and lab.redis().client().ping(), "the lab stays usable"


def test_one_of_several_that_dies_takes_the_others_along(lab, monkeypatch):
    """Nodes that belong together are all there, or none is."""
    launch, started = servers.of("redis").launch, []

    def spoilt(place, node):
        started.append(node)
        return launch(place if len(started) < 3 else replace(place, program="/bin/false"), node)

    monkeypatch.setattr(servers.of("redis"), "launch", spoilt)
    with pytest.raises(ServerDied):
        lab.redis(n=3)
    assert len(started) == 3 and not any(alive(node.pid) for node in started)
    monkeypatch.undo()
    assert len(lab.redis(n=3)) == 3


def is_up_and_counts_as_not_ready(node):
    eventually(lambda: "Ready to accept" in node.log, "it is up", 20)
    return False


def test_a_server_that_never_answers_has_a_bound(lab, monkeypatch):
    server = servers.of("redis")
    monkeypatch.setattr(server, "start_s", 0.2)
    monkeypatch.setattr(server, "ready", is_up_and_counts_as_not_ready)
    with pytest.raises(ServerDied, match="did not answer within") as died:
        lab.redis()
    assert three_lines(died) and "Ready to accept connections" in died.value.why


def test_a_program_that_is_not_there_names_its_package_and_the_lab_stays(tmp_path):
    code = """
        from labkit import Lab, Unsupported
        lab = Lab("bare machine")
        try:
            lab.redis()
        except Unsupported as error:
            print(str(error).replace("\\n", " | "))
        print(lab.nodes, lab._session.ask("ready")["pid"] == lab._session.keeper_pid)
    """
    with Kernel(code, PATH=str(tmp_path)) as kernel:
        lines = kernel.line().split(" | ")
        assert kernel.line() == "[] True"
        kernel.end()
    assert len(lines) == 3 and lines[0] == "Redis is not on this machine." and "Redis" in lines[2]


def test_an_interrupt_while_a_server_starts_leaves_no_server(lab, monkeypatch):
    server, seen = servers.of("redis"), []

    def interrupted(node):
        seen.append(node)
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.redis()
    eventually(lambda: not alive(seen[0].pid), "the half-started server is gone")
    assert seen[0] not in lab.nodes
    monkeypatch.undo()
    assert lab.redis().client().ping()


def test_a_driver_of_another_name(capsys):
    with pytest.raises(LabError, match="There is no driver 'dokker'") as told:
        Lab("unknown driver", driver="dokker")
    assert three_lines(told) and 'driver="auto"' in told.value.todo


# -- a server that something else ended or stopped


def test_a_server_that_crashed_by_itself_is_told_at_the_next_verb(lab, store):
    pid = store.pid
    os.kill(pid, 9)
    eventually(lambda: state(pid) == "", "the keeper saw it go")
    with pytest.raises(ServerDied, match="is not running any more") as died:
        lab.pause(store)
    assert three_lines(died)
    lab.restart(store, data="lost")
    assert store.client().ping() and store.pid != pid


def test_signals_are_there_when_the_verb_returns(lab, store):
    for _ in range(20):
        lab.pause(store)
        assert state(store.pid) == "T"
        lab.resume(store)
        assert state(store.pid) != "T"
    lab.kill(store)
    assert state(store.pid) == "", "reaped, not a zombie"


def test_powers(lab):
    assert all(lab.can(power) for power in ("pause", "kill", "restart", "cut", "delay"))
    assert not lab.can("fly")
