"""Claims, opinions, guesses, expected errors and recipes: in plain Python, and in a real kernel."""

import inspect
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy
import papermill
import pytest
from papers import code, paper

from labkit import notes
from labkit.check import HOLDS, UNJUDGED, VIOLATED, Verdict
from labkit.errors import ClaimError, LabError
from labkit.ledger import CHAPTERS, ledger, of_chapter

ROOT = Path(__file__).resolve().parent.parent
TWO_HOLDERS = Verdict("mutual exclusion", VIOLATED, "A and B both held 'lock' for 0.50 s")


def entry(verdict):
    return next(e for e in ledger().values() if e.verdict == verdict)


def three_lines(error):
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and all(lines), lines
    return lines


def write_notebook(path, *cells):
    """cells -- a source, or (source, tag)."""
    made = [code(*cell) if isinstance(cell, tuple) else code(cell) for cell in cells]
    path.write_text(json.dumps(paper(*made)), encoding="utf-8")
    return path


def execute(path):
    """Run a notebook with papermill in its own folder; a list of the outputs of each cell."""
    nb = papermill.execute_notebook(
        path, path.with_suffix(".out.ipynb"), kernel_name="python3", cwd=path.parent, progress_bar=False
    )
    return [cell.outputs for cell in nb.cells]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of notebooks where the kernel runs, beside which there are no others."""
    monkeypatch.setattr(notes, "FOLDER", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("recipes_")]:
        del sys.modules[name]


def saved(home, id):
    return json.loads((home / "claims" / f"{id}.json").read_text(encoding="utf-8"))


# -- claim
@pytest.mark.parametrize(
    ("verdict", "words"),
    [("holds", "holds, as measured here"), ("caveat", "holds, with a caveat"), ("wrong", "wrong, as measured here")],
)
def test_a_claim_is_told_with_its_source_and_kept(verdict, words, home, capsys):
    e = entry(verdict)
    notes.claim(e.id, True, ours=TWO_HOLDERS, article=5.04)
    out = capsys.readouterr().out
    for part in (e.id, e.statement, e.footnote, "article: 5.04 | ours: mutual exclusion VIOLATED: A and B", words):
        assert part in out
    data = saved(home, e.id)
    assert data["ok"] is True and data["ours"] == repr(TWO_HOLDERS) and data["sources"] == list(e.sources)
    when = datetime.fromisoformat(data["utc"])
    assert when.utcoffset() == timedelta(0) and abs(datetime.now(UTC) - when) < timedelta(minutes=5)


def test_a_claim_that_the_run_does_not_support_is_shown_kept_and_raised(home, capsys):
    e = entry("holds")
    with pytest.raises(ClaimError) as error:
        notes.claim(e.id, False, ours="two\nholders")
    what, why, _ = three_lines(error)
    assert e.id in what and "two holders" in what and e.expected.rstrip(".") in why
    assert "this run does not support it" in capsys.readouterr().out
    assert saved(home, e.id)["ok"] is False


def test_every_claim_of_the_ledger_can_fail_in_three_lines():
    for e in ledger().values():
        if e.verdict != "opinion":
            with pytest.raises(ClaimError) as error:
                notes.claim(e.id, False, ours=0)
            three_lines(error)


def test_a_numpy_bool_is_a_bool(home):
    e = entry("holds")
    notes.claim(e.id, numpy.bool_(True), ours=1)
    with pytest.raises(ClaimError):
        notes.claim(e.id, numpy.float64(2) < 1, ours=2)
    assert saved(home, e.id)["ok"] is False


@pytest.mark.parametrize(
    "condition", [TWO_HOLDERS, None, 1, "yes", [], numpy.array([True]), numpy.int64(1)], ids=lambda c: type(c).__name__
)
def test_a_condition_that_is_no_bool_is_refused(condition, home):
    with pytest.raises(LabError) as error:
        notes.claim(entry("holds").id, condition, ours=1)
    assert ".ok" in three_lines(error)[2] and not isinstance(error.value, ClaimError)
    assert not home.exists()


def test_a_verdict_that_cannot_be_judged_settles_nothing(home):
    nothing = Verdict("mutual exclusion", UNJUDGED, "this record has no span 'holds' with a 'lock'")
    with pytest.raises(LabError, match="cannot be judged"):
        notes.claim(entry("holds").id, nothing.ok, ours=nothing)
    assert not home.exists()


def test_an_unknown_id_and_an_opinion_are_refused(home):
    with pytest.raises(LabError) as error:
        notes.claim("LOCK-1", True, ours=1)
    three_lines(error)
    with pytest.raises(LabError) as error:
        notes.claim(entry("opinion").id, True, ours=1)
    assert "discuss(" in three_lines(error)[2]
    assert not home.exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (7, "7"),
        (0.123456, "0.1235"),
        (123456.7, "123457"),
        (numpy.float32(0.5), "0.5"),
        ((True, False), "(True, False)"),
    ],
)
def test_what_was_measured_is_told_in_words(value, words):
    assert notes.told(value) == words


def test_a_later_run_replaces_an_earlier_one_whole(home):
    e = entry("holds")
    notes.claim(e.id, True, ours="first")
    notes.claim(e.id, True, ours="second")
    assert saved(home, e.id)["ours"] == "second"
    assert [path.name for path in (home / "claims").iterdir()] == [f"{e.id}.json"]


def test_a_home_that_cannot_be_written_costs_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file"))
    notes.claim(entry("holds").id, True, ours=1)
    lines = capsys.readouterr().out.splitlines()
    assert sum("progress is not saved" in line and "LABKIT_HOME" in line for line in lines) == 1
    assert "holds, as measured here" in lines[-2]


def test_a_write_that_fails_leaves_the_earlier_progress(home, monkeypatch, capsys):
    e = entry("holds")
    notes.claim(e.id, True, ours="first")

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    notes.claim(e.id, True, ours="second")
    assert "No space left on device" in capsys.readouterr().out
    assert saved(home, e.id)["ours"] == "first"
    assert [path.name for path in (home / "claims").iterdir()] == [f"{e.id}.json"]


# -- discuss
def test_an_opinion_shows_its_sides_and_the_evidence(home, capsys):
    e = entry("opinion")
    notes.discuss(e.id, sides=[("some", "never"), ("others", "always")], evidence=0.5)
    out = capsys.readouterr().out
    for part in (e.statement, e.footnote, "some: never", "others: always", "measured here: 0.5", "an opinion"):
        assert part in out
    data = saved(home, e.id)
    assert data["discussed"] is True and data["ok"] is None and data["sides"][1] == ["others", "always"]


def test_what_a_run_can_refute_is_not_discussed(home):
    with pytest.raises(LabError) as error:
        notes.discuss(entry("wrong").id, sides=[("some", "never"), ("others", "always")])
    assert "claim(" in three_lines(error)[2]
    assert not home.exists()


@pytest.mark.parametrize(
    "sides", [[], [("some", "never")], ["some", "others"], [("a", "b"), ("c", None)], ["no", "so"]]
)
def test_a_discussion_needs_two_sides(sides, home):
    with pytest.raises(LabError) as error:
        notes.discuss(entry("opinion").id, sides=sides)
    three_lines(error)
    assert not home.exists()


# -- the tables
def test_the_recap_table_tells_what_this_machine_measured(home, capsys):
    chapter = "01-locks"
    by = {verdict: next(e for e in of_chapter(chapter) if e.verdict == verdict) for verdict in notes.EXPECTED}
    notes.claim(by["wrong"].id, True, ours="5 ms")
    with pytest.raises(ClaimError):
        notes.claim(by["holds"].id, False, ours="two winners")
    notes.discuss(by["opinion"].id, sides=[("some", "a"), ("others", "b")])
    (home / "claims" / f"{by['caveat'].id}.json").write_text('{"ok": tr')  # cut short by another program
    capsys.readouterr()
    notes.claims_table(chapter)
    rows = {line.split(" | ")[0].strip(): line.split(" | ") for line in capsys.readouterr().out.splitlines()}
    assert len(rows) == len(of_chapter(chapter)) + 2  # the caption and the head
    assert rows[by["wrong"].id][1:] == [by["wrong"].statement, "doubtful or wrong", "wrong, as measured here: 5 ms"]
    assert rows[by["holds"].id][-1] == "not supported: two winners"
    assert rows[by["opinion"].id][-1] == "discussed"
    assert rows[by["caveat"].id][-1] == "not yet"


def test_the_recap_table_of_an_unknown_chapter_is_refused():
    with pytest.raises(LabError) as error:
        notes.claims_table("01-lock")
    assert "01-locks" in three_lines(error)[2]


def test_progress_counts_claims_and_exercises_by_chapter(capsys):
    first, second, third, *_ = [e for e in of_chapter("01-locks") if e.verdict != "opinion"]
    notes.claim(first.id, True, ours=1)
    notes.claim(third.id, True, ours=1)
    with pytest.raises(ClaimError):
        notes.claim(second.id, False, ours=1)
    notes.keep(notes.EXERCISES, "01.2", {"id": "01.2", "ok": True, "text": "solved"})
    notes.keep(notes.EXERCISES, "01.3", {"id": "01.3", "ok": False, "text": "not yet"})
    notes.keep(notes.EXERCISES, "11.1", {"id": "11.1", "ok": True, "text": "solved"})
    capsys.readouterr()
    notes.progress()
    rows = {line.split(" | ")[0].strip(): line.split(" | ")[1:] for line in capsys.readouterr().out.splitlines()}
    assert list(rows)[2:] == list(CHAPTERS)
    assert rows["01-locks"] == [f"2 of {len(of_chapter('01-locks'))}", f"{first.id}, {third.id}", "01.2"]
    assert rows["02-redlock-debate"] == [f"0 of {len(of_chapter('02-redlock-debate'))}", "none yet", "none yet"]


# -- rows for later chapters
def test_rows_of_a_chapter_are_kept_and_replaced_and_a_chapter_that_did_not_run_has_none():
    first = [{"fault": "freeze", "lock": "one Redis", "harm": True, "share": 0.5, "note": None}]
    notes.keep_rows("02-redlock-debate", first)
    assert notes.kept_rows("02-redlock-debate") == first
    notes.keep_rows("02-redlock-debate", first[:0])
    assert notes.kept_rows("02-redlock-debate") == notes.kept_rows("11-decisions") == []


@pytest.mark.parametrize("rows", [[("freeze", True)], [{"harm": {True}}], [{"harm": TWO_HOLDERS}]])
def test_rows_that_no_file_could_give_back_are_refused(rows):
    with pytest.raises(LabError) as error:
        notes.keep_rows("02-redlock-debate", rows)
    assert "cannot be kept" in three_lines(error)[0]
    for attempt in (lambda: notes.keep_rows("02-redlock", []), lambda: notes.kept_rows("02-redlock")):
        with pytest.raises(LabError, match="02-redlock-debate"):
            attempt()


# -- predict
def test_a_guess_in_plain_python_waits_for_nobody(capsys):
    guess = notes.predict("Who gets in?", "A", "B")
    assert guess.answer is None
    guess.reveal("B")
    assert capsys.readouterr().out.splitlines() == ["Your guess: Who gets in?", "  ( ) A", "  ( ) B", "The run says: B"]
    guess.answer = "A"
    guess.reveal(Verdict("mutual exclusion", HOLDS, "2 holders, never two at once"))
    assert "You said: A; the run says: mutual exclusion holds: 2 holders" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("A",), ("A", "B", "A"), (1, "1")])
def test_a_guess_needs_two_different_options(options):
    with pytest.raises(LabError) as error:
        notes.predict("Who?", *options)
    three_lines(error)


# -- expect
def test_an_expected_error_is_shown_as_a_learner_meets_it(capsys):
    with notes.expect(LabError):
        raise LabError("It broke.", "Somebody cut it.", "Type: mend()")
    with notes.expect(KeyError, ValueError, match="o mark"):
        raise ValueError("no mark")
    out = capsys.readouterr().out.splitlines()
    assert out == ["LabError: It broke.", "Somebody cut it.", "Type: mend()", "ValueError: no mark"]


def test_a_note_of_the_worker_is_shown_too(capsys):
    with notes.expect(ValueError):
        error = ValueError("lost")
        error.add_note("(raised in worker A)")
        raise error
    assert capsys.readouterr().out.splitlines() == ["ValueError: lost", "(raised in worker A)"]


def test_an_expected_error_that_does_not_come_is_an_error():
    with pytest.raises(ClaimError) as error, notes.expect(ValueError, KeyError):
        pass
    assert "ValueError or KeyError" in three_lines(error)[0]


def test_another_error_passes_through():
    with pytest.raises(ZeroDivisionError), notes.expect(ValueError):
        _ = 1 / 0
    with pytest.raises(ValueError, match="lost") as error, notes.expect(ValueError, match="cut"):
        raise ValueError("lost")
    assert "'cut'" in error.value.__notes__[0]
    with pytest.raises(KeyboardInterrupt), notes.expect(Exception):
        raise KeyboardInterrupt


@pytest.mark.parametrize("kinds", [(), ("ValueError",), (ValueError("x"),), (int,), (BaseException,)])
def test_expect_must_be_told_a_class_of_error(kinds):
    with pytest.raises(LabError) as error, notes.expect(*kinds):
        pytest.fail("the block must not run")
    three_lines(error)


# -- recall
IMPORTS = ("import os\nfrom dataclasses import dataclass", "imports")
RECIPE = (
    '''
class LockLost(Exception):
    """Somebody else holds it."""


@dataclass
class Lock:
    name: str
    held: bool = False

    def acquire(self):
        self.held = True
        return f"{self.name} {RELEASE} {os.path.sep}"

    def renew(self):
        raise LockLost(self.name)
''',
    "recipe",
)
CONSTANT = ('RELEASE = "released"', "recipe")
CELLS = ("1 / 0  # an experiment", IMPORTS, "raise SystemExit", RECIPE, CONSTANT)


def test_recipes_are_recalled_as_a_real_module(folder, capsys):
    write_notebook(folder / "01-tiny.ipynb", *CELLS)
    module = notes.recall("01-tiny")
    assert sys.modules["recipes_01_tiny"] is module
    assert module.Lock("lock").acquire() == "lock released /"
    assert "return f" in inspect.getsource(module.Lock.acquire)
    assert inspect.getsource(module.LockLost).startswith("class LockLost(Exception):")
    assert capsys.readouterr().out == "From 01-tiny.ipynb: LockLost, Lock\n"
    lock_class = notes.recall("01-tiny", "Lock")
    assert inspect.isclass(lock_class) and lock_class is not module.Lock
    assert notes.recall("01-tiny", "Lock", "RELEASE")[1] == "released"


def test_a_second_recall_sees_what_was_changed(folder):
    path = write_notebook(folder / "01-tiny.ipynb", *CELLS)
    notes.recall("01-tiny").extra = 1
    write_notebook(path, *CELLS[:-1], ('RELEASE = "mended"', "recipe"))
    module = notes.recall("01-tiny")
    assert module.RELEASE == "mended" and not hasattr(module, "extra")


def test_the_notebooks_of_the_course_come_first(folder, monkeypatch):
    course = folder / "course"
    course.mkdir()
    monkeypatch.setattr(notes, "FOLDER", course)
    write_notebook(course / "01-tiny.ipynb", ("where = 'course'", "recipe"))
    write_notebook(folder / "01-tiny.ipynb", ("where = 'here'", "recipe"))
    (folder / "notebooks").mkdir()
    write_notebook(folder / "notebooks" / "02-tiny.ipynb", ("where = 'below'", "recipe"))
    assert notes.recall("01-tiny", "where") == "course"
    assert notes.recall("02-tiny", "where") == "below"


def test_an_unknown_notebook_or_name_is_refused_with_the_nearest(folder):
    write_notebook(folder / "01-tiny.ipynb", *CELLS)
    write_notebook(folder / "02-empty.ipynb", IMPORTS)
    (folder / "03-broken.ipynb").write_text('{"cells": [')
    for names, words in [
        (("01-tny",), "01-tiny"),
        (("01-tiny", "Lok"), "Lock"),
        (("01-tiny", "RELEAS"), "RELEASE"),
        (("02-empty",), "recipe"),
        (("03-broken",), "git diff"),
    ]:
        with pytest.raises(LabError) as error:
            notes.recall(*names)
        assert words in three_lines(error)[2]


def test_a_recipe_that_raises_leaves_no_half_module(folder):
    write_notebook(folder / "01-tiny.ipynb", ("import no_such_package", "imports"), RECIPE)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        notes.recall("01-tiny")
    assert "recipes_01_tiny" not in sys.modules


SHIP = """
import inspect
from labkit import expect, recall, shipping
Lock, LockLost = recall("01-tiny", "Lock", "LockLost")
def work(w, name):
    lock = Lock(name)
    return w + lock.acquire(), lock, LockLost
