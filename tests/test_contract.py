"""The contract of drivers and servers: each fault that is claimed does what it says, at the server and at a client.

Nobody trusts a verb's return here. What a fault does is looked at twice: at the server, past all links, and at a worker
that was connected before. A new server is a row of SERVERS; `--driver docker` runs all of it on containers.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import cloudpickle
import pytest
from kernels import state

from labkit import Lab, programs
from labkit.processes import descendants

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LINK_POWERS = {"cut", "delay"}
NODE_POWERS = {"pause", "kill", "restart"}
# The powers that only some servers have are tried beside those servers.
ELSEWHERE = {
    "cut_replication": "test_redis", "delay_replication": "test_redis", "isolate": "test_redis",
    "cut_peers": "test_etcd", "clock": "test_clock",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One server: what it needs, how to make a node whose data survives a kill, and one value in it."""

    kind: str
    needs: tuple[str, ...]
    make: Callable  # lab -> node
    put: Callable  # (client, text) -> None; the value is on disk when it returns
    get: Callable  # client -> text or None
    close: Callable = lambda client: client.close()
    options: dict = field(default_factory=dict)  # of its client
    one_request: bool = True  # put sends all it has to say before it needs an answer


def _redis(lab):
    return lab.redis(config={"appendonly": "yes", "appendfsync": "always"})


def _postgres_put(db, text):
    db.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v text)")
    db.execute("INSERT INTO t VALUES (1, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v", [text])


def _postgres_get(db):
    if db.execute("SELECT to_regclass('t')").fetchone()[0] is None:
        return None
    row = db.execute("SELECT v FROM t WHERE id = 1").fetchone()
    return row and row[0]


def _etcd_get(client):
    value, _ = client.get("k")
    return value and value.decode()


def _zookeeper_put(client, text):
    if client.exists("/k"):
        client.set("/k", text.encode())
    else:
        client.create("/k", text.encode())


def _zookeeper_get(client):
    return client.get("/k")[0].decode() if client.exists("/k") else None


def _rabbitmq_broker(lab):
    """RabbitMQ 4.0 may lose a durable queue that was declared within two seconds before a kill: this one survived."""
    broker = lab.rabbitmq()
    for _ in range(10):
        with contextlib.closing(broker.client(timeout_s=10)) as client:
            _rabbitmq_put(client, "first")
        lab.kill(broker)
        lab.restart(broker, data="kept")
        with contextlib.closing(broker.client(timeout_s=10)) as client:
            if _rabbitmq_get(client) == "first":
                return broker
    raise AssertionError("none of ten queues survived")


def _rabbitmq(client):
    channel = client.channel()
    channel.confirm_delivery()
    channel.queue_declare("k", durable=True, arguments={"x-max-length": 1})
    return channel


def _rabbitmq_put(client, text):
    from pika import BasicProperties

    with _rabbitmq(client) as channel:
        channel.basic_publish("", "k", text.encode(), BasicProperties(delivery_mode=2))


def _rabbitmq_get(client):
    with _rabbitmq(client) as channel:
        method, _, body = channel.basic_get("k")
        if method:
            channel.basic_nack(method.delivery_tag, requeue=True)
        return body and body.decode()


