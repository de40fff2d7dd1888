"""The league: a lock that is none is caught, a clean run stays clean, and what it tells is what happened."""

import json
import sys
from dataclasses import replace
from functools import partial

import cloudpickle
import pytest

from labkit import Lab, LabError, check, recall
from labkit import __main__ as command_line
from labkit.league import entrants, making, season, servers, table
from labkit.league.match import Match, Scene, Tally, between, without_service
from labkit.league.plan import FAULTS, IN_THE_LOCK, THOUGHT, Step, plan
from labkit.record import LAB, Event, Timeline

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a notebook's functions are

ACCOUNTS = recall("11-decisions", "ACCOUNTS")
# The planted fault: an account that is called sure, and looks at the token only when it is written.
FORGETFUL = {**ACCOUNTS, "registered on reads": ACCOUNTS["checked on writes"]}
ORDER = (0, 1, 2, 3)
FREEZE, LATE = (Step(fault, THOUGHT, ORDER, 0.1, 0.1) for fault in ("freeze", "long freeze"))


class NoLock:
    """The planted fault: it lets everybody in."""

    fence = None

    def __init__(self, r, key, ttl_ms, step):
        pass

    def acquire(self):
        return True

    def release(self):
        return True


class Single(servers.Servers):
    """One Redis that comes back empty."""

    def start(self, lab):
        return [lab.redis()]

    def fresh(self, nodes):
        nodes[0].client().flushall()

    def fail_over(self, lab, nodes):
        lab.restart(nodes[0], data="lost")
        return nodes[0]

    def mend(self, lab, nodes, victim):
        pass


def on_single(recipes, w, nodes, ttl_ms, step, bank):
    return recipes[0](w.client(nodes[0]), "lock", ttl_ms, step=step)


SINGLE = Single()


def entrant(lock_class, counts=False) -> entrants.Entrant:
    return entrants.Entrant(lock_class.__name__, SINGLE, partial(on_single, (lock_class,)), counts)


@pytest.fixture(scope="module")
def lab():
    with Lab("league-test") as lab:
        yield lab


@pytest.fixture(scope="module")
def group(lab):
    return SINGLE.start(lab), lab.postgres()


def playing(lab, group, lock_class, steps, accounts=ACCOUNTS, ttl_ms=600, counts=False) -> Tally:
    return Match(lab, entrant(lock_class, counts), *group, accounts, ttl_ms).play(steps)


# -- matches
def test_a_lock_that_is_none_is_caught_and_the_sure_account_stays_right(lab, group):
    tally = playing(lab, group, NoLock, [FREEZE, LATE])
    row = tally.row()
    assert [scene.struck for scene in tally.scenes] == ["W1", "W1"]
    assert row["double holds"] >= 2 and row["wrong: no token"] >= 2
    assert row["wrong: registered on reads"] == 0 and tally.refused["registered on reads"] >= 2
    assert tally.scenes[0].verdict.status == check.VIOLATED and tally.worst.moment.draw(tally.worst.verdict).alt


def test_a_run_with_nothing_but_a_short_silence_is_clean(lab, group):
    quiet = Step("cut", THOUGHT, ORDER, 0.2, 0.2, "replies")
    row = playing(lab, group, recall("01-locks", "SafeLock"), [quiet], ttl_ms=60_000).row()
    assert row["double holds"] == 0 and row["acquisitions"] > 0
    assert [row[f"wrong: {name}"] for name in ACCOUNTS] == [0, 0, 0, None]  # this lock has no number of its own


def test_a_frozen_holder_wakes_before_or_after_the_next_one_has_written(lab, group):
    """Before: only a token that the read registered saves the money. After: one that is checked on writes does too."""
    tally = playing(lab, group, recall("01-locks", "SafeLock"), [FREEZE, LATE], ttl_ms=1500)
    before, after = (scene.wrong for scene in tally.scenes)
    assert before["no token"] >= 1 and before["checked on writes"] >= 1
    assert after["no token"] >= 1 and after["checked on writes"] == 0
    assert before["registered on reads"] == after["registered on reads"] == 0


def test_a_count_kept_in_memory_does_not_survive_its_server(lab, group):
    tally = playing(lab, group, recall("01-locks", "FencedLock"), [replace(FREEZE, fault="failover")], counts=True)
    wrong = tally.scenes[0].wrong
    assert wrong["registered on reads"] == 0 and wrong["no token"] >= 1
    assert set(wrong) == set(ACCOUNTS)


def test_an_account_that_does_not_register_reads_is_a_finding(lab, group):
    tally = playing(lab, group, NoLock, [FREEZE], FORGETFUL)
    made = season.Season(seed=7, rounds=1, tallies={"NoLock": tally})
    (finding,) = made.findings()
    assert finding["lock"] == "NoLock" and finding["wrong"]["registered on reads"] >= 1


def test_a_killed_holder_is_replaced_and_the_next_one_gets_in(lab, group):
    steps = [replace(FREEZE, fault="kill"), replace(FREEZE, fault="kill", at=IN_THE_LOCK)]
    tally = playing(lab, group, recall("01-locks", "SafeLock"), steps, ttl_ms=1500)
    first, second = tally.scenes
    assert (first.struck, second.struck) == ("W1", "W5")  # the fifth took the first one's place
    assert first.timeline.spans("holds")[0].how == "died"
    assert first.wrong == second.wrong == dict.fromkeys(first.wrong, 0)


