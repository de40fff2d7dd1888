"""The recorded runs: each can be read without a server, is small, draws, and bears out what its chapter says of it.

Its picture beside it, where there is one, shows the same verdict.
"""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from papers import FOLDER

from labkit import Timeline, check
from labkit.check import HOLDS, VIOLATED
from labkit.league import season
from labkit.ledger import CHAPTERS

PATHS = sorted((FOLDER / "recorded").glob("*.jsonl"))
PICTURES = sorted((FOLDER / "img").glob("*.svg"))
MOST_BYTES = 60_000

# What a chapter says of its run: the judge, and what it must find.
SAID = {
    "01-locks": (check.mutual_exclusion, VIOLATED),
    "01-failover": (check.mutual_exclusion, VIOLATED),
    "04-queues": (check.at_least_once, VIOLATED),
    "05-streams": (check.at_least_once, VIOLATED),
    "02-redlock-debate": (check.mutual_exclusion, VIOLATED),
}


def load(name: str) -> Timeline:
    return Timeline.load(FOLDER / "recorded" / f"{name}.jsonl")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recorded_run_is_small_belongs_to_a_chapter_and_draws(path):
    assert path.stat().st_size < MOST_BYTES
    assert path.stem[:2] in {chapter[:2] for chapter in CHAPTERS}
    timeline = Timeline.load(path)
    assert timeline.title and timeline.lanes
    picture = timeline.draw()
    assert timeline.title in picture.alt and len(picture.text.splitlines()) > len(timeline.lanes)
    assert ElementTree.fromstring(picture.svg()).tag.endswith("svg")


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_one_svg_that_states_its_conclusion(path):
    svg = ElementTree.parse(path).getroot()
    title = svg.findtext("{http://www.w3.org/2000/svg}title")
    assert svg.tag.endswith("svg") and svg.get("role") == "img"
    assert title and svg.get("aria-label").startswith(title) and len(svg.get("aria-label")) > len(title) + 20


@pytest.mark.parametrize("name", SAID)
def test_the_check_finds_in_it_what_the_chapter_says(name):
    judge, wanted = SAID[name]
    verdict = judge(load(name))
    assert verdict.status == wanted, verdict
    assert verdict.evidence or wanted == HOLDS
    picture = ElementTree.parse(FOLDER / "img" / f"{name}.svg").getroot()
    assert repr(verdict) in picture.get("aria-label")


def test_of_the_freeze_in_chapter_00():
    """A sent nothing while it was frozen, B and the candle went on, and A counted all of its twenty beats."""
    timeline = load("00-start-here")
    (frozen,) = timeline.spans("frozen", lane="A")
    at = {name: [e.t for e in timeline.marks(lane=name)] for name in "AB"}
    assert [t for t in at["A"] if frozen.start < t < frozen.end] == [] and len(at["A"]) == 20
    assert len([t for t in at["B"] if frozen.start < t < frozen.end]) >= 10
    (candle,) = timeline.spans("owner", lane="candle (redis-1 says)")
    assert candle.end < frozen.end and candle.seconds > 0.2


def test_of_the_freeze_in_chapter_01():
    """A wrote over B: both read 100, both wrote 90, B first; and the server never had two owners at once."""
    timeline = load("01-locks")
    touched = [(e.data["by"], e.data["op"], e.data["value"]) for e in timeline.marks(lane="balance")]
    assert touched == [("A", "read", 100), ("B", "read", 100), ("B", "write", 90), ("A", "write", 90)]
    assert check.no_lost_update(timeline, "balance").status == VIOLATED
    first, second = timeline.spans("owner", lane="lock (redis-1 says)")
    assert first.end < second.start


def test_of_the_failover():
    """The replica never had A's lock; the primary's observer heard nothing more once the primary was dead."""
    timeline = load("01-failover")
    token = {span.lane: span.data["token"] for span in timeline.spans("holds")}
    (dead,) = [span for span in timeline.spans("dead")]
    owners = {lane: [s.data["owner"] for s in timeline.spans("owner", lane=lane)] for lane in timeline.lanes}
    (of_primary,) = [lane for lane in owners if lane.endswith(f"({dead.lane} says)")]
    (of_replica,) = [lane for lane in owners if lane.endswith("says)") and lane != of_primary]
    assert owners[of_primary] == [token["A"]] and owners[of_replica] == [token["B"]]


