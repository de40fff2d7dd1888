import sys

import cloudpickle
import pyetcd
import pytest
from crash import processes_left

from labkit import Lab, LabError, Unsupported, programs
from labkit.within import outcome_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are
pytestmark = pytest.mark.skipif(not programs.find("etcd"), reason="etcd is not on this machine")


@pytest.fixture
def lab():
    with Lab("etcd") as lab:
        yield lab


def value(node, serializable=False):
    with node.client() as client:
        return client.get("key", serializable=serializable)[0]


def write(node, what, timeout_s=2.0):
    with node.client(timeout_s=timeout_s) as client:
        return client.put("key", what).header.revision


def written(node, what):
    """For lab.until: the first answers after a fault may be errors."""
    return lambda: write(node, what) > 0


def test_one_serves_as_soon_as_it_is_there(lab):
    store = lab.etcd(config={"quota-backend-bytes": 1 << 24})
    assert store.role == "single"
    revision = write(store, "1")
    with store.client() as client:
        found, about = client.get("key")
        assert (found, about.mod_revision, about.version) == (b"1", revision, 1)
        assert client.lease(1).ttl == 1  # with etcd's default times it would be 2


def test_three_know_each_other_as_soon_as_they_are_there(lab):
    members = lab.etcd(3)
    assert sorted(node.role for node in members) == ["follower", "follower", "leader"]
    assert lab.leader(members).role == "leader"
    write(members[0], "1")
    assert [value(node) for node in members] == [b"1"] * 3


def put(w, store, what):
    client = w.client(store, timeout_s=0.5)
    client.get("key")
    w.mark("connected")
    with w.span("puts"):
        client.put("key", what)


@pytest.mark.parametrize("how, then", [("black hole", None), ("replies", b"A")])
def test_a_cut_link_leaves_the_outcome_unknown(lab, how, then):
    store = lab.etcd()
    with lab.run("cut") as e:
        a = lab.worker("A", put, store, "A").run_to("connected")
        lab.cut(a, store, how=how)
        with pytest.raises(pyetcd.Etcd3Exception):
            a.join()
        assert [s.outcome for s in e.timeline.spans("puts")] == ["unknown"]
        assert value(store) == then
        lab.heal(a, store)
        lab.worker("B", put, store, "B").join()
    assert value(store) == b"B"


def put_until_it_works(w, store):
    client = w.client(store, timeout_s=0.3)
    client.get("key")
    w.mark("connected")
    failed = 0
    while True:
        try:
            client.put("key", "through")
            return failed
        except pyetcd.Etcd3Exception as error:
            failed += 1
            assert outcome_of(error) == "unknown"
            w.mark("failed")


def test_one_client_goes_on_after_its_link_is_healed(lab):
    store = lab.etcd()
    with lab.run("heal"):
        a = lab.worker("A", put_until_it_works, store).run_to("connected")
        lab.cut(a, store)
        a.run_to("failed")
        lab.heal(a, store)
        assert a.join() >= 1
    assert value(store) == b"through"


def test_a_frozen_leader_is_replaced_and_follows_when_it_wakes(lab):
    members = lab.etcd(3)
    old = lab.leader(members)
    others = [node for node in members if node is not old]
    with lab.run("freeze"):
        lab.pause(old)
        with pytest.raises(pyetcd.Etcd3Exception):
            value(old, serializable=True)
        lab.until("the others elect one", lambda: lab.leader(others))
        lab.until("it writes", written(lab.leader(others), "new"))
        lab.resume(old)
        lab.until("it knows", lambda: value(old) == b"new")
        assert lab.leader(members) is not old


def test_a_member_comes_back_with_its_data_and_without(lab):
    members = lab.etcd(3)
    write(members[0], "1")
    victim = next(node for node in members if node.role == "follower")
    pid = victim.pid
    lab.kill(victim)
    other = next(node for node in members if node is not victim)
    lab.until("the others write", written(other, "2"))
    lab.restart(victim, data="kept")
    assert victim.pid != pid
    assert value(victim) == b"2"
    lab.restart(victim, data="lost")
    assert value(victim) == b"2"
    with other.client() as client:
        assert sum(1 for _ in client.members) == 3


def test_one_alone_forgets_what_is_lost(lab):
    store = lab.etcd()
    write(store, "1")
    lab.restart(store, data="kept")
    assert value(store) == b"1"
    lab.restart(store, data="lost")
    assert value(store) is None


def test_without_a_majority_nothing_is_written_and_old_values_are_still_read(lab):
    a, b, c = lab.etcd(3)
    write(a, "1")
    lab.kill(b)
    lab.kill(c)
    with pytest.raises(pyetcd.Etcd3Exception) as error:
        write(a, "2", timeout_s=1)
    assert outcome_of(error.value) == "unknown"
    with pytest.raises(pyetcd.Etcd3Exception):
        value(a)
    assert value(a, serializable=True) == b"1"
    with pytest.raises(LabError, match="majority"):
        lab.restart(b, data="lost")
    lab.restart(b, data="kept")  # the refusal took nothing away
    lab.until("it writes again", written(a, "3"))