SERVERS = [
    Row("redis", ("redis-server",), _redis, lambda r, text: r.set("k", text), lambda r: r.get("k")),
    Row("postgres", ("postgres",), lambda lab: lab.postgres(), _postgres_put, _postgres_get, one_request=False),
    Row("etcd", ("etcd",), lambda lab: lab.etcd(), lambda client, text: client.put("k", text), _etcd_get),
    Row(
        "zookeeper", ("zookeeper", "java"), lambda lab: lab.zookeeper(), _zookeeper_put, _zookeeper_get,
        lambda client: client.stop(), {"timeout": 2.0}, one_request=False,
    ),
    pytest.param(
        Row(
            "rabbitmq", ("rabbitmq-server",), _rabbitmq_broker, _rabbitmq_put, _rabbitmq_get,
            one_request=False,
        ),
        marks=pytest.mark.long,  # each start takes seconds
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(driver):
    with Lab("contract", driver=driver) as lab:
        assert repr(lab) == f"Lab(contract, {driver}, 0 nodes)"
        yield lab


@pytest.fixture(scope="module", params=SERVERS, ids=lambda row: row.kind)
def row(request, driver):
    if driver == "docker":  # its images are all there, or the test fails: it is run where they were made ready
        return request.param
    missing = [name for name in request.param.needs if not programs.find(name)]
    if missing:
        pytest.skip(f"not on this machine: {missing}")
    return request.param


@pytest.fixture(scope="module")
def shared(lab, row):
    return row.make(lab)


@pytest.fixture
def node(lab, row, shared):
    """A node that runs and holds the value "before"."""
    if shared.state != "running":
        lab.restart(shared, data="lost")
    put_past_links(row, shared, "before")
    return shared


def put_past_links(row, node, text):
    client = node.client(timeout_s=10, **row.options)
    try:
        row.put(client, text)
    finally:
        row.close(client)


def at_server(row, node, timeout_s=10.0):
    """The value, by the server's own word, past all links."""
    client = node.client(timeout_s=timeout_s, **row.options)
    try:
        return row.get(client)
    finally:
        row.close(client)


def puts(w, row, node, text, timeout_s):
    """Connects; then writes once, and says how that ended."""
    while True:
        try:
            client = w.client(node, timeout_s=timeout_s, **row.options)
            row.get(client)
            break
        except Exception:  # a short time on a slow machine; that there is an end to it is up to who waits
            w.work(0.01)
    w.mark("connected")
    start = time.monotonic()
    try:
        with w.span("puts"):
            row.put(client, text)
        return "done", time.monotonic() - start
    except Exception as error:
        return type(error).__name__, time.monotonic() - start


def put(lab, row, node, name, text, timeout_s=10.0):
    return lab.worker(name, puts, row, node, text, timeout_s)


def processes(node):
    return [node.pid, *descendants(node.pid)]


def faults(e, lane):
    return [(span.name, span.how) for span in e.timeline.spans(lane=lane) if span.data.get("fault")]


def test_every_power_that_is_claimed_is_tried(lab):
    known = NODE_POWERS | LINK_POWERS | set(ELSEWHERE)
    claimed = {power for power in [*known, "fly"] if lab.can(power)}
    assert NODE_POWERS | LINK_POWERS <= claimed <= known
    for module in ELSEWHERE.values():
        assert os.path.exists(os.path.join(os.path.dirname(__file__), f"{module}.py"))


def test_nothing_broken(lab, row, node):
    with lab.run("nothing") as e:
        how, _ = put(lab, row, node, "A", "from A").join()
    assert how == "done" and at_server(row, node) == "from A"
    assert [s.outcome for s in e.timeline.spans("puts")] == ["ok"] and faults(e, "A") == faults(e, node.name) == []


def test_pause(lab, row, node):
    with lab.run("pause") as e:
        a = put(lab, row, node, "A", "from A", timeout_s=0.3).run_to("connected")
        lab.pause(node)
        assert {state(pid) for pid in processes(node)} <= {"T", "Z"}
        with pytest.raises(Exception):  # noqa: B017 -- each client has a class of its own
            at_server(row, node, timeout_s=0.2)
        how, _ = a.join()
        assert how != "done" and [s.outcome for s in e.timeline.spans("puts")] == ["unknown"]
        lab.resume(node)
        assert "T" not in {state(pid) for pid in processes(node)}
        lab.until("it serves again", lambda: at_server(row, node) in ("before", "from A"))
        assert put(lab, row, node, "B", "from B").join()[0] == "done"
        lab.until("B's word stands", lambda: at_server(row, node) == "from B")
    assert faults(e, node.name) == [("frozen", "ended")]


def test_kill_and_restart_with_its_data(lab, row, node):
    with lab.run("kill") as e:
        a = put(lab, row, node, "A", "from A", timeout_s=0.5).run_to("connected")
        before = processes(node)
        lab.kill(node)
        assert {state(pid) for pid in before} == {""}
        with pytest.raises(Exception):  # noqa: B017
            at_server(row, node, timeout_s=0.2)
        how, _ = a.join()
        assert how != "done" and node.state == "dead"
        lab.restart(node, data="kept")
        assert at_server(row, node) == "before"
        assert put(lab, row, node, "B", "from B").join()[0] == "done" and at_server(row, node) == "from B"
        assert not set(processes(node)) & set(before)
    assert faults(e, node.name) == [("dead", "ended")]


def test_restart_without_its_data(lab, row, node):
    with lab.run("kill"):
        lab.kill(node)
        lab.restart(node, data="lost")
        assert at_server(row, node) is None
        assert put(lab, row, node, "B", "from B").join()[0] == "done" and at_server(row, node) == "from B"


@pytest.mark.parametrize("how", ["black hole", "reset", "replies"])
def test_cut(lab, row, node, how):
    with lab.run("cut") as e:
        a = put(lab, row, node, "A", "from A", timeout_s=0.3).run_to("connected")
        b = put(lab, row, node, "B", "from B").run_to("connected")
        lab.cut(a, node, how=how)
        ended, _ = a.join()
        assert ended != "done"
        arrives = how == "replies" and row.one_request
        assert at_server(row, node) == ("from A" if arrives else "before")
        assert b.join()[0] == "done" and at_server(row, node) == "from B", "B's way is whole"
        lab.heal(a, node)
        assert put(lab, row, node, "C", "from C").join()[0] == "done"
    assert [s.outcome for s in e.timeline.spans("puts", "A")] == ["unknown"]
    assert [how for _, how in faults(e, "A")] == ["ended"] and faults(e, node.name) == []
    with lab.run("healed"):
        assert put(lab, row, node, "A", "again").join()[0] == "done" and at_server(row, node) == "again"


def test_delay(lab, row, node):
    with lab.run("delay"):
        a = put(lab, row, node, "A", "from A").run_to("connected")
        lab.delay(a, node, 100)
        how, took_s = a.join()
        assert how == "done" and took_s >= 0.2, "100 ms each way"
        assert at_server(row, node) == "from A"
        lab.delay("B", node, 60_000)
        lab.heal("B", node)
        assert put(lab, row, node, "B", "from B").join()[0] == "done"


def test_leaving_the_run_heals_all_but_death(lab, row, node):
    with lab.run("left broken"):
        a = put(lab, row, node, "A", "from A").run_to("connected")
        lab.cut(a, node)
        lab.delay("B", node, 60_000)
        lab.pause(node)
    lab.until("it serves", lambda: at_server(row, node) == "before")
    with lab.run("whole again"):
        for name in "AB":
            assert put(lab, row, node, name, f"from {name}").join()[0] == "done"
        assert at_server(row, node) == "from B"
        lab.kill(node)
    assert node.state == "dead"
    lab.restart(node, data="kept")
    assert at_server(row, node) == "from B"
