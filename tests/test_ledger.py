"""The ledger of claims: its rows can be read, are complete, and are written for a learner."""

import re
from collections import Counter, defaultdict

import pytest

from labkit.errors import LabError
from labkit.ledger import CHAPTERS, SOURCES, TABLE, VERDICTS, Entry, entry, ledger, of_chapter

COLUMNS = ["id", "chapter", "statement", "expected", "verdict", "sources"]
LINES = TABLE.read_text(encoding="utf-8").removesuffix("\n").split("\n")
ROWS = [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in LINES[1:]]  # read without csv


def doubles(values):
    return [value for value, count in Counter(values).items() if count > 1]


def test_a_line_is_a_row_of_six_plain_cells():
    assert LINES[0].split("\t") == COLUMNS
    cells = [cell for row in ROWS for cell in row.values()]
    assert [cell for cell in cells if not cell or cell != " ".join(cell.split())] == []
    assert [cell for cell in cells if not cell.isprintable()] == []


def test_the_loader_returns_what_the_file_says():
    assert [{**vars(e), "sources": ";".join(e.sources)} for e in ledger().values()] == ROWS
    assert ledger() is ledger()


def test_ids_are_unique_and_no_number_is_left_out():
    assert doubles(row["id"] for row in ROWS) == []
    families = defaultdict(list)
    for row in ROWS:
        family, number = re.fullmatch(r"([A-Z]+)-(\d\d)", row["id"]).groups()
        families[family].append(int(number))
    assert [f for f, numbers in families.items() if sorted(numbers) != list(range(1, len(numbers) + 1))] == []


def test_verdicts_chapters_and_source_keys_are_known():
    assert {e.verdict for e in ledger().values()} == set(VERDICTS)
    assert {e.chapter for e in ledger().values()} == set(CHAPTERS)
    assert {source.split(":")[0] for e in ledger().values() for source in e.sources} == set(SOURCES)
    assert [e.id for e in ledger().values() if doubles(source.split(":")[0] for source in e.sources)] == []


@pytest.mark.parametrize("column", ["statement", "expected"])
def test_texts_are_short_sentences_without_codes(column):
    texts = {row["id"]: row[column] for row in ROWS}
    assert doubles(text.casefold() for text in texts.values()) == []
    assert [i for i, text in texts.items() if re.search(r"\b00[0-2][ABC]?\b", text)] == []
    assert [i for i, text in texts.items() if len(text) > 260] == []
    assert [i for i, text in texts.items() if text[-1] not in ".?"] == []


def test_every_claim_belongs_to_one_chapter():
    by_chapter = [e.id for name in CHAPTERS for e in of_chapter(name)]
    assert by_chapter == list(ledger())
    assert [e.id for e in of_chapter("00-start-here")] == ["LOCK-19"]


def test_a_claim_is_found_by_its_id():
    assert entry("LOCK-15") is ledger()["LOCK-15"]
    assert repr(entry("LOCK-15")) == "Entry(LOCK-15, 01-locks, caveat)"


def test_the_footnote_names_each_source_in_words():
    made = Entry("X-01", "01-locks", "s", "e", "holds", ("roles:§2, summary 2", "rate-limiting"))
    assert made.footnote == f"{SOURCES['roles']}, §2, summary 2; {SOURCES['rate-limiting']}"
    for e in ledger().values():
        assert all(SOURCES[source.split(":")[0]] in e.footnote for source in e.sources)


@pytest.mark.parametrize(
    ("ask", "wrong", "near"),
    [
        (entry, "LOKC-15", "LOCK-15"),
        (entry, "lock-15", "LOCK-15"),
        (entry, "nothing like it", "ledger.tsv"),
        (of_chapter, "01-lock", "01-locks"),
        (of_chapter, "01-locks.ipynb", "01-locks"),
    ],
)
def test_an_unknown_name_is_told_in_three_lines(ask, wrong, near):
    with pytest.raises(LabError) as error:
        ask(wrong)
    what, why, todo = str(error.value).splitlines()
    assert wrong in what and why and near in todo