"""
PACK = """
import pickle
blob, sources = shipping.pack(work, ("w ", "lock"), {})
with open("shipped", "wb") as file:
    pickle.dump((blob, sources), file)
print(inspect.getsource(Lock))
"""
UNPACK = """
import pickle
from labkit import shipping
with open("shipped", "rb") as file:
    blob, sources = pickle.load(file)
function, args, kwargs = shipping.unpack(blob, sources)
text, lock, lost = function(*args, **kwargs)
print(text, lock)
try:
    lock.renew()
except lost as error:
    print(shipping.traceback_text(error, sources))
"""


def test_a_recalled_class_works_in_another_process(folder):
    write_notebook(folder / "01-tiny.ipynb", *CELLS)
    outputs = execute(write_notebook(folder / "02-caller.ipynb", SHIP, PACK))
    html = outputs[0][0]["data"]["text/html"]
    assert 'href="01-tiny.ipynb"' in html and "<code>Lock</code>, <code>LockLost</code>" in html
    assert "def acquire(self):" in outputs[1][0]["text"]
    other = subprocess.run([sys.executable, "-c", UNPACK], capture_output=True, text=True, timeout=60, check=False)
    assert other.returncode == 0, other.stderr
    first, *trace = other.stdout.splitlines()
    assert first == "w lock released / Lock(name='lock', held=True)"
    assert trace[-2:] == [f"  <recipes of 01-tiny>, line {trace[-2].split('line ')[1].split(',')[0]}, in renew",
                          "    raise LockLost(self.name)"]  # fmt: skip


# -- in a real kernel
KERNEL = """
import ipywidgets
from labkit import LabError, check, claim, discuss, expect, notes, predict
from labkit.ledger import ledger
ids = {e.verdict: e.id for e in ledger().values()}