# -- a season
def test_who_cannot_play_or_breaks_off_is_told(lab, monkeypatch):
    class Broken(Single):
        def fail_over(self, lab, nodes):
            raise LabError("No other took over.", "", "")

    missing = entrants.Listed("of no chapter", SINGLE, "99-nothing", ("Lock",), on_single)
    broken = entrants.Listed("breaks", Broken(), "01-locks", ("SafeLock",), on_single)
    monkeypatch.setattr(entrants, "LIST", (missing, broken))
    said = []
    made = season.play(lab, seed=7, rounds=2, quick=True, ttl_ms=300, tell=said.append)
    assert made.missing["of no chapter"].startswith("There is no notebook '99-nothing'")
    assert made.missing["breaks"] == "broke off in round 1: No other took over." and len(said) == 1
    assert [row["lock"] for row in made.rows()] == ["of no chapter", "breaks"]
    shown = table.text(made.rows())
    assert "not played: There is no notebook" in shown and "not played: broke off" in shown


def some_season() -> season.Season:
    moment = Timeline((Event(0.0, LAB, "note", "A", {"what": "worker"}), Event(0.1, "A", "mark", "wrote")), "a moment")
    verdict = check.mutual_exclusion(moment)
    scenes = [Scene(FREEZE, "W1", {"no token": n, "registered on reads": 0}, moment, verdict) for n in (0, 2)]
    names = ("no token", "registered on reads")
    tally = Tally("a lock", names, scenes, [0.1, 0.2], acquisitions=12, doubles=2, seconds=4.0, without_s=1.5)
    return season.Season(7, 1, 60.0, {"a lock": tally}, {"another": "no server"})


def test_a_season_is_kept_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    folder = season.keep(some_season())
    assert {path.name for path in folder.iterdir()} == {"table.json", "a-lock.jsonl", "a-lock.svg"}
    about, rows, moment = season.recorded(season.record(folder, "a lock", tmp_path / "recorded.jsonl"))
    assert (about["seed"], about["rounds"], about["minutes"]) == (7, 1, 1.0)
    assert rows == json.loads((folder / "table.json").read_text())["rows"] == some_season().rows()
    assert moment.title == "a moment" and moment.marks("wrote")
    with pytest.raises(LabError, match="holds no season"):
        season.recorded(folder / "a-lock.jsonl")


def test_the_table_and_its_picture_say_the_same():
    rows = some_season().rows()
    assert rows[0] | {"note": ""} == rows[0] and rows[0]["wrong: no token"] == 2 and rows[0]["a second"] == 3.0
    picture = table.picture(rows, "The league")
    assert "a lock: money wrong: no token 2, registered on reads 0" in picture.text
    assert "another: not played: no server" in picture.text and "The league" in picture.alt
    assert picture.svg().startswith("<svg") and "a lock" in table.text(rows)


# -- the parts that are pure
def test_the_same_seed_makes_the_same_plan_and_each_round_has_every_fault():
    rounds = [plan(7, number) for number in range(20)]
    assert rounds == [plan(7, number) for number in range(20)] and rounds[0] != rounds[1] != plan(8, 1)
    assert all(sorted(step.fault for step in steps) == sorted(FAULTS) for steps in rounds)
    assert {step.at for steps in rounds for step in steps if step.fault == "kill"} == {THOUGHT, IN_THE_LOCK}
    faults = [[(s.fault, s.at, s.order, s.how) for s in plan(7, 3, quick=quick)] for quick in (False, True)]
    assert faults[0] == faults[1]


def test_time_without_service_is_counted_once():
    assert without_service([1.0, 1.5], [0.5, 3.0, 4.0], 10.0) == 2.0
    assert without_service([1.0, 5.0], [0.5, 3.0], 10.0) == 7.0  # nobody came after the second one
    assert without_service([], [1.0], 10.0) == 0.0


def test_a_stretch_of_a_record_keeps_its_workers_and_begins_at_zero():
    events = [Event(float(t), "A", "mark", str(t)) for t in range(5)]
    whole = Timeline((*events, Event(4.5, LAB, "note", "A", {"what": "worker"})), "whole")
    part = between(whole, 1.0, 3.0, "part")
    assert part.workers == ("A",) and [(e.t, e.name) for e in part.marks()] == [(0.0, "1"), (1.0, "2"), (2.0, "3")]


def test_every_lock_of_the_list_that_has_a_chapter_is_there():
    for line in entrants.LIST:
        try:
            line.load()
        except LabError as error:
            assert line.chapter in error.what or "notebook" in error.what, error
    assert len({line.name for line in entrants.LIST}) == len(entrants.LIST)
    assert entrants.find(["redis-py"])[0].made is making.on_redis and entrants.find([]) == list(entrants.LIST)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "The league cannot last 0 minutes."),
        (["--minutes", "1e9"], "The league cannot last 1e+09 minutes."),
        (["--minutes", "nan"], "The league cannot last nan minutes."),
        (["--lock", "sesame"], "No lock of the league is called 'sesame'."),
    ],
)
def test_bad_input_gets_three_lines(words, said, capsys):
    assert command_line.main(["league", *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and lines[0] == said
