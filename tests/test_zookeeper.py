import socket
import sys

import cloudpickle
import pytest
from crash import processes_left
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from labkit import Lab, LabError, Unsupported, programs
from labkit.within import outcome_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are
missing = [name for name in ("zookeeper", "java") if not programs.find(name)]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not on this machine: {missing}")

FAILED = (KazooException, KazooTimeoutError)


@pytest.fixture
def lab():
    with Lab("zookeeper") as lab:
        yield lab


def value(node) -> bytes:
    client = node.client()
    try:
        client.sync("/key")  # else a follower may tell what was a moment ago
        return client.get("/key")[0]
    finally:
        client.stop()


def write(node, what: bytes) -> bool:
    client = node.client()
    try:
        client.ensure_path("/key")
        return client.set("/key", what).version > 0
    finally:
        client.stop()


def asked(node, word: str) -> str:
    with socket.create_connection((node.host, node.port), 5) as sock:
        sock.sendall(word.encode())
        return sock.makefile().read()


def test_one_serves_as_soon_as_it_is_there(lab):
    store = lab.zookeeper(config={"tickTime": 100})
    assert store.role == "single"
    assert write(store, b"1")
    assert value(store) == b"1"
    client = store.client(timeout=1.0)
    assert "to=1000," in asked(store, "cons")  # what was granted, by the server's own word
    client.stop()
    assert "tickTime=100" in asked(store, "conf")


def test_three_know_each_other_as_soon_as_they_are_there(lab):
    members = lab.zookeeper(3)
    assert sorted(node.role for node in members) == ["follower", "follower", "leader"]
    assert write(members[0], b"1")
    assert [value(node) for node in members] == [b"1"] * 3
    with pytest.raises(Unsupported, match="peer_links=True"):
        lab.cut_peers(members[0])


def put(w, store, what):
    client = w.client(store, timeout_s=0.5, timeout=2.0)
    client.ensure_path("/key")
    w.mark("connected")
    try:
        with w.span("puts"):
            client.set("/key", what)
    except KazooTimeoutError:
        w.mark("failed")
    while True:
        try:
            return client.get("/key")[0]
        except FAILED:
            w.work(0.01)


@pytest.mark.parametrize("how, then", [("black hole", b""), ("replies", b"A")])
def test_a_cut_link_leaves_the_outcome_unknown_and_one_client_goes_on_when_it_is_healed(lab, how, then):
    store = lab.zookeeper()
    with lab.run("cut") as e:
        a = lab.worker("A", put, store, b"A").run_to("connected")
        lab.cut(a, store, how=how)
        a.run_to("failed")
        assert value(store) == then
        lab.heal(a, store)
        assert a.join() == then
        assert [s.outcome for s in e.timeline.spans("puts")] == ["unknown"]


def test_a_member_comes_back_with_its_data_and_without(lab):
    members = lab.zookeeper(3)
    write(members[0], b"1")
    victim, other = [node for node in members if node.role == "follower"][0], lab.leader(members)
    lab.kill(victim)
    lab.until("the others write", lambda: write(other, b"2"))
    lab.restart(victim, data="kept")
    assert value(victim) == b"2"
    lab.restart(victim, data="lost")
    assert value(victim) == b"2"


def move(w, members):
    first, *others = members
    client = w.client(first, also=[w.address(node) for node in others], timeout=10.0, timeout_s=5)
    client.create("/mine", ephemeral=True)
    w.mark("connected")
    return client.exists("/mine").ephemeralOwner == client.client_id[0]


def test_a_session_goes_on_at_another_member(lab):
    members = lab.zookeeper(3)
    with lab.run("move"):
        a = lab.worker("A", move, members).run_to("connected")
        served = next(node for node in members if "sid=" in asked(node, "cons"))  # it has a session's connection
        lab.kill(served)
        lab.until("the others lead", lambda: lab.leader(members))
        assert a.join()


def test_one_alone_forgets_what_is_lost(lab):
    store = lab.zookeeper()
    write(store, b"1")
    lab.restart(store, data="kept")
    assert value(store) == b"1"
    lab.restart(store, data="lost")
    with pytest.raises(NoNodeError):
        value(store)


def test_without_a_majority_nobody_is_served(lab):
    members = lab.zookeeper(3)
    write(members[0], b"1")
    last, *others = members
    for node in others:
        lab.kill(node)
    lab.until("it notices", lambda: "not currently serving" in asked(last, "srvr"))
    with pytest.raises(FAILED):
        value(last)
    lab.restart(others[0], data="kept")
    lab.until("they write again", lambda: write(last, b"2"))


@pytest.mark.parametrize("cause, cure", [("pause", "resume"), ("cut_peers", "heal_peers")])
def test_a_leader_that_nobody_hears_is_replaced_and_follows_later(lab, cause, cure):
    members = lab.zookeeper(3, peer_links=True)
    old = lab.leader(members)
    others = [node for node in members if node is not old]
    write(old, b"before")
    with lab.run("silence"):
        getattr(lab, cause)(old)
        with pytest.raises(FAILED):
            write(old, b"lost?")
        lab.until("the others elect one", lambda: lab.leader(others), timeout_s=30)
        lab.until("they write", lambda: write(lab.leader(others), b"after"))
        getattr(lab, cure)(old)
        lab.until("it follows", lambda: old.role == "follower" and value(old) == b"after", timeout_s=30)
        assert lab.leader(members) in others


def hold(w, store):
    client = w.client(store, timeout=1.0)
    lock = client.Lock("/lock", w.name)
    with lock, w.span("holds", lock="/lock"):
        w.work(0.2)
    client.create("/held", w.name.encode(), ephemeral=True)
    w.mark("held")
    w.work(60)


def test_the_observer_tells_who_holds_a_lock_and_when_the_server_is_silent(lab):
    store = lab.zookeeper()
    with lab.run("watch") as e:
        lab.watch(store, "/lock")
        for name in "AB":
            lab.worker(name, hold, store).run_to("holds").start()
        lane = "/lock (zookeeper-1 says)"
        lab.until("both were seen", lambda: len([s for s in e.timeline.spans("owner", lane) if s.how == "ended"]) == 2)
        lab.pause(store)
        lab.until("it is silent", lambda: e.timeline.spans("no answer", lane))
        lab.resume(store)
        lab.until("it is back", lambda: e.timeline.spans("no answer", lane)[0].how == "ended")
    a, b = e.timeline.spans("owner", lane)[:2]
    assert [a.data["owner"], b.data["owner"]] == ["A", "B"]
    assert 0 < a.data["czxid"] < b.data["czxid"]


def test_an_ephemeral_node_goes_some_time_after_its_client_was_killed(lab):
    store = lab.zookeeper()
    with lab.run("kill"):
        a = lab.worker("A", hold, store).run_to("held")
        lab.kill(a)
        lab.wait_gone(store, "/held")
    with pytest.raises(LabError, match="no TTL"):
        write(store, b"1")
        lab.wait_gone(store, "/key")


def test_what_failed_for_certain_is_no_unknown_outcome(lab):
    store = lab.zookeeper()
    with pytest.raises(NoNodeError) as error:
        value(store)
    assert outcome_of(error.value) == "fail"


def test_nothing_is_left_of_a_killed_kernel():
    before, left = processes_left("lab.zookeeper(); a, *_ = lab.zookeeper(3, peer_links=True); lab.pause(a)")
    assert before.count("java") == 4
    assert not left
