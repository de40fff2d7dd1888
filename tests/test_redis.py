import sys
from functools import partial

import cloudpickle
import pytest
import redis
from crash import processes_left

from labkit import Lab, LabError, Unsupported
from labkit.servers.redis import SENTINELS

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are


@pytest.fixture
def lab():
    with Lab("redis") as lab:
        yield lab


def take(client, owner, key="lock") -> bool:
    return bool(client.set(key, owner, nx=True, px=60_000))


# -- what can stand together


@pytest.mark.parametrize(
    "how, what",
    [
        ({"n": 0}, "too small"),
        ({"replicas": -1}, "too small"),
        ({"n": 3, "replicas": 1}, "3 independent nodes"),
        ({"n": 2, "cluster": 6}, "2 independent nodes"),
        ({"sentinels": 3}, "without a replica"),
        ({"cluster": 6, "replicas": 1}, "neither replicas nor Sentinels"),
        ({"cluster": 2}, "of 2 nodes"),
        ({"cluster": 7}, "of 7 nodes"),
        ({"replicas": 1, "sentinels": 3, "down_after_ms": 0}, "after 0 ms"),
    ],
)
def test_what_cannot_stand_together_is_refused_before_anything_starts(lab, how, what):
    with pytest.raises(LabError, match=what) as refused:
        lab.redis(**how)
    assert len(str(refused.value).splitlines()) == 3
    assert not lab.nodes


def test_five_independent_nodes_know_nothing_of_each_other(lab):
    nodes = lab.redis(5)
    nodes[0].client().set("k", 1)
    assert [node.client().get("k") for node in nodes] == ["1", None, None, None, None]
    assert {node.role for node in nodes} == {"single"}


def test_a_pair_is_in_sync_when_it_is_there(lab):
    for _ in range(5):  # the sync that a replica begins with has a race in it
        primary, replica = lab.redis(replicas=1)
        assert (primary.role, replica.role) == ("primary", "replica")
        client = primary.client()
        client.set("k", "v")
        assert client.wait(1, 1500) == 1
        assert replica.client().get("k") == "v"
        assert client.dbsize() == 1  # becoming ready left nothing behind
        with pytest.raises(redis.exceptions.ReadOnlyError):
            replica.client().set("k", "w")
        lab.kill(primary), lab.kill(replica)


def test_sentinels_know_the_replicas_and_each_other_when_they_are_there(lab):
    primary, *rest = nodes = lab.redis(replicas=2, sentinels=3)
    replicas, sentinels = rest[:2], rest[2:]
    assert [node.kind for node in nodes] == ["redis"] * 3 + ["sentinel"] * 3
    for node in sentinels:
        client = node.client()
        assert client.sentinel_get_master_addr_by_name("main") == (primary.host, primary.port)
        assert {r["port"] for r in client.sentinel_slaves("main")} == {r.port for r in replicas}
        assert {s["port"] for s in client.sentinel_sentinels("main")} == {s.port for s in sentinels if s is not node}
        assert client.execute_command("SENTINEL", "CKQUORUM", "main").startswith("OK")
    assert lab.primary(nodes) is primary
    assert primary.client().wait(2, 1500) == 2


def test_a_cluster_serves_every_slot_on_every_member_when_it_is_there(lab):
    nodes = lab.redis(cluster=6)
    assert [node.role for node in nodes] == ["primary"] * 3 + ["replica"] * 3
    for node in nodes:
        told = node.client().cluster("info")
        assert (told["cluster_state"], told["cluster_slots_ok"], told["cluster_size"]) == ("ok", "16384", "3")
    client = lab.cluster(nodes)
    for i in range(100):
        client.set(f"k{i}", i)
    assert [client.get(f"k{i}") for i in range(100)] == [str(i) for i in range(100)]
    held = [node.client().dbsize() for node in nodes[:3]]
    assert sum(held) == 100 and min(held) > 0
    assert all(node.client().wait(1, 1500) == 1 for node in nodes[:3])
    assert [node.client().dbsize() for node in nodes[3:]] == held


