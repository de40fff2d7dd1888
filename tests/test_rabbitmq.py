import sys
from pathlib import Path

import cloudpickle
import pika
import pytest
from crash import processes_left
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from labkit import Lab, LabError, programs
from labkit.processes import descendants, stopped

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are
pytestmark = pytest.mark.skipif(not programs.find("rabbitmq-server"), reason="RabbitMQ is not on this machine")

KEPT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def lab():
    """One for all tests: a broker takes seconds to start."""
    with Lab("rabbitmq") as lab:
        yield lab


@pytest.fixture(scope="module")
def only_broker(lab):
    return lab.rabbitmq()


@pytest.fixture
def broker(lab, only_broker):
    """The broker, with an empty durable queue 'q' and nothing broken."""
    with only_broker.client() as connection:
        channel = connection.channel()
        channel.queue_delete("q")
        channel.queue_declare("q", durable=True)
    return only_broker


def length(broker) -> int:
    with broker.client() as connection:
        return connection.channel().queue_declare("q", passive=True).method.message_count


def family(node) -> list[int]:
    return [node.pid, *descendants(node.pid)]


def publish(channel, text="order"):
    channel.basic_publish("", "q", text.encode(), KEPT)


def test_it_serves_as_soon_as_it_is_there(broker):
    with broker.client() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        publish(channel)
        frame, _, body = channel.basic_get("q")
        assert body == b"order"
        channel.basic_ack(frame.delivery_tag)
    assert length(broker) == 0


@pytest.mark.local
def test_it_listens_on_loopback_only(broker):
    loopback = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
    ports = {f"{port:04X}" for port in broker.ports.values()}
    lines = [line.split() for v in ("tcp", "tcp6") for line in Path(f"/proc/net/{v}").read_text().splitlines()[1:]]
    heard = [fields[1].split(":") for fields in lines if fields[3] == "0A"]  # it listens
    assert {port for _, port in heard} >= ports
    assert {host for host, port in heard if port in ports} <= loopback


def send(w, broker):
    connection = w.client(broker, timeout_s=0.5)
    channel = connection.channel()
    channel.confirm_delivery()
    w.mark("connected")
    with w.span("sends"):
        publish(channel)


@pytest.mark.parametrize("how, then", [("black hole", 0), ("replies", 1)])
def test_a_cut_link_leaves_the_outcome_unknown(lab, broker, how, then):
    with lab.run("cut") as e:
        a = lab.worker("A", send, broker).run_to("connected")
        lab.cut(a, broker, how=how)
        with pytest.raises(AMQPConnectionError):
            a.join()
        assert [s.outcome for s in e.timeline.spans("sends")] == ["unknown"]
        assert length(broker) == then
        lab.heal(a, broker)
        lab.worker("B", send, broker).join()
    assert length(broker) == then + 1


def consume(w, broker, heartbeat=None):
    channel = w.client(broker, timeout_s=0.5, heartbeat=heartbeat).channel()
    for frame, _, body in channel.consume("q"):  # waits much longer than timeout_s, if it must
        w.mark("got", text=body.decode())
        channel.basic_ack(frame.delivery_tag)
        return body.decode()


def test_waiting_for_a_message_is_no_waiting_for_an_answer(lab, broker):
    with lab.run("wait") as e:
        a = lab.worker("A", consume, broker).start()
        lab.until("it waits", lambda: _consumers(broker) == 1)
        lab.let_pass(0.8)
        with broker.client() as connection:
            publish(connection.channel(), "late")
        assert a.join() == "late"
    assert e.timeline.marks("got")[0].data["text"] == "late"


def _consumers(broker) -> int:
    with broker.client() as connection:
        return connection.channel().queue_declare("q", passive=True).method.consumer_count


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_what_a_consumer_did_not_confirm_comes_again(lab, broker, fault):
    with broker.client() as connection:
        publish(connection.channel(), "precious")
    with lab.run("redelivery"):
        a = lab.worker("A", consume, broker, 1).run_to("got")
        assert length(broker) == 0
        getattr(lab, fault)(a)
        assert lab.worker("B", consume, broker).join() == "precious"


def test_a_pause_stops_all_of_it(lab, broker):
    with lab.run("freeze") as e:
        a = lab.worker("A", send, broker).run_to("connected")
        lab.watch(broker, "q")
        lab.pause(broker)
        assert all(stopped(pid) for pid in family(broker))
        with pytest.raises(AMQPConnectionError):
            a.join()
        lane = "q (rabbitmq-1 says)"
        lab.until("it is silent", lambda: e.timeline.spans("no answer", lane))
        lab.resume(broker)
        lab.until("it is back", lambda: e.timeline.spans("no answer", lane)[0].how == "ended")


def test_the_observer_tells_how_many_wait(lab, broker):
    with lab.run("watch") as e:
        lab.watch(broker, "q")
        lab.watch(broker, "no such one")
        with broker.client() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            lane = "q (rabbitmq-1 says)"
            for n in range(1, 4):
                publish(channel)
                lab.until(f"{n} wait", lambda n=n: e.timeline.marks(lane=lane)[-1].data["length"] == n)
            channel.queue_purge("q")
            lab.until("none waits", lambda: e.timeline.marks(lane=lane)[-1].data["length"] == 0)
    assert [m.name for m in e.timeline.marks(lane=lane)] == ["0", "1", "2", "3", "0"]
    assert [m.name for m in e.timeline.marks(lane="no such one (rabbitmq-1 says)")] == ["no such queue"]


def test_messages_have_no_lease(lab, broker):
    with pytest.raises(LabError, match="TTL"):
        lab.wait_gone(broker, "q")


def test_a_restart_keeps_what_was_confirmed_or_loses_all(lab, broker):
    with broker.client() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        publish(channel)
    pids = family(broker)
    lab.kill(broker)
    assert len(pids) > 1 and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with pytest.raises(AMQPConnectionError):
        broker.client()
    lab.restart(broker, data="kept")
    assert length(broker) == 1
    lab.restart(broker, data="lost")
    with pytest.raises(ChannelClosedByBroker):
        length(broker)


def test_nothing_is_left_of_a_killed_kernel():
    before, left = processes_left("mq = lab.rabbitmq(); lab.pause(mq)")
    assert "epmd" in before and "beam.smp" in before
    assert not left
