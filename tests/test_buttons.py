"""Rows and buttons: every verb in a learner's words, possible when it is, and what it says about who is how."""

import sys

import cloudpickle
import pytest

from labkit import Lab, LabError, buttons

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def plain():
    """One server."""
    with Lab("plain buttons") as lab:
        lab.redis()
        yield lab


@pytest.fixture(scope="module")
def pair():
    """A primary and a replica that nobody watches."""
    with Lab("pair buttons") as lab:
        lab.redis(replicas=1)
        yield lab


@pytest.fixture
def run(plain):
    with plain.run("buttons") as e:
        yield e


def steps(w):
    w.mark("one")
    w.mark("two")


def fails(w):
    raise ValueError("on purpose")


def row(lab, name) -> buttons.Row:
    return next(row for row in buttons.rows(lab) if row.name == name)


def told(lab, name) -> tuple:
    seen = row(lab, name)
    return seen.state, seen.words, seen.role, seen.details


def possible(lab, name) -> set[str]:
    return {button.words for button in row(lab, name).buttons if button.possible}


def press(lab, words):
    buttons.find(lab, words).do()


def ended(lab, worker):
    lab.until("it has ended", lambda: row(lab, worker.name).state in ("done", "dead"))


# -- states
def test_a_worker_from_its_start_to_its_end(plain, run):
    a = plain.worker("A", steps)
    assert told(plain, "A") == ("ready", "not started", "", ())
    assert possible(plain, "A") >= {"start A", "freeze A", "kill A"}
    a.run_to("one")
    assert told(plain, "A") == ("held", "held", "", ("at 'one'",))
    press(plain, "freeze A")
    assert told(plain, "A") == ("frozen", "frozen", "", ("at 'one'",))
    assert possible(plain, "A") >= {"wake A", "kill A"} and "freeze A" not in possible(plain, "A")
    press(plain, "wake A")
    ended(plain, a)  # nobody joined it
    assert told(plain, "A") == ("done", "done", "", ())
    assert possible(plain, "A") == set()
    a.join()
    assert told(plain, "A") == ("done", "done", "", ())


def test_a_worker_that_raised_or_was_killed(plain, run):
    a, b = plain.worker("A", fails).start(), plain.worker("B", steps).run_to("one")
    ended(plain, a)
    assert told(plain, "A") == ("dead", "raised", "", ("ValueError",))
    press(plain, "kill B")
    assert told(plain, "B") == ("dead", "killed", "", ())
    assert b.state == "killed" and possible(plain, "B") == set()
    with pytest.raises(ValueError):
        a.join()
    assert told(plain, "A") == ("dead", "raised", "", ("ValueError",))


def test_a_worker_that_runs(plain, run):
    plain.worker("A", forever).start()
    assert told(plain, "A") == ("running", "running", "", ())
    assert "start A" not in possible(plain, "A")


def forever(w):
    while True:
        w.work(0.01)


def test_a_node(plain):
    assert told(plain, "redis-1") == ("running", "running", "", ())
    assert not any("restart" in words for words in possible(plain, "redis-1"))
    press(plain, "freeze redis-1")
    assert told(plain, "redis-1")[:2] == ("frozen", "frozen")
    press(plain, "wake redis-1")
    press(plain, "kill redis-1")
    assert told(plain, "redis-1")[:2] == ("dead", "dead")
    assert possible(plain, "redis-1") == {"restart redis-1, data kept", "restart redis-1, data lost"}
    press(plain, "restart redis-1, data lost")
    assert told(plain, "redis-1")[:2] == ("running", "running")
    assert all(button.hides == button.words.startswith("restart") for button in row(plain, "redis-1").buttons)


# -- every button has its effect, and its way back
def faults(lab) -> set:
    return set(lab._faults)


@pytest.mark.parametrize(
    ("words", "fault", "back"),
    [
        ("cut A from redis-1", "cut from redis-1", "heal A to redis-1"),
        ("lose answers to A from redis-1", "cut from redis-1 (replies)", "heal A to redis-1"),
        ("slow A to redis-1", "200 ms late to redis-1", "heal A to redis-1"),
    ],
)
def test_links(plain, run, words, fault, back):
    plain.worker("A", steps)
    assert back not in possible(plain, "A")
    press(plain, words)
    assert faults(plain) == {("A", fault)} and told(plain, "A")[3] == (fault,)
    assert back in possible(plain, "A") and words not in possible(plain, "A")
    press(plain, back)
    assert faults(plain) == set()