def test_a_cluster_may_do_without_replicas(lab):
    nodes = lab.redis(cluster=3, config={"cluster-require-full-coverage": "no"})
    assert [node.role for node in nodes] == ["primary"] * 3
    assert lab.cluster(nodes).set("k", "v")


# -- who is primary


def test_the_primary_is_asked_for_and_not_remembered(lab):
    primary, replica = nodes = lab.redis(replicas=1)
    assert lab.primary(nodes) is primary
    with lab.run("by hand") as e:
        lab.kill(primary)
        assert lab.primary(nodes) is None
        lab.promote(replica)
        assert lab.primary(nodes) is replica
        assert replica.role == "primary" and "redis-2 primary" in repr(replica)
    assert [m.data["fault"] for m in e.timeline.marks("promoted", "redis-2")] == [True]
    lab.restart(replica, data="kept")
    assert replica.role == "primary"  # over a restart too
    lab.restart(primary, data="kept")
    with pytest.raises(LabError, match="redis-1 and redis-2"):
        lab.primary(nodes)


# -- a lock and a failover


@pytest.mark.parametrize("cut", [True, False])
def test_a_lock_is_lost_by_a_failover_when_replication_was_cut_and_only_then(lab, cut):
    for _ in range(3):
        primary, replica = lab.redis(replicas=1)
        with lab.run("failover"):
            if cut:
                lab.cut_replication(replica)
            assert take(primary.client(), "A")
            if not cut:
                assert primary.client().wait(1, 1500) == 1
            lab.kill(primary)
            lab.promote(replica)
            assert take(replica.client(), "B") == cut
            assert replica.client().get("lock") == ("B" if cut else "A")


def hold(w, nodes):
    r = w.sentinel(nodes, timeout_s=0.5).primary()
    if not take(r, w.name):
        return False
    with w.span("holds", lock="lock", token=w.name):
        w.mark("has it")
    return True


@pytest.mark.parametrize("cut", [True, False])
def test_sentinels_promote_and_workers_follow_to_a_lock_that_is_there_or_not(lab, cut):
    primary, *rest = nodes = lab.redis(replicas=2, sentinels=3)
    with lab.run("failover") as e:
        if cut:
            lab.cut_replication(rest[0]), lab.cut_replication(rest[1])
        a = lab.worker("A", hold, nodes).run_to("has it")
        if not cut:
            assert primary.client().wait(2, 1500) == 2
        lab.kill(primary)
        lab.until("another primary", lambda: lab.primary(nodes), timeout_s=30)
        assert lab.primary(nodes) in rest[:2] and lab.primary(nodes).role == "primary"
        assert lab.worker("B", hold, nodes).join() == cut
        assert a.join()
        assert lab.primary(nodes).client().get("lock") == ("B" if cut else "A")
    assert len(e.timeline.spans("replication cut")) == 2 * cut
    lab.restart(primary, data="kept")
    lab.until("the old primary is taken back as a replica", lambda: primary.role == "replica", timeout_s=30)


def test_writes_that_an_isolated_primary_acknowledged_vanish_when_it_rejoins(lab):
    primary, *_ = nodes = lab.redis(replicas=2, sentinels=3)
    client = primary.client()
    client.rpush("ledger", "before")
    assert client.wait(2, 1500) == 2
    with lab.run("split brain") as e:
        lab.isolate(primary)
        lab.until(
            "another was promoted, while the old one acknowledged",
            lambda: client.rpush("ledger", "during") and lab.primary(nodes) not in (primary, None),
            timeout_s=30,
        )
        new = lab.primary(nodes)
        assert primary.role == new.role == "primary"
        assert client.rpush("ledger", "after") > 2
        assert new.client().lrange("ledger", 0, -1) == ["before"]
        lab.rejoin(primary)
        lab.until("it was taken back", lambda: primary.role == "replica", timeout_s=30)
        lab.until("it has the other's data", lambda: primary.client().lrange("ledger", 0, -1) == ["before"])
    assert [(s.lane, s.how) for s in e.timeline.spans("isolated")] == [("redis-1", "ended")]


