import sys
from pathlib import Path

import cloudpickle
import confluent_kafka
import pytest
from confluent_kafka.admin import NewTopic
from crash import processes_left

import labkit
from labkit import Lab, Unsupported, programs
from labkit.servers import kafka
from labkit.session import home

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

JARS = Path(labkit.__file__).parent.parent / ".labkit" / kafka._jars().name
here = pytest.mark.skipif(not (JARS.exists() and programs.find("java")), reason="no Kafka: make setup-kafka")


@pytest.fixture(scope="module")
def jars(labkit_home):
    (home() / JARS.name).symlink_to(JARS)
    yield
    (home() / JARS.name).unlink()


@pytest.fixture(scope="module")
def lab(jars):
    """One for all tests: a broker takes seconds to start."""
    with Lab("kafka") as lab:
        yield lab


@pytest.fixture(scope="module")
def broker(lab):
    return lab.kafka()


def new_topic(broker, name: str) -> str:
    admin = broker.client().admin()
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    return name


def send(producer, topic, text) -> list:
    """[what became of it: None, or the error]"""
    told = []
    producer.produce(topic, text.encode(), on_delivery=lambda error, message: told.append(error))
    producer.flush(20)
    return told


def receive(consumer, topic, n: int) -> list[str]:
    consumer.subscribe([topic])
    got = [consumer.poll(20) for _ in range(n)]
    return [message and message.value().decode() for message in got]


@pytest.mark.local
def test_without_its_server_it_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    with Lab("none") as lab, pytest.raises(Unsupported, match="make setup-kafka") as error:
        lab.kafka()
    assert len(str(error.value).splitlines()) == 3
    assert not lab.nodes


@here
def test_it_serves_as_soon_as_it_is_there(broker):
    client = broker.client()
    topic = new_topic(broker, "first")
    assert send(client.producer(), topic, "hello") == [None]
    assert receive(client.consumer(topic), topic, 1) == ["hello"]


def relay(w, broker, topic, commit):
    consumer = w.client(broker, direct=True).consumer(topic, {"session.timeout.ms": 1000})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    if commit:
        consumer.commit(message, asynchronous=False)
    w.mark("got", text=message.value().decode())
    return message.value().decode()


@here
@pytest.mark.parametrize("commit, then", [(False, "one"), (True, "two")])
def test_a_killed_consumer_s_message_comes_again_unless_it_was_committed(lab, broker, commit, then):
    topic = new_topic(broker, f"relay-{commit}")
    producer = broker.client().producer()
    assert send(producer, topic, "one") + send(producer, topic, "two") == [None, None]
    with lab.run("kill a consumer"):
        a = lab.worker("A", relay, broker, topic, commit).run_to("got")
        lab.kill(a)
        assert lab.worker("B", relay, broker, topic, commit).join() == then


@here
def test_no_link_leads_to_it(lab, broker):
    with lab.run("links"):
        a = lab.worker("A", lambda w, broker: w.client(broker), broker)
        with pytest.raises(Unsupported, match="direct=True"):
            a.join()
        b = lab.worker("B", lambda w: None)
        for fault in (lambda: lab.cut(b, broker), lambda: lab.delay(b, broker, 5)):
            with pytest.raises(Unsupported, match="No link"):
                fault()
        lab.cut(b)  # all ways that there are


@here
def test_a_frozen_broker_confirms_nothing(lab, broker):
    topic = new_topic(broker, "frozen")
    producer = broker.client(timeout_s=1).producer()
    assert send(producer, topic, "before") == [None]
    with lab.run("freeze"):
        lab.pause(broker)
        (error,) = send(producer, topic, "lost?")
        assert error.code() == confluent_kafka.KafkaError._MSG_TIMED_OUT
        lab.resume(broker)
        assert send(broker.client().producer(), topic, "after") == [None]


@here
def test_a_restart_keeps_what_was_confirmed_or_loses_all(lab, broker):
    topic = new_topic(broker, "kept")
    assert send(broker.client().producer(), topic, "precious") == [None]
    lab.kill(broker)
    with pytest.raises(confluent_kafka.KafkaException):
        broker.client(timeout_s=0.5).admin().list_topics(timeout=1)
    lab.restart(broker, data="kept")
    assert receive(broker.client().consumer(topic), topic, 1) == ["precious"]
    lab.restart(broker, data="lost")
    assert topic not in broker.client().admin().list_topics(timeout=20).topics


@here
def test_a_follower_goes_on_when_the_leader_dies_and_has_what_both_confirmed(lab):
    first, second = lab.kafka(2)
    admin = first.client().admin()
    pair = NewTopic("pair", 1, replica_assignment=[[2, 1]], config={"min.insync.replicas": "1"})
    admin.create_topics([pair])["pair"].result(20)

    def in_sync():
        place = admin.list_topics("pair", timeout=5).topics["pair"].partitions[0]
        return place.leader, sorted(place.isrs)

    lab.until("both have it", lambda: in_sync() == (2, [1, 2]), timeout_s=30)
    assert send(second.client().producer({"acks": "all"}), "pair", "precious") == [None]
    lab.kill(second)
    lab.until("the follower leads", lambda: in_sync() == (1, [1]), timeout_s=30)
    assert send(first.client().producer({"acks": "all"}), "pair", "alone") == [None]
    consumer = first.client().consumer("onlooker")
    consumer.assign([confluent_kafka.TopicPartition("pair", 0, 0)])
    assert [consumer.poll(20).value() for _ in range(2)] == [b"precious", b"alone"]
    consumer.close()


@here
def test_nothing_is_left_of_a_killed_kernel(jars):
    before, left = processes_left("broker = lab.kafka(); lab.pause(broker)")
    assert before.count("java") == 1
    assert not left
