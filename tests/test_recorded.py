"""The recorded runs: each can be read without a server, is small, draws, and bears out what its chapter says of it.

Its picture beside it, where there is one, shows the same verdict.
"""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from papers import FOLDER

from labkit import Timeline, check
from labkit.check import HOLDS, VIOLATED
from labkit.ledger import CHAPTERS

PATHS = sorted((FOLDER / "recorded").glob("*.jsonl"))
PICTURES = sorted((FOLDER / "img").glob("*.svg"))
MOST_BYTES = 60_000

# What a chapter says of its run: the judge, and what it must find.
SAID = {
    "01-locks": (check.mutual_exclusion, VIOLATED),
    "01-failover": (check.mutual_exclusion, VIOLATED),
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


def test_there_are_recorded_runs_and_their_folder_holds_nothing_else():
    assert PATHS and PICTURES
    assert {path.suffix for path in Path(FOLDER / "recorded").iterdir()} == {".jsonl"}