@pytest.mark.parametrize("how, at_once", [("reset", True), ("black hole", False)])
def test_a_primary_that_needs_replicas_refuses_writes_once_it_notices_the_cut(lab, how, at_once):
    primary, replica = lab.redis(replicas=1, config={"min-replicas-to-write": 1, "min-replicas-max-lag": 1})
    client = primary.client()
    with lab.run("min-replicas"):
        lab.cut_replication(replica, how=how)
        taken = 0
        with pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS"):
            while taken < 10_000:
                client.set("k", "v")
                taken += 1
                lab.let_pass(0.001)
        assert (taken == 0) == at_once
        assert replica.client().get("k") is None
        lab.kill(primary)
        lab.promote(replica)
        assert not replica.client().exists("k")  # what was taken is lost


# -- replication: cut, late


def test_a_cut_hits_one_replica_and_ends_with_the_run(lab):
    primary, one, two = lab.redis(replicas=2)
    client = primary.client()
    with lab.run("cut") as e:
        lab.cut_replication(one)
        client.set("k", "v")
        assert client.wait(1, 1500) == 1
        assert two.client().get("k") == "v" and one.client().get("k") is None
        assert client.ping() and one.client().ping()
        assert one.name not in client.acl_users() and two.name in client.acl_users()
    lab.until("it caught up", lambda: one.client().get("k") == "v")
    assert [(s.lane, s.how, s.data["fault"]) for s in e.timeline.spans("replication cut")] == [
        ("redis-2", "ended", True)
    ]


def test_a_cut_outlives_a_restart_of_either_side(lab):
    primary, replica = lab.redis(replicas=1)
    with lab.run("cut"):
        lab.cut_replication(replica)
        lab.restart(primary, data="kept")
        lab.restart(replica, data="lost")
        assert replica.role == "replica"
        primary.client().set("k", "v")
        assert primary.client().wait(1, 1200) == 0  # it tries each second
        lab.heal_replication(replica)
        lab.until("it caught up", lambda: replica.client().get("k") == "v")


def test_a_late_replica_lags_and_loses_what_was_under_way(lab):
    primary, replica = lab.redis(replicas=1)
    client = primary.client()
    with lab.run("late") as e:
        lab.delay_replication(replica, 5)
        client.set("k", 1)
        assert client.wait(1, 1500) == 1
        lab.delay_replication(replica, 1500)
        client.set("k", 2)
        assert replica.client().get("k") == "1"  # 1.5 s against some milliseconds
        lab.until("it arrived", lambda: replica.client().get("k") == "2")
        client.set("k", 3)
        lab.kill(primary)
        lab.promote(replica)
        assert replica.client().get("k") == "2"
    assert [s.name for s in e.timeline.spans(lane="redis-2")] == ["replication 5 ms late", "replication 1500 ms late"]
    assert {s.how for s in e.timeline.spans(lane="redis-2")} == {"ended"}


def test_a_healed_replica_is_neither_cut_nor_late(lab):
    primary, replica = lab.redis(replicas=1)
    with lab.run("both"):
        lab.delay_replication(replica, 200)
        lab.cut_replication(replica, how="black hole")
        primary.client().set("k", 1)
        lab.heal_replication(replica)
        lab.until("it caught up", lambda: replica.client().get("k") == "1")
        assert replica.client().info("replication")["master_port"] == primary.port
        primary.client().set("k", 2)
        assert primary.client().wait(1, 1500) == 1
        lab.cut_replication(replica)
        with pytest.raises(LabError, match="so already: replication cut"):
            lab.cut_replication(replica, how="black hole")