def test_a_leader_cut_from_its_peers_answers_old_values_only(lab):
    members = lab.etcd(3, peer_links=True)
    old = lab.leader(members)
    others = [node for node in members if node is not old]
    write(old, "before")
    with lab.run("partition") as e:
        lab.cut_peers(old)
        with pytest.raises(pyetcd.Etcd3Exception):
            write(old, "lost?", timeout_s=0.5)
        lab.until("the others elect one", lambda: lab.leader(others))
        lab.until("they write", written(lab.leader(others), "after"))
        with pytest.raises(pyetcd.Etcd3Exception), old.client(timeout_s=0.5) as client:
            client.get("key")
        assert value(old, serializable=True) == b"before"
        with pytest.raises(LabError, match="is so already"):
            lab.cut_peers(old)
        lab.heal_peers(old)
        lab.until("it knows", lambda: value(old) == b"after")
    faults = [s for s in e.timeline.spans(lane=old.name) if s.data.get("fault")]
    assert [s.name for s in faults] == [f"cut from {node.name}" for node in others]


def test_each_pair_has_a_link_of_its_own_and_the_run_heals_it(lab):
    members = lab.etcd(3, peer_links=True)
    leader = lab.leader(members)
    one, two = [node for node in members if node is not leader]
    with lab.run("two followers do not hear each other"):
        lab.cut_peers(one, two)
        for n in range(20):
            write(one, f"{n}")
            assert value(two) == f"{n}".encode()
        assert lab.leader(members) is leader
        lab.kill(leader)
        with pytest.raises(pyetcd.Etcd3Exception):
            write(one, "no majority", timeout_s=1)
    lab.until("the two find each other", written(one, "healed"))


def test_only_members_with_links_can_be_cut(lab):
    members = lab.etcd(3)
    with pytest.raises(Unsupported, match="peer_links=True"):
        lab.cut_peers(members[0])
    linked, stranger = lab.etcd(2, peer_links=True)[0], members[0]
    with pytest.raises(LabError, match="is no peer"):
        lab.cut_peers(linked, stranger)


def put_ten(w, store):
    client = w.client(store)
    for n in range(10):
        client.put("key", str(n))
    client.put("key", "9")
    client.delete("key")
    client.put("key", "9")


def test_odd_numbers_of_members(lab):
    with pytest.raises(LabError, match="one member at least"):
        lab.etcd(0)
    with pytest.raises(Unsupported, match="peer_links=True"):
        lab.cut_peers(lab.etcd(1, peer_links=True))


def test_the_observer_misses_no_change_and_tells_revisions(lab):
    store = lab.etcd()
    with lab.run("watch") as e:
        lab.watch(store, "key")
        lab.worker("A", put_ten, store).join()
        lane = "key (etcd-1 says)"
        lab.until("all was seen", lambda: len(e.timeline.spans("owner", lane)) == 11)
        lab.pause(store)
        lab.until("it is silent", lambda: e.timeline.spans("no answer", lane))
        lab.resume(store)
        lab.until("it is back", lambda: e.timeline.spans("no answer", lane)[0].how == "ended")
    owners = e.timeline.spans("owner", lane)[:11]
    assert [s.data["owner"] for s in owners] == [*"0123456789", "9"]
    revisions = [s.data["revision"] for s in owners]
    assert revisions == [*range(revisions[0], revisions[0] + 10), revisions[0] + 12]
    assert [m.data["revision"] for m in e.timeline.marks("written again", lane)] == [revisions[0] + 10]
    assert len({s.data["create_revision"] for s in owners}) == 2


def queue_up(w, store):
    client = w.client(store)
    for name in "ABC":
        client.put(f"lock/{name}", name)
    client.delete("lock/B")  # it only waited
    client.delete("lock/A")
    client.put("lock/B", "B")
    client.delete("lock/C")


def test_of_keys_below_one_name_the_observer_tells_the_oldest(lab):
    store = lab.etcd()
    with lab.run("queue") as e:
        lab.watch(store, "lock/")
        lab.worker("A", queue_up, store).join()
        lane = "lock/ (etcd-1 says)"
        lab.until("all was seen", lambda: len(e.timeline.spans("owner", lane)) == 3)
    owners = e.timeline.spans("owner", lane)
    assert [s.data["owner"] for s in owners] == ["A", "C", "B"]
    assert e.timeline.marks("written again", lane) == []
    assert [s.how for s in owners[:2]] == ["ended", "ended"]


def test_a_key_goes_with_its_lease(lab):
    store = lab.etcd()
    with store.client() as client:
        client.put("lock", "A", lease=client.lease(1))
        lab.wait_gone(store, "lock")
        assert client.get("lock") == (None, None)
        client.put("lock", "A")
    with pytest.raises(LabError, match="no TTL"):
        lab.wait_gone(store, "lock")


def test_nothing_is_left_of_a_killed_kernel():
    before, left = processes_left("lab.etcd(); a, *_ = lab.etcd(3, peer_links=True); lab.pause(a)")
    assert before.count("etcd") == 4
    assert not left
