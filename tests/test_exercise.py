"""Exercises: a stub is "not yet", a solution is solved, and nothing a learner writes fails the cell."""

import copy
import json
from pathlib import Path

import nbformat
import numpy
import pytest
from nbclient import NotebookClient
from papers import code, paper, text

from labkit import exercise, notes
from labkit.check import HOLDS, UNJUDGED, VIOLATED, Verdict
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "home"


def three_lines(error):
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and all(lines), lines


def judged(home, check, **how):
    exercise.attempt("01.1", check, **how)
    return json.loads((home / "exercises" / "01.1.json").read_text(encoding="utf-8"))


def raising(error):
    def check():
        raise error

    return check


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (True, "solved: the check passes"),
        (numpy.bool_(True), "solved: the check passes"),
        (Verdict("token order", HOLDS, "2 writes"), "solved: token order holds: 2 writes"),
        (False, "not yet: the check says no"),
        (Verdict("token order", VIOLATED, "7 after 8"), "not yet: token order VIOLATED: 7 after 8"),
        (Verdict("token order", UNJUDGED, "no write"), "not yet: token order cannot be judged: no write"),
        (None, "not yet: the check got None"),
        (..., "not yet: the check got Ellipsis"),
        (NotImplemented, "not yet: the check got NotImplemented"),
        (1, "not yet: the check got 1"),
    ],
    ids=str,
)
def test_an_answer_is_solved_or_not_yet(result, words, home, capsys):
    data = judged(home, lambda: result)
    assert data["text"].startswith(words)
    assert data["ok"] is words.startswith("solved") and data["id"] == "01.1" and data["utc"]
    assert capsys.readouterr().out.startswith(f"Exercise 01.1: {words}")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotImplementedError(), "not yet: the answer is not written yet"),
        (NotImplementedError("write acquire()"), "not yet: write acquire()"),
        (AssertionError("both got in"), "not yet: both got in"),
        (AssertionError(), "not yet: this does not hold: in check: raise error"),
        (TypeError("no len()"), "not yet: TypeError: no len() (in check: raise error)"),
        (LabError("It broke.", "It was cut.", "Mend it."), "not yet: It broke.\nIt was cut.\nMend it."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_not_yet_and_told(error, words, home):
    assert judged(home, raising(error)) | {"utc": 0} == {"id": "01.1", "ok": False, "text": words, "utc": 0}


def test_an_interrupt_is_the_learners_own():
    with pytest.raises(KeyboardInterrupt):
        exercise.attempt("01.1", raising(KeyboardInterrupt()))


def test_the_hint_stands_beside_a_not_yet_only(home, capsys):
    judged(home, lambda: False, hint="Look at the token.")
    assert "Hint: Look at the token." in capsys.readouterr().out
    judged(home, lambda: True, hint="Look at the token.")
    assert "Hint" not in capsys.readouterr().out


@pytest.mark.parametrize("id", ["1.1", "01", "01.a", "01ab.1", "../01.1", "01.1 ", ""])
def test_an_id_of_another_form_is_refused(id, home):
    with pytest.raises(LabError) as error:
        exercise.attempt(id, lambda: True)
    three_lines(error)
    assert not home.exists()


def test_a_chapter_in_two_parts_counts_the_exercises_of_each(home, capsys):
    exercise.attempt("07a.1", lambda: True)
    exercise.attempt("07b.1", lambda: True)
    notes.progress()
    lines = capsys.readouterr().out.splitlines()
    for part in ("07a", "07b"):
        assert any(line.strip().startswith(f"{part}-") and line.endswith(f"{part}.1") for line in lines), lines


# -- notebooks
STUB = "def double(x):\n    ..."
CHECK = """\
def check():
    assert double(2) == 4, "double(2) should be 4"
    return True

attempt("01.1", check, hint="Add.")"""
SOLUTION = "<details><summary>Solution</summary>\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n</details>"


def one_exercise(solution=SOLUTION):
    return paper(
        code("from labkit import attempt", "imports"),
        code(STUB, "exercise"),
        code(CHECK, "exercise-check"),
        text("<details><summary>Hint</summary>Twice.</details>", "hint"),
        text(solution, "solution"),
    )


def execute(nb, folder):
    nb = nbformat.from_dict(nb)
    nbformat.validate(nb)
    return NotebookClient(nb, kernel_name="python3", timeout=60, resources={"metadata": {"path": folder}}).execute()


def test_one_run_proves_the_stub_unfinished_and_the_solution_right(tmp_path, home):
    nb = one_exercise()
    before = copy.deepcopy(nb)
    solved = exercise.with_solutions(nb)
    assert nb == before
    assert [c["metadata"]["tags"][0] for c in solved["cells"]] == [
        "imports", "exercise", "exercise-check", "solution-code", "solution-check", "hint", "solution",
    ]  # fmt: skip
    run = execute(solved, str(tmp_path))
    first, second = exercise.attempts(run)
    assert first == {"id": "01.1", "ok": False, "text": "not yet: double(2) should be 4"}
    assert second == {"id": "01.1", "ok": True, "text": "solved: the check passes"}
    html = run.cells[2].outputs[0]["data"]["text/html"]
    assert "not yet" in html and "Hint: Add." in html and 'role="group"' in html
    assert notes.progress_of(notes.EXERCISES)["01.1"]["ok"] is True


def test_a_wrong_solution_is_found_out(tmp_path):
    run = execute(exercise.with_solutions(one_exercise(SOLUTION.replace("2 * x", "x + 3"))), str(tmp_path))
    assert [said["ok"] for said in exercise.attempts(run)] == [False, False]


def test_an_error_below_a_cell_is_told_with_the_cells_own_line(tmp_path):
    nb = paper(
        code("import json\nfrom labkit import attempt\ndef answer(x):\n    return json.loads(x)  # <here>", "exercise"),
        code('attempt("01.1", lambda: answer(3), hint="<Add>")', "exercise-check"),
    )
    run = execute(nb, str(tmp_path))
    (said,) = exercise.attempts(run)
    assert said["text"].startswith("not yet: TypeError: ")
    assert said["text"].endswith("(in answer: return json.loads(x)  # <here>)")
    html = run.cells[1].outputs[0]["data"]["text/html"]
    assert "&lt;here&gt;" in html and "&lt;Add&gt;" in html


def test_nodes_of_nbformat_stay_nodes():
    solved = exercise.with_solutions(nbformat.from_dict(one_exercise()))
    assert all(c.cell_type for c in solved.cells)
    nbformat.validate(solved)


def test_sources_may_be_lists_of_lines():
    nb = one_exercise()
    for c in nb["cells"]:
        c["source"] = c["source"].splitlines(keepends=True)
    solved = exercise.with_solutions(nb)
    assert "".join(solved["cells"][3]["source"]) == "def double(x):\n    return 2 * x\n"
    assert "".join(solved["cells"][4]["source"]) == CHECK


@pytest.mark.parametrize(
    "solution",
    ["<details>Look it up.</details>", SOLUTION + "\n" + SOLUTION, SOLUTION.replace("python", "text")],
    ids=["no block", "two blocks", "another language"],
)
def test_a_solution_that_cannot_be_run_is_refused(solution):
    with pytest.raises(LabError) as error:
        exercise.with_solutions(one_exercise(solution))
    three_lines(error)


def test_a_check_does_not_borrow_the_next_solution():
    nb = one_exercise()
    lonely = code('attempt("01.2", check)', "exercise-check", id="lonely")
    nb["cells"].insert(1, lonely)
    with pytest.raises(LabError, match="01.2"):
        exercise.with_solutions(nb)


def test_a_notebook_without_exercises_stays_as_it_is():
    nb = paper(code("1 + 1", "recipe"))
    assert exercise.with_solutions(nb) == nb
    assert exercise.attempts(nb) == []