@pytest.mark.parametrize(
    ("words", "fault", "back"),
    [
        ("jump the clock of redis-1", "clock +60 s", "set the clock of redis-1 right"),
        ("run the clock of redis-1 fast", "clock x10", "set the clock of redis-1 right"),
    ],
)
def test_clocks(plain, words, fault, back):
    if not plain.can("clock"):
        assert not any("clock" in button.words for button in row(plain, "redis-1").buttons)
        return
    press(plain, words)
    assert told(plain, "redis-1")[3] == (fault,) and back in possible(plain, "redis-1")
    press(plain, back)
    assert faults(plain) == set() and back not in possible(plain, "redis-1")


@pytest.mark.parametrize(
    ("words", "who", "back"),
    [
        ("cut replication to redis-2", "redis-2", "heal replication to redis-2"),
        ("slow replication to redis-2", "redis-2", "heal replication to redis-2"),
        ("isolate redis-1", "redis-1", "rejoin redis-1"),
    ],
)
def test_replication(pair, words, who, back):
    assert words in possible(pair, who) and back not in possible(pair, who)
    press(pair, words)
    assert len(faults(pair)) == 1 and told(pair, who)[3]
    assert back in possible(pair, who) and words not in possible(pair, who)
    press(pair, back)
    assert faults(pair) == set()


def test_the_primary_fails_and_the_replica_is_promoted(pair):
    assert row(pair, "").details == ("primary: redis-1",)
    assert [told(pair, name)[2] for name in ("redis-1", "redis-2")] == ["primary", "replica"]
    press(pair, "fail the primary")
    assert told(pair, "redis-1")[:3] == ("dead", "dead", "was primary")
    assert row(pair, "").details == ("primary: none now",) and possible(pair, "") == set()
    with pytest.raises(LabError, match="no primary to fail"):
        press(pair, "fail the primary")
    press(pair, "promote redis-2")
    assert row(pair, "").details == ("primary: redis-2",)
    press(pair, "restart redis-1, data kept")


def test_a_server_alone_has_no_primary_to_fail(plain):
    assert "" not in [row.name for row in buttons.rows(plain)]


def test_with_sentinels_nobody_promotes_by_hand():
    with Lab("watched buttons") as lab:
        lab.redis(replicas=1, sentinels=3)
        words = {button.words for row in buttons.rows(lab) for button in row.buttons}
        assert "fail the primary" in words and "isolate redis-1" in words
        assert not any(word.startswith(("promote", "slow replication")) for word in words)


def test_each_server_is_asked_once(pair, monkeypatch):
    asked = []
    monkeypatch.setattr(buttons, "ask_roles", lambda lab: asked.append(1) or {node.name: "x" for node in lab.nodes})
    buttons.rows(pair)
    assert asked == [1]
    buttons.rows(pair, roles={})
    assert asked == [1]


# -- words
def test_words_and_their_synonyms(plain, run):
    a = plain.worker("A", steps).run_to("one")
    press(plain, "pause A")
    assert a.frozen
    press(plain, "resume A")
    assert not a.frozen


def test_words_that_no_button_has(plain):
    for words in ("freeze B", "melt redis-1", "", "freeze"):
        with pytest.raises(LabError) as caught:
            buttons.find(plain, words)
        lines = str(caught.value).splitlines()
        assert len(lines) == 3 and "freeze redis-1" in lines[2]


def test_a_closed_lab_has_no_buttons():
    with Lab("closed buttons") as lab:
        lab.redis()
    with pytest.raises(LabError, match="none, the laboratory is closed"):
        buttons.find(lab, "freeze redis-1")


def test_no_words_stand_on_two_buttons(pair):
    with pair.run("many"):
        for name in ("A", "B"):
            pair.worker(name, steps)
        words = [button.words for row in buttons.rows(pair) for button in row.buttons]
    assert len(words) == len(set(words)) > 20
