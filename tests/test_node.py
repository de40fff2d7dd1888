import pickle
import re

import pytest
import redis

from labkit import Lab


@pytest.fixture(scope="module")
def lab():
    with Lab("nodes") as lab:
        yield lab


def test_what_it_shows_and_its_state_in_a_word(lab):
    store = lab.redis()
    assert re.fullmatch(rf"{store.name} single 127\.0\.0\.1:{store.port} running", repr(store))
    lab.pause(store)
    assert repr(store).endswith(" frozen") and repr(store) in repr(lab.nodes)
    lab.resume(store)
    assert repr(store).endswith(" running")
    lab.kill(store)
    assert repr(store).endswith(" dead")
    lab.restart(store, data="lost")
    assert repr(store).endswith(" running")


def test_it_is_closed_with_its_lab():
    with Lab("closes") as lab:
        store = lab.redis()
    assert store.state == "closed" and repr(store).endswith(" closed")


def test_it_travels_as_an_address(lab):
    store = lab.redis()
    there = pickle.loads(pickle.dumps(store))
    assert (there.name, there.host, there.port, there.kind) == (store.name, store.host, store.port, "redis")
    assert there._lab is None and there.client().ping()


def test_its_client_never_retries(lab):
    store = lab.redis()
    client = store.client(timeout_s=1)
    assert client.get_retry().get_retries() == 0 and client.ping()
    lab.pause(store)
    with pytest.raises(redis.exceptions.TimeoutError):
        client.set("k", "v")
    lab.resume(store)
    lab.until("the command came late", lambda: store.client().get("k") == "v")
    assert store.client().info("commandstats")["cmdstat_set"]["calls"] == 1


def test_its_client_takes_options(lab):
    store = lab.redis()
    store.client(db=3).set("k", "v")
    assert store.client().get("k") is None and store.client(db=3, decode_responses=False).get("k") == b"v"


def test_it_has_no_port_before_it_was_started(lab):
    from labkit.node import Node

    node = Node(lab, "redis-99", "redis")
    assert (node.port, node.state, node.log) == (0, "new", "")
