"""Exercises: one form for all chapters, judged in the notebook and proved by the tests.

In a notebook an exercise is: a text; a code cell tagged `exercise`, the stub; a code cell tagged `exercise-check` that
calls `attempt`; a text tagged `hint` and one tagged `solution`, both folded with <details>, the solution with one block
of ```python. The stub must be answered with "not yet", and the solution must be solved.
"""

import copy
import os
import re
import traceback
from html import escape

from .check import HOLDS, Verdict
from .errors import LabError
from .notes import EXERCISES, GOOD, OPEN, block, keep, show, truth

ATTEMPT = "application/vnd.labkit.attempt+json"


def attempt(id: str, check, *, hint: str | None = None) -> None:
    """Judge the learner's answer to exercise `id` ("01.2": chapter, number) and show "solved" or "not yet" and why.

    check -- called without arguments; returns a Verdict, True or False, or raises. A verdict that cannot be judged is
    "not yet", and so is any error: an unfinished or wrong answer never fails the cell. hint -- one line shown with a
    "not yet". Raises LabError for an id of another form.
    """
    if not re.fullmatch(r"\d\d[a-z]?\.\d+", id):
        raise LabError(
            f"An exercise cannot be called {id!r}.",
            "Its name is the number of its chapter, a dot and its own number.",
            'Write attempt("01.1", check).',
        )
    ok, reason = _judge(check)
    text = f"{'solved' if ok else 'not yet'}: {reason}"
    data = {"id": id, "ok": ok, "text": text}
    lines = [f"Exercise {id}: {text}", *([f"Hint: {hint}"] if hint and not ok else [])]
    first, *rest = "\n".join(lines).splitlines()
    html = [f"<b>{'✓' if ok else '…'} {escape(first)}</b>", *map(escape, rest)]
    show("\n".join(lines), block(f"Exercise {id}", html, GOOD if ok else OPEN), **{ATTEMPT: data})
    keep(EXERCISES, id, data)


def _judge(check) -> tuple[bool, str]:
    try:
        result = check()
    except NotImplementedError as error:
        return False, str(error) or "the answer is not written yet"
    except LabError as error:
        return False, str(error)
    except AssertionError as error:
        return False, str(error) or f"this does not hold: {_place(error)}"
    except Exception as error:
        return False, f"{type(error).__name__}: {error} ({_place(error)})"
    if isinstance(result, Verdict):
        return result.status == HOLDS, repr(result)
    ok = truth(result)
    if ok is None:
        return False, f"the check got {result!r}, neither a verdict nor True or False; is the answer written?"
    return ok, "the check passes" if ok else "the check says no"


def _place(error: Exception) -> str:
    """The innermost line of the notebook that the error came through: a cell is in no file, a library is."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((f for f in reversed(frames) if not os.path.exists(f.filename)), frames[-1])
    return f"in {frame.name}: {frame.line}"


def with_solutions(nb: dict) -> dict:
    """A copy of a notebook in which each `exercise-check` cell is followed by its solution and by the check once more.

    The added cells are tagged `solution-code` and `solution-check`, so that one run proves the stub unfinished and the
    solution right. Raises LabError for a check without a solution of exactly one ```python block.
    """
    nb, cells = copy.deepcopy(nb), []
    for i, cell in enumerate(nb["cells"]):
        cells.append(cell)
        if "exercise-check" in _tags(cell):
            solution = _solution(nb["cells"][i + 1 :], cell)
            cells += [_like(cell, "solution-code", solution), _like(cell, "solution-check", cell["source"])]
    nb["cells"] = cells
    return nb


def attempts(nb: dict) -> list[dict]:
    """What each `attempt` of an executed notebook said, in order: {"id", "ok", "text"}."""
    outputs = [output for cell in nb["cells"] for output in cell.get("outputs", ())]
    return [output["data"][ATTEMPT] for output in outputs if ATTEMPT in output.get("data", ())]


def _solution(following: list[dict], check: dict) -> str:
    for cell in following:
        if "exercise-check" in _tags(cell):
            break
        if "solution" in _tags(cell):
            blocks = re.findall(r"^```python\n(.*?)^```", "".join(cell["source"]), re.MULTILINE | re.DOTALL)
            if len(blocks) == 1:
                return blocks[0]
            break
    raise LabError(
        f"The exercise checked by {_text(check)!r} has no solution that can be run.",
        "Its solution is a text cell tagged `solution`, before the next exercise, with exactly one ```python block.",
        "Write the cell, with the block between <details> and </details>, an empty line around it.",
    )


def _like(check: dict, tag: str, source) -> dict:
    """A new code cell of the kind that the notebook is made of (plain dict or nbformat's node)."""
    cell = copy.deepcopy(check)
    cell["id"] = f"{check['id'][:40]}-{tag}"
    cell["metadata"]["tags"] = [tag]
    cell["source"], cell["outputs"], cell["execution_count"] = source, [], None
    return cell


def _tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def _text(cell: dict) -> str:
    return " ".join("".join(cell["source"]).split())[:60]
