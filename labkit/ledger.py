"""The ledger: every claim of the course, who says it, and what is expected of a run. It judges nothing itself.

The rows are in `ledger.tsv`: id, chapter, statement, expected, verdict, sources. Its `verdict` is what was expected
before anything ran; what a run shows is said by `notes.claim`.
"""

import csv
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from .errors import LabError

TABLE = Path(__file__).with_name("ledger.tsv")

CHAPTERS = (
    "00-start-here",
    "01-locks",
    "02-redlock-debate",
    "03-consensus-locks",
    "04-queues",
    "05-streams",
    "06-sorted-sets",
    "07a-limiting-algorithms",
    "07b-limiting-in-production",
    "08-sessions-and-availability",
    "09-memory",
    "10-filters-and-sets",
    "11-decisions",
)

# What a run is expected to say of the statement; "opinion" is for what no run could refute.
VERDICTS = ("holds", "caveat", "wrong", "opinion")

SOURCES = {
    "beyond-caching": "an article on Redis beyond caching (locks, lists, sorted sets)",
    "roles": "an article on the roles of Redis in a distributed system",
    "choosing-a-lock": "an article on choosing a distributed lock (4 June 2026)",
    "rate-limiting": "an article on rate limiting (2 June 2026)",
    "what-redis-should-do": "an article on deciding what Redis should do (17 May 2026)",
}


@dataclass(frozen=True)
class Entry:
    """One claim.

    id -- such as "LOCK-15"
    chapter -- the notebook that settles it, one of CHAPTERS
    statement -- what people say; expected -- what a run should show
    verdict -- what is expected of the statement, one of VERDICTS
    sources -- a key of SOURCES each, with the section after a colon: ("roles:§2", "choosing-a-lock:§1.1, §2.3")
    """

    id: str
    chapter: str
    statement: str
    expected: str
    verdict: str
    sources: tuple[str, ...]

    def __repr__(self):
        return f"Entry({self.id}, {self.chapter}, {self.verdict})"

    @property
    def footnote(self) -> str:
        """The sources in words: "an article on ..., §2; an article on ..., §1.1"."""
        parts = (source.partition(":") for source in self.sources)
        return "; ".join(f"{SOURCES[key]}, {section}" if section else SOURCES[key] for key, _, section in parts)


@cache
def ledger() -> dict[str, Entry]:
    """Every claim by its id, in the order of the course. Read once; not to be changed."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        entries = [Entry(**{**row, "sources": tuple(row["sources"].split(";"))}) for row in rows]
    return {entry.id: entry for entry in entries}


def entry(id: str) -> Entry:
    """The claim of this id. Raises LabError for an unknown one and names the nearest."""
    if id in ledger():
        return ledger()[id]
    raise _unknown(id, "claim", ledger(), "labkit/ledger.tsv lists them all.")


def of_chapter(name: str) -> list[Entry]:
    """The claims that a chapter settles, in order; chapter 00 has none. Raises LabError for an unknown chapter."""
    if name in CHAPTERS:
        return [entry for entry in ledger().values() if entry.chapter == name]
    raise _unknown(name, "chapter", CHAPTERS, "A chapter is named by its notebook, without the ending.")


def _unknown(name: str, kind: str, known, where: str) -> LabError:
    near = {word.casefold(): word for word in known}
    close = [near[word] for word in get_close_matches(str(name).casefold(), near, n=3)]
    return LabError(
        f"The ledger has no {kind} {name!r}.",
        "The name is probably misspelt." if close else f"No {kind} has a name like it.",
        f"Try {' or '.join(map(repr, close))}. {where}" if close else where,
    )