def test_of_the_jump_in_chapter_02():
    """A's majority was 1, 2, 3, and B's 3, 4, 5: server 3 had A's lock until its clock was set, and then B's."""
    timeline = load("02-redlock-debate")
    token = {span.data["token"]: span.lane for span in timeline.spans("holds")}
    lanes = [f"lock (redis-{i} says)" for i in range(1, 6)]
    owners = ["".join(token[s.data["owner"]] for s in timeline.spans("owner", lane=lane)) for lane in lanes]
    assert owners == ["A", "A", "AB", "B", "B"]
    (jump,) = timeline.spans(lane="redis-3")
    first, second = timeline.spans("owner", lane=lanes[2])
    assert first.start < jump.start < second.start and jump.name == "clock +60 s"


def test_of_the_dead_leader_in_chapter_03():
    """A died with a lease of 2 s; both survivors had its lock for longer than that after their leader's death."""
    timeline = load("03-consensus-locks")
    (killed,) = timeline.marks("killed", lane="A")
    (dead,) = timeline.spans("dead")
    owned = timeline.spans("owner")
    assert [s.data["owner"] for s in owned] == ["A", "A"] and dead.lane not in {s.data["says"] for s in owned}
    assert killed.t < dead.start < killed.t + 2 and min(s.end for s in owned) > dead.start + 2


def test_of_the_order_in_chapter_04():
    """One of twenty orders was in C1's hands when it was killed, and nobody else ever had it."""
    timeline = load("04-queues")
    (killed,) = [e for e in timeline.marks("killed") if e.data.get("fault")]
    hands = {s.data["message"]: s for s in timeline.spans("works")}
    assert killed.lane == hands["m02"].lane == "C1" and hands["m02"].how == "died"
    assert len(hands) == len(timeline.spans("works")) == 20
    assert [s.outcome for message, s in hands.items() if message != "m02"] == ["ok"] * 19


def test_of_the_position_that_kafka_saved_early():
    """C1 died at work with the first order, and the next one of its group had the second."""
    timeline = load("04-kafka")
    assert [(s.lane, s.data["message"], s.how) for s in timeline.spans("works")] == [
        ("C1", "order 1", "died"),
        ("C2", "order 2", "ended"),
    ]
    assert check.at_least_once(timeline).status == VIOLATED


def test_of_the_pending_message_in_chapter_05():
    """C1 died with the second message, which the server kept under its name, and C2 did all the others."""
    works = load("05-streams").spans("works")
    assert [(s.lane, s.data["message"]) for s in works if s.how == "died"] == [("C1", "m02")]
    assert {s.data["message"] for s in works if s.lane == "C2" and s.outcome == "ok"} == {
        f"m{n:02}" for n in range(3, 13)
    }


def test_of_kafka_in_chapter_05():
    """Committed after the work, the message of the dead comes again; before it, never. What two had, one still has."""
    assert check.at_least_once(load("05-kafka-after")).status == HOLDS
    assert check.at_most_once(load("05-kafka-after")).status == VIOLATED
    assert check.at_least_once(load("05-kafka-before")).status == VIOLATED
    leader = load("05-kafka-leader")
    assert check.acknowledged_kept(leader).status == HOLDS and len(leader.marks("ack")) == 20
    assert len(leader.marks("refused")) == 1 and "kafka-2" in {s.lane for s in leader.spans("dead")}


def test_there_are_recorded_runs_and_their_folder_holds_nothing_else():
    assert PATHS and PICTURES
    assert {path.suffix for path in Path(FOLDER / "recorded").iterdir()} == {".jsonl"}


def test_of_the_league():
    """Each lock with a check on reads and writes kept the money right; the number from Redis failed at a failover."""
    about, rows, moment = season.recorded(FOLDER / "recorded" / "11-decisions.jsonl")
    wrong = {row["lock"]: {name: row[name] for name in row if name.startswith("wrong: ")} for row in rows}
    assert about["rounds"] > 0 and len(wrong) == len(rows) >= 7
    assert {of["wrong: registered on reads"] for of in wrong.values()} == {0}
    assert wrong["Redis: counted by a script"]["wrong: the lock's own token"] > 0
    assert min(of["wrong: no token"] for lock, of in wrong.items() if lock != "PostgreSQL: row lock") > 0
    assert check.mutual_exclusion(moment).status == VIOLATED
    picture = ElementTree.parse(FOLDER / "img" / "11-decisions.svg").getroot()
    assert all(lock in picture.get("aria-label") for lock in wrong)