def test_a_late_replica_that_follows_another_by_then_is_left_with_it(lab):
    old, new, late = lab.redis(replicas=2)
    with lab.run("by hand"):
        lab.delay_replication(late, 50)
        lab.kill(old)
        lab.promote(new)
        late.client().replicaof(new.host, new.port)
    assert late.client().info("replication")["master_port"] == new.port
    new.client().set("k", "v")
    lab.until("it follows", lambda: late.client().get("k") == "v")


def test_an_isolated_primary_of_a_plain_pair_serves_clients_only(lab):
    primary, replica = lab.redis(replicas=1)
    with lab.run("alone"):
        lab.isolate(primary)
        assert primary.client().set("k", "v")
        assert SENTINELS in primary.client().acl_users() and replica.name not in primary.client().acl_users()
        assert primary.client().wait(1, 100) == 0
    lab.until("it caught up", lambda: replica.client().get("k") == "v")


def test_a_cut_replica_of_a_cluster_is_promoted_without_the_last_writes(lab):
    nodes = lab.redis(cluster=6)
    client = lab.cluster(nodes, timeout_s=0.5)
    client.set("k", "old")
    owner = lab.primary(nodes, key="k")
    replica = nodes[nodes.index(owner) + 3]
    assert owner.client().wait(1, 1500) == 1
    with lab.run("failover"):
        lab.cut_replication(replica)
        client.set("k", "new")
        lab.kill(owner)
        lab.until("the replica took over", lambda: lab.primary(nodes, key="k") is replica, timeout_s=30)
        lab.until("the cluster serves it", lambda: client.get("k") == "old")


# -- the workers' own ways


def write_twice(w, nodes):
    r = w.sentinel(nodes, timeout_s=0.2).primary()
    r.set(w.name, 1)
    w.mark("wrote once")
    with w.span("writes"):
        r.set(w.name, 2)


def test_a_sentinel_client_goes_over_the_workers_links(lab):
    primary, *_ = nodes = lab.redis(replicas=1, sentinels=3)
    with lab.run("cut") as e:
        a, b = (lab.worker(name, write_twice, nodes).run_to("wrote once") for name in "AB")
        lab.cut(a, primary)
        with pytest.raises(redis.exceptions.TimeoutError):
            a.join()
        b.join()
    assert [(s.lane, s.outcome) for s in e.timeline.spans("writes")] == [("A", "unknown"), ("B", "ok")]
    assert primary.client().mget("A", "B") == ["1", "2"]
    assert lab.sentinel(nodes).replica().get("B") == "2"


def write_all(w, nodes):
    r = w.cluster(nodes, timeout_s=0.2)
    for key in "abcdefgh":
        r.set(key, 0)
    w.mark("wrote once")
    done = []
    for key in "abcdefgh":
        try:
            done.append(bool(r.set(key, 1)))
        except redis.exceptions.RedisError:
            done.append(False)
    return done


def test_a_cluster_client_goes_over_the_workers_links(lab):
    nodes = lab.redis(cluster=6)
    with lab.run("cut"):
        a, b = (lab.worker(name, write_all, nodes).run_to("wrote once") for name in "AB")
        lab.cut(a, nodes[0])
        behind_the_cut = [lab.primary(nodes, key=key) is nodes[0] for key in "abcdefgh"]
        assert any(behind_the_cut) and not all(behind_the_cut)
        assert a.join() == [not cut for cut in behind_the_cut]
        assert all(b.join())


def test_the_clients_of_groups_need_the_whole_group(lab):
    primary, replica, sentinel = lab.redis(replicas=1, sentinels=1)
    for nodes in ([sentinel], [primary, replica], []):
        with pytest.raises(LabError, match="needs all nodes"):
            lab.sentinel(nodes)
    with pytest.raises(LabError, match="members of a Cluster"):
        lab.cluster([primary, replica])


