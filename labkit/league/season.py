"""A season: locks in the same storm, round after round, their table, and what is kept of it."""

import json
import platform
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ..errors import LabError
from ..lab import Lab
from ..notes import recall
from ..record import LAB, Event, Timeline
from ..session import home
from . import entrants, servers, table
from .match import Match, Tally
from .plan import FAULTS, plan

SURE = "registered on reads"  # the account that no lock may ever make wrong
MOST_MINUTES = 24 * 60
ROW, ABOUT = "league row", "league"  # notes in a recorded season


@dataclass
class Season:
    """What was played. missing -- {lock: why it could not play, or not to the end}."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict]:
        rows = [tally.row() for tally in self.tallies.values() if tally.scenes]
        rows += [{"lock": name} for name in self.missing if name not in {row["lock"] for row in rows}]
        return [{**row, "note": self.missing.get(row["lock"], "")} for row in rows]

    def findings(self) -> list[dict]:
        """Where the sure account was wrong: nothing that the course teaches explains that."""
        return [
            {"lock": name, "fault": s.step.fault, "round": 1 + i // len(FAULTS), "wrong": s.wrong}
            for name, tally in self.tallies.items()
            for i, s in enumerate(tally.scenes)
            if s.wrong.get(SURE)
        ]


def play(lab, names=(), *, seed: int, rounds: int = 1, minutes: float | None = None, tell=print, **how) -> Season:
    """Let these locks play (all, if none is named), each in the same storm, all of them one round before the next.

    rounds -- how many; minutes -- instead, as many as begin within that time. how -- quick=True, and Match's ttl_ms
    and think_s. A lock whose chapter or servers are not here is told in `missing`; so is one whose match broke off.
    """
    season, begin, quick = Season(seed), time.monotonic(), how.pop("quick", False)
    accounts, bank, groups, matches = recall("11-decisions", "ACCOUNTS"), lab.postgres(), {servers.BANK: []}, {}
    for line in entrants.find(names):
        try:
            entrant = line.load()
            group = groups.get(entrant.servers)
            if group is None:
                group = groups[entrant.servers] = entrant.servers.start(lab)
        except LabError as error:
            season.missing[line.name] = error.what
            continue
        matches[line.name] = Match(lab, entrant, group or [bank], bank, accounts, **how)
    while matches and (season.rounds < rounds if minutes is None else time.monotonic() - begin < 60 * minutes):
        for name, match in list(matches.items()):
            season.tallies[name] = match.tally
            try:
                match.play(plan(seed, season.rounds, quick=quick), f"{name}, round {season.rounds + 1}")
            except LabError as error:
                season.missing[name] = f"broke off in round {season.rounds + 1}: {error.what}"
                del matches[name]
            tell(f"round {season.rounds + 1}, {name}: {table.in_words(match.tally)}")
        season.rounds += 1
    season.seconds = time.monotonic() - begin
    return season


# -- what is kept
def keep(season: Season) -> Path:
    """Save the table, and each lock's worst moment as a record and a picture; add to the findings of all seasons."""
    now = datetime.now(UTC)
    folder = home() / "league" / f"{now:%Y%m%d-%H%M%S}-seed-{season.seed}"
    try:
        folder.mkdir(parents=True)
        about = {"seed": season.seed, "rounds": season.rounds, "minutes": round(season.seconds / 60, 1)}
        about |= {"utc": f"{now:%Y-%m-%d}", "machine": f"{platform.system()} {platform.machine()}"}
        (folder / "table.json").write_text(json.dumps({**about, "rows": season.rows()}, indent=1) + "\n")
        for name, tally in season.tallies.items():
            if tally.worst:
                slug = re.sub(r"\W+", "-", name).strip("-").lower()
                moment = tally.worst.moment
                moment.save(folder / f"{slug}.jsonl")
                (folder / f"{slug}.svg").write_text(moment.draw(tally.worst.verdict).svg())
        for finding in season.findings():
            with (home() / "league" / "findings.jsonl").open("a") as file:
                file.write(json.dumps({**about, **finding}) + "\n")
    except OSError as error:
        raise LabError(
            f"The season could not be kept in {folder}: {error.strerror}.",
            "The disk may be full, or the folder belong to somebody else.",
            "Name another one: export LABKIT_HOME=/a/folder/of/yours",
        ) from None
    return folder


def record(folder: Path, lock: str, path: Path) -> Path:
    """Make one small file of a kept season: its table, and this lock's worst moment as a timeline."""
    told = json.loads((folder / "table.json").read_text())
    rows = told.pop("rows")
    slug = re.sub(r"\W+", "-", lock).strip("-").lower()
    moment = Timeline.load(folder / f"{slug}.jsonl")
    notes = [Event(0.0, LAB, "note", ABOUT, told), *(Event(0.0, LAB, "note", ROW, row) for row in rows)]
    return Timeline((*moment.events, *notes), moment.title).save(path)


def recorded(path) -> tuple[dict, list[dict], Timeline]:
    """(about: seed, rounds, minutes, utc; the rows; the worst moment) of a file that `record` made."""
    timeline = Timeline.load(path)
    about = [e.data for e in timeline.events if e.name == ABOUT and e.lane == LAB]
    rows = [e.data for e in timeline.events if e.name == ROW and e.lane == LAB]
    if not about or not rows:
        raise LabError(
            f"{path} holds no season of the league.",
            "It may be the record of another run.",
            "Make one: python -m labkit league --minutes 10 --seed 7",
        )
    return about[0], rows, timeline


# -- the command line
def main(minutes: float, seed: int, names) -> int:
    """Play for so long, show the table, keep it. Returns 1 if an account was wrong that must never be."""
    if not 0 < minutes <= MOST_MINUTES:
        raise LabError(
            f"The league cannot last {minutes:g} minutes.",
            f"It needs some time, and ends after a day ({MOST_MINUTES} minutes) at the latest.",
            "Type: python -m labkit league --minutes 10 --seed 7",
        )
    entrants.find(names)
    with Lab("league", seed=seed) as lab:
        season = play(lab, names, seed=seed, minutes=minutes)
    print(f"\n{table.text(season.rows())}\n")
    print(f"Seed {season.seed}, rounds: {season.rounds}, {season.seconds / 60:.1f} minutes; kept in {keep(season)}")
    for finding in season.findings():
        print(f"A FINDING, and nothing in the course explains it: {json.dumps(finding)}")
    return bool(season.findings())