claim(ids["caveat"], True, ours="<script>alert(1)</script> & more", article=5.04)

discuss(ids["opinion"], sides=[("<b>some</b>", "never"), ("others", "always")])

guess = predict("Is 1 < 2?", "yes <i>", "no")

assert guess.answer is None
guess.reveal(True)

radio = next(w for w in ipywidgets.widgets.widget._instances.values() if isinstance(w, ipywidgets.RadioButtons))
assert radio.index is None
radio.set_state({"index": 1})  # what a browser's message does
print(guess.answer, [w.value for w in ipywidgets.widgets.widget._instances.values() if isinstance(w, ipywidgets.HTML)])

guess.reveal("yes")

with expect(ValueError):
    raise ValueError("<oops>\\n<again>")

notes.claims_table("01-locks")

notes.progress()
"""


def test_a_notebook_shows_each_in_html_in_text_and_as_data(tmp_path):
    _, claimed, discussed, asked, _, chosen, revealed, expected, table, progress = execute(
        write_notebook(tmp_path / "all.ipynb", *KERNEL.strip().split("\n\n"))
    )
    bundle = claimed[0]["data"]
    data = bundle[notes.CLAIM]
    assert set(data) == {"id", "ok", "statement", "verdict", "ours", "article", "sources"}
    assert data["ok"] is True and data["ours"].startswith("<script>") and data["article"] == "5.04"
    assert "<script>" not in bundle["text/html"] and "&lt;script&gt;" in bundle["text/html"]
    assert "<script>" in bundle["text/plain"] and 'aria-label="Claim ' in bundle["text/html"]

    assert discussed[0]["data"][notes.CLAIM]["discussed"] is True
    assert "&lt;b&gt;some&lt;/b&gt;" in discussed[0]["data"]["text/html"]

    assert set(asked[0]["data"]) == {"text/plain", "text/html", notes.WIDGET}
    assert "&lt;i&gt;" in asked[0]["data"]["text/html"] and "VBox" not in asked[0]["data"]["text/plain"]
    assert chosen[0]["text"].startswith("no [") and "Noted. Now run the next cell." in chosen[0]["text"]
    assert revealed[0]["data"]["text/plain"] == "You said: no; the run says: yes"

    assert "ValueError: &lt;oops&gt;" in expected[0]["data"]["text/html"]
    assert "&lt;again&gt;" in expected[0]["data"]["text/html"]
    for shown in (table, progress):
        html = shown[0]["data"]["text/html"]
        assert "<caption>" in html and 'scope="col"' in html and 'scope="row"' in html
        assert "|" in shown[0]["data"]["text/plain"]


def test_blocks_take_the_colour_of_the_page(tmp_path):
    html = notes.block("A label", ["text"], notes.GOOD)
    assert re.search(r"var\(--jp-[a-z0-9-]+, #[0-9a-f]{6}\)", html)
    assert not re.search(r"(?<!-)color:|background", html)  # so that light on dark and dark on light can both be read


def test_a_claim_that_fails_stops_the_notebook(tmp_path):
    path = write_notebook(
        tmp_path / "fails.ipynb",
        "from labkit import claim",
        f'claim("{entry("holds").id}", 1 > 2, ours="two winners")',
        "print('not reached')",
    )
    with pytest.raises(papermill.PapermillExecutionError) as error:
        execute(path)
    assert error.value.ename == "ClaimError"
    cells = json.loads(path.with_suffix(".out.ipynb").read_text())["cells"]
    shown, raised = next(cell["outputs"] for cell in cells if "two winners" in "".join(cell["source"]))
    assert shown["data"][notes.CLAIM]["ok"] is False and "✗" in "".join(shown["data"]["text/html"])
    assert len(raised["traceback"]) == 3 and "labkit" not in "".join(raised["traceback"])
    assert not any("not reached" in str(cell.get("outputs")) for cell in cells)


@pytest.mark.parametrize("block", ["with expect(LabError):\n    pass", "with expect(KeyError):\n    raise ValueError"])
def test_an_expected_error_that_does_not_come_stops_the_notebook(block, tmp_path):
    path = write_notebook(tmp_path / "fails.ipynb", f"from labkit import LabError, expect\n{block}")
    with pytest.raises(papermill.PapermillExecutionError):
        execute(path)