# -- what cannot be done


def test_each_misuse_is_told_in_three_lines_and_changes_nothing(lab):
    alone = lab.redis()
    primary, replica = lab.redis(replicas=1)
    with lab.run("misuse") as e:
        for verb, node, what in [
            (lab.cut_replication, alone, "replicates with nobody"),
            (lab.cut_replication, lab.worker("A", hold), "A replicates with nobody"),
            (lab.delay_replication, alone, "replicates with nobody"),
            (lab.isolate, alone, "replicates with nobody"),
            (lab.promote, alone, "replicates with nobody"),
            (lab.cut_replication, primary, "is no replica"),
            (partial(lab.cut_replication, how="replies"), replica, "like 'replies'"),
            (lab.promote, primary, "is no replica"),
            (lab.delay_replication, primary, "is no replica"),
            (lab.isolate, replica, "is a replica now"),
            (lab.heal_replication, replica, "Nothing is wrong"),
            (lab.rejoin, primary, "is not isolated"),
        ]:
            with pytest.raises(LabError, match=what) as told:
                verb(node, 10) if verb == lab.delay_replication else verb(node)
            assert len(str(told.value).splitlines()) == 3
        assert not e.timeline.lanes
        lab.cut_replication(replica)
        with pytest.raises(LabError, match="so already: replication cut"):
            lab.cut_replication(replica)
        lab.heal_replication(replica)
        lab.pause(primary)
        with pytest.raises(LabError, match="redis-2 is frozen, and a frozen server"):
            lab.cut_replication(replica)
        with pytest.raises(LabError, match="No primary of redis-3"):
            lab.delay_replication(replica, 10)
        lab.resume(primary)
        lab.kill(replica)
        with pytest.raises(LabError, match="redis-3 is dead"):
            lab.cut_replication(replica)
    assert len(e.timeline.spans("replication cut")) == 1
    primary.client().set("k", "v")
    lab.restart(replica, data="lost")
    lab.until("nothing is cut", lambda: replica.client().get("k") == "v")


def test_what_sentinels_and_members_of_a_cluster_would_undo_is_unsupported(lab):
    _, replica, _ = lab.redis(replicas=1, sentinels=1)
    member, *_, other = lab.redis(cluster=6)
    for verb, *arguments in [
        (lab.delay_replication, replica, 10),
        (partial(lab.cut_replication, how="black hole"), replica),
        (lab.promote, replica),
        (lab.delay_replication, other, 10),
        (lab.promote, other),
        (lab.isolate, member),
    ]:
        with pytest.raises(Unsupported) as told:
            verb(*arguments)
        assert len(str(told.value).splitlines()) == 3


def test_a_setting_that_is_wrong_shows_the_servers_own_words(lab):
    with pytest.raises(LabError, match="last words: .*no-such-setting"):
        lab.redis(replicas=1, config={"no-such-setting": "1"})
    assert not lab.nodes


# -- observers


def owners(e, lane):
    return [s.data["owner"] for s in e.timeline.spans("owner", lane)]


def test_observers_of_both_sides_of_a_failover_say_what_each_server_says(lab):
    primary, replica = lab.redis(replicas=1)
    old, new = (f"lock ({node.name} says)" for node in (primary, replica))
    with lab.run("failover") as e:
        lab.watch(primary, "lock"), lab.watch(replica, "lock")
        take(primary.client(), "A")
        lab.until("both saw A", lambda: owners(e, old) == owners(e, new) == ["A"])
        lab.cut_replication(replica)
        primary.client().set("lock", "B", px=60_000)
        lab.until("one saw B", lambda: owners(e, old) == ["A", "B"])
        lab.kill(primary)
        lab.until("one is silent", lambda: e.timeline.spans("no answer", old))
        lab.promote(replica)
        replica.client().delete("lock"), take(replica.client(), "C")
        lab.until("the other saw C", lambda: owners(e, new) == ["A", "C"])
        lab.restart(primary, data="kept")
        lab.until("it is heard again", lambda: e.timeline.spans("no answer", old)[0].how == "ended")
    ends = {s.data["owner"]: s.end for s in e.timeline.spans("owner", old)}
    assert ends["B"] <= e.timeline.spans("no answer", old)[0].start


def test_a_frozen_server_is_silent_and_its_list_is_told_once(lab):
    store = lab.redis()
    lane = "ledger (redis-1 says)"
    with lab.run("freeze") as e:
        store.client().rpush("ledger", "a", "b")
        lab.watch(store, "ledger")
        lab.pause(store)
        lab.until("it is silent", lambda: e.timeline.spans("no answer", lane))
        lab.resume(store)
        store.client().rpush("ledger", "c")
        lab.until("c was seen", lambda: e.timeline.marks("c", lane))
        store.client().lpop("ledger")
        lab.until("one is gone", lambda: e.timeline.marks("1 gone", lane))
    assert [m.name for m in e.timeline.marks(lane=lane)] == ["a", "b", "c", "1 gone"]
    assert e.timeline.marks("1 gone")[0].data["length"] == 2


def test_of_other_keys_the_observer_says_how_many_are_in_them(lab):
    store = lab.redis()
    client = store.client()
    fill = {
        "stream": lambda i: client.xadd("stream", {"i": i}),
        "zset": lambda i: client.zadd("zset", {f"m{i}": i}),
        "set": lambda i: client.sadd("set", i),
        "hash": lambda i: client.hset("hash", f"f{i}", i),
    }
    with lab.run("lengths") as e:
        for key in fill:
            lab.watch(store, key)
        for i in range(2):
            for add in fill.values():
                add(i)
            for key in fill:
                lane = f"{key} (redis-1 says)"
                lab.until(
                    f"{key} has {i + 1}",
                    lambda lane=lane, n=i + 1: [m.data["length"] for m in e.timeline.marks(lane=lane)][-1:] == [n],
                )
        client.delete(*fill)
        lab.until("all are gone", lambda: len(e.timeline.marks("0 in it")) == len(fill))


def test_members_of_a_cluster_say_what_they_hold_replicas_too(lab):
    nodes = lab.redis(cluster=6)
    owner = lab.primary(nodes, key="lock")
    replica, other = nodes[nodes.index(owner) + 3], nodes[nodes.index(owner) - 1]
    with lab.run("watch") as e:
        for node in (owner, replica, other):
            lab.watch(node, "lock")
        take(lab.cluster(nodes), "A")
        for node in (owner, replica):
            lab.until(f"{node.name} says so", lambda n=node: owners(e, f"lock ({n.name} says)") == ["A"])
    assert not owners(e, f"lock ({other.name} says)")
    assert not e.timeline.spans("no answer")


def test_a_sentinel_says_whom_it_takes_for_the_primary(lab):
    primary, replica, sentinel = nodes = lab.redis(replicas=1, sentinels=1)
    lane = f"main ({sentinel.name} says)"
    with lab.run("failover") as e:
        lab.watch(sentinel, "main")
        with pytest.raises(LabError):
            lab.watch(sentinel, "lock")
        lab.kill(primary)
        lab.until("another primary", lambda: lab.primary(nodes) is replica, timeout_s=30)
        lab.until("it says so", lambda: owners(e, lane) == [primary.name, replica.name])


# -- the end

GROUPS = ["lab.redis(5)", "lab.redis(replicas=2)", "lab.redis(replicas=2, sentinels=3)", "lab.redis(cluster=6)"]


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_left_of_a_killed_kernel(group):
    before, left = processes_left(f"nodes = {group}; lab.pause(nodes[0])")
    assert sum(name.startswith("redis-server") for name in before) >= 3
    assert not left
