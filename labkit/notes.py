"""What a notebook says between its experiments: claims settled, opinions discussed, guesses, expected errors, recipes.

In a notebook each shows one block (HTML, with a plain-text twin; a claim also its data, for the evidence report); in
plain Python it prints the plain text.
"""

import contextlib
import difflib
import json
import linecache
import os
import re
import sys
import types
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from numbers import Integral, Real
from pathlib import Path
from urllib.parse import quote

import cloudpickle

from . import ledger
from .check import Verdict
from .errors import ClaimError, LabError
from .notebooks import FOLDER
from .session import home

WIDGET = "application/vnd.jupyter.widget-view+json"
CLAIM = "application/vnd.labkit.claim+json"
CLAIMS, EXERCISES = "claims", "exercises"  # folders under home(): the learner's progress, a small file each
ROWS = "rows"  # and what a chapter measured for the later ones
OPINION = "opinion"
EXPECTED = {"holds": "holds", "caveat": "holds, with a caveat", "wrong": "doubtful or wrong", OPINION: "an opinion"}
OUTCOMES = {"holds": "holds, as measured here", "caveat": "holds, with a caveat", "wrong": "wrong, as measured here"}

# The edges of blocks: JupyterLab's colours, and for other pages one each that is seen on light and on dark.
GOOD, BAD = "--jp-success-color1, #3a9142", "--jp-error-color1, #d6473f"
OPEN, PLAIN = "--jp-warn-color1, #c77700", "--jp-border-color0, #808080"


# -- claims and opinions
def claim(id: str, condition: bool, *, ours, article=None) -> None:
    """Settle a claim of the ledger by a measurement.

    condition -- True when this run bears out what the ledger expects: of a statement that is expected to be wrong,
    that it was wrong here. ours, article -- what was measured here and what the article prints (a Verdict, a text or
    a number). Raises ClaimError, after showing the block, when the condition is False; LabError when it is no bool,
    when the id is not in the ledger, or names an opinion.
    """
    entry = ledger.entry(id)
    if entry.verdict == OPINION:
        raise LabError(
            f"{id} is an opinion, and a measurement cannot settle it.",
            "No outcome of a run could refute it; a run can only lend evidence to one side.",
            f'Write discuss("{id}", sides=[("who", "what they say"), ...], evidence=...).',
        )
    ok = truth(condition)
    if ok is None:
        raise LabError(
            f"claim {id} was given {_a(condition)} as its condition, not True or False.",
            "A claim must say which outcome it expects, and many values count as true that say nothing.",
            f'For a verdict v: claim("{id}", v.ok, ours=v), or not v.ok if a violation is what you expect.',
        )
    ours = told(ours)
    data = {
        "id": id, "ok": ok, "statement": entry.statement, "verdict": entry.verdict, "ours": ours,
        "article": None if article is None else told(article), "sources": list(entry.sources),
    }  # fmt: skip
    outcome = f"✓ {OUTCOMES[entry.verdict]}" if ok else "✗ this run does not support it"
    article = [] if article is None else [("article", data["article"])]
    _show_entry(entry, [[*article, ("ours", ours)]], outcome, GOOD if ok else BAD, data)
    if not ok:
        raise ClaimError(
            f"{id}: measured {_line(ours)}.",
            f"This run does not support what was expected: {_line(entry.expected).rstrip('.')}.",
            "Look at the picture of the run and at the evidence of its verdict, then run the experiment's cell again.",
        )


def discuss(id: str, *, sides, evidence=None) -> None:
    """Show the sides of an opinion of the ledger, and what was measured that bears on it.

    sides -- two or more of (who, what they say). evidence -- a Verdict, a text or a number. Raises LabError when the
    id is not in the ledger or is no opinion.
    """
    entry = ledger.entry(id)
    if entry.verdict != OPINION:
        raise LabError(
            f"{id} is no opinion: a run can refute it.",
            f"What is expected of a run: {_line(entry.expected).rstrip('.')}.",
            f'Measure it: claim("{id}", condition, ours=...).',
        )
    if len(sides) < 2 or not all(map(_is_side, sides)):
        raise LabError(
            f"discuss {id} was not given two sides.",
            "A discussion has at least two, and each is a pair of texts: who says it, and what they say.",
            f'Write discuss("{id}", sides=[("some", "..."), ("others", "...")]).',
        )
    evidence = None if evidence is None else told(evidence)
    data = {
        "id": id, "ok": None, "discussed": True, "statement": entry.statement, "verdict": entry.verdict,
        "sides": [list(side) for side in sides], "ours": evidence, "article": None, "sources": list(entry.sources),
    }  # fmt: skip
    measured = [] if evidence is None else [[("measured here", evidence)]]
    _show_entry(entry, [*([side] for side in sides), *measured], "an opinion: no run settles it", PLAIN, data)


def claims_table(chapter: str) -> None:
    """Show the claims of a chapter ("01-locks"): what people say, what is expected of it, what this machine measured.

    Raises LabError for an unknown chapter.
    """
    kept = progress_of(CLAIMS)
    rows = [(e.id, e.statement, EXPECTED[e.verdict], _measured(e, kept.get(e.id))) for e in ledger.of_chapter(chapter)]
    table(f"The claims of chapter {chapter}", ("claim", "what people say", "expected", "measured here"), rows)


def progress() -> None:
    """Show, chapter by chapter, which claims this machine has settled and which exercises were solved on it."""
    kept = progress_of(CLAIMS)
    solved = sorted(id for id, data in progress_of(EXERCISES).items() if data["ok"])
    rows = []
    for chapter in ledger.CHAPTERS:
        entries = ledger.of_chapter(chapter)
        settled = [e.id for e in entries if e.id in kept and kept[e.id]["ok"] is not False]
        mine = [id for id in solved if id.split(".")[0] == chapter.split("-")[0]]
        rows.append((chapter, f"{len(settled)} of {len(entries)}", _list(settled), _list(mine)))
    table("Settled on this machine", ("chapter", "claims", "which", "exercises solved"), rows)


def _measured(entry, data: dict | None) -> str:
    if data is None:
        return "not yet"
    outcome = "discussed" if data["ok"] is None else OUTCOMES[entry.verdict] if data["ok"] else "not supported"
    return outcome if data["ours"] is None else f"{outcome}: {data['ours']}"


def _is_side(side) -> bool:
    return isinstance(side, (tuple, list)) and len(side) == 2 and all(isinstance(text, str) for text in side)


def _show_entry(entry, facts: list[list[tuple]], outcome: str, edge: str, data: dict) -> None:
    """facts -- lines, each of pairs (name, value) that stand beside one another."""
    text = [f"{entry.id}: “{entry.statement}” ({entry.footnote})"]
    text += ["  " + " | ".join(f"{name}: {value}" for name, value in line) for line in facts]
    html = [f"<small>{escape(entry.id)}</small> “{escape(entry.statement)}” <small>({escape(entry.footnote)})</small>"]
    html += [" | ".join(f"{escape(name)}: <b>{escape(value)}</b>" for name, value in line) for line in facts]
    html.append(f"<b>{escape(outcome)}</b>")
    show("\n".join([*text, f"  {outcome}"]), block(f"Claim {entry.id}", html, edge), **{CLAIM: data})
    keep(CLAIMS, entry.id, data)


# -- guesses
@dataclass
class Prediction:
    """A guess made before a run. answer: the option that was chosen, None until then."""

    question: str
    options: tuple
    answer: object = None

    def reveal(self, truth) -> None:
        """Show the guess beside what the run says (a Verdict, a text or a number)."""
        says = f"run says: {_line(told(truth))}"
        text = f"The {says}" if self.answer is None else f"You said: {_line(told(self.answer))}; the {says}"
        show(text, block("Prediction and outcome", [f"<b>{escape(text)}</b>"], PLAIN))


def predict(question: str, *options) -> Prediction:
    """Ask for a guess, with nothing chosen beforehand. It never waits: the next cells run with or without an answer."""
    if len(options) < 2 or len({str(option) for option in options}) < len(options):
        raise LabError(
            f"predict needs two or more different options; it was given {len(options)}: {_line(repr(options))}.",
            "Without a choice there is nothing to guess.",
            'Write predict("Who gets the lock?", "A", "B", "nobody").',
        )
    guess = Prediction(question, options)
    text = "\n".join([f"Your guess: {question}", *(f"  ( ) {option}" for option in options)])
    if not _in_notebook():
        print(text)
        return guess
    import ipywidgets as widgets  # heavy, and of no use in plain Python

    asked = widgets.HTML(f"<b>{escape(question)}</b>")
    radio = widgets.RadioButtons(options=[(str(o), o) for o in options], value=None, layout={"width": "max-content"})
    said = widgets.HTML('<span role="status"></span>')

    def chosen(change):
        guess.answer = change["new"]
        said.value = '<span role="status">Noted. Now run the next cell.</span>'

    radio.observe(chosen, "value")
    box = widgets.VBox([asked, radio, said])
    html = block("Your guess", [escape(line) for line in text.splitlines()], PLAIN)  # where no widget can be shown
    show(text, html, **{WIDGET: box._repr_mimebundle_()[WIDGET]})
    return guess


# -- expected errors
@contextlib.contextmanager
def expect(*kinds: type[Exception], match: str | None = None):
    """Show the error that the block raises as a learner would meet it, and go on.

    match -- a regular expression that its text must contain. Raises ClaimError when nothing is raised; an error of
    another class, or with another text, passes through.
    """
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise LabError(
            f"expect was given {', '.join(map(_line, map(repr, kinds))) or 'nothing'}, not the class of an error.",
            "It must know which error is the expected one, so that no other is hidden.",
            "Write: with expect(LabError):",
        )
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds as error:
        if match is not None and not re.search(match, str(error)):
            error.add_note(f"(expected was a text that matches {match!r})")
            raise
        lines = [*f"{type(error).__name__}: {error}".splitlines(), *getattr(error, "__notes__", ())]
        html = [f"<b>Expected error</b> {escape(lines[0])}", *map(escape, lines[1:])]
        show("\n".join(lines), block("Expected error", html, BAD))
    else:
        raise ClaimError(
            f"{names} was expected, and nothing was raised.",
            "The mistake that this block shows was not made, or it is allowed by now.",
            "Take the `with expect(...)` away, or look at what the block should have refused.",
        )


# -- recipes of other chapters
def recall(notebook: str, *names: str):
    """Run the cells tagged `imports` and `recipe` of a notebook as a module of its own, and show where they are from.

    Returns the module, or the named object (a tuple, if more are named). Workers get what is in it by value, and its
    source can be read (inspect.getsource). Each call makes it anew. Raises LabError for an unknown notebook or name.
    """
    path = _find(notebook)
    source = "\n\n".join(_recipes(path))
    module = types.ModuleType("recipes_" + re.sub(r"\W", "_", notebook))
    module.__file__ = f"<recipes of {notebook}>"
    # An entry without a time is never checked against the disk, and shipping takes its lines along.
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(keepends=True), module.__file__)
    sys.modules[module.__name__] = module  # first: a dataclass looks up its module while it is made
    try:
        exec(compile(source, module.__file__, "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    cloudpickle.register_pickle_by_value(module)
    for name in names:
        if name not in vars(module):
            raise LabError(
                f"The recipes of {notebook} define no {name!r}.",
                "The name may be misspelt, or its cell has no tag `recipe`.",
                f"Take one of: {_nearest(name, [known for known in vars(module) if known[0] != '_'])}",
            )
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    shown = names or own
    codes = ", ".join(f"<code>{escape(name)}</code>" for name in shown)
    link = f'<a href="{quote(path.name)}">{escape(notebook)}</a>'
    show(f"From {path.name}: {', '.join(shown)}", block("Recipes recalled", [f"From {link}: {codes}"], PLAIN))
    if not names:
        return module
    return getattr(module, names[0]) if len(names) == 1 else tuple(getattr(module, name) for name in names)


def _find(notebook: str) -> Path:
    """Beside the package, else where the kernel runs (a container, where the package lies elsewhere)."""
    folders = [FOLDER, Path.cwd(), Path.cwd() / "notebooks"]
    known = {path.stem: path for folder in reversed(folders) for path in folder.glob("*.ipynb")}
    if notebook in known:
        return known[notebook]
    raise LabError(
        f"There is no notebook {notebook!r} to recall from.",
        "The name may be misspelt; it is the file's name without .ipynb.",
        f"Take one of: {_nearest(notebook, sorted(known))}",
    )


def _recipes(path: Path) -> list[str]:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError) as error:
        raise LabError(
            f"{path.name} cannot be read as a notebook: {_line(str(error))}.",
            "It may be cut short, or have the marks of an unfinished merge in it.",
            f"See what was changed: git diff {path.name}",
        ) from None
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    tagged = [(set(cell["metadata"].get("tags", ())), "".join(cell["source"])) for cell in code]
    if not any("recipe" in tags for tags, _ in tagged):
        raise LabError(
            f"{path.name} has no recipe to recall.",
            "No code cell of it has the tag `recipe`.",
            "Add the tag `recipe`: in JupyterLab, the two gears at the right show a cell's tags.",
        )
    return [source for tags, source in tagged if tags & {"imports", "recipe"}]


# -- what the learner did so far
def keep(shelf: str, name: str, data: dict) -> None:
    """Save one small file of progress, whole or not at all. A disk that refuses costs a line, never the lesson."""
    path = home() / shelf / f"{name}.json"
    new = path.with_name(f".{name}.{os.getpid()}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({**data, "utc": now}, ensure_ascii=False), encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        print(f"(your progress is not saved: {path.parent}: {error.strerror}; LABKIT_HOME can name another folder)")
        with contextlib.suppress(OSError):
            new.unlink()


def progress_of(shelf: str) -> dict[str, dict]:
    """What `keep` saved on a shelf, by name. A file that cannot be read counts as not there."""
    kept = {}
    for path in (home() / shelf).glob("[!.]*.json"):
        with contextlib.suppress(OSError, ValueError):
            kept[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    return kept


# -- what a chapter measured, for the later ones
def keep_rows(chapter: str, rows: list[dict]) -> None:
    """Save the rows of a chapter's table ("02-redlock-debate"), in place of those of its last run.

    rows -- dictionaries of plain values: texts, numbers, True, False, None. Raises LabError for other values, and for
    an unknown chapter.
    """
    ledger.of_chapter(chapter)
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(cell, str | Real | None) for cell in row.values()):
            raise LabError(
                f"This row cannot be kept: {_line(repr(row))[:200]}",
                "A later chapter reads it from a file: a row is a dictionary of texts, numbers, True, False and None.",
                'Write keep_rows(chapter, [{"fault": "freeze", "lock": "Redlock", "harm": True}]).',
            )
    keep(ROWS, chapter, {"rows": list(rows)})


def kept_rows(chapter: str) -> list[dict]:
    """What `keep_rows` saved of a chapter; [] when it has not run on this machine. LabError: an unknown chapter."""
    ledger.of_chapter(chapter)
    return progress_of(ROWS).get(chapter, {}).get("rows", [])


# -- telling and showing
def truth(value) -> bool | None:
    """A bool, also one of numpy's, as a bool; anything else is None."""
    if isinstance(value, bool):
        return value
    return bool(value) if getattr(value, "dtype", None) == "bool" and value.ndim == 0 else None


def told(value) -> str:
    """A Verdict, a number or a text in words."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value)


def show(text: str, html: str, **more) -> None:
    """Display one bundle in a notebook; in plain Python print its text. more: further kinds of it, by MIME type."""
    if not _in_notebook():
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": html, **more}, raw=True)


def block(label: str, lines: list[str], edge: str) -> str:
    """Lines of HTML as one compact block. Its text takes the page's colour; what the edge says, the words say too."""
    style = f"border-left: 4px solid var({edge}); padding: 0.2em 0.8em; margin: 0.4em 0"
    inside = "".join(f'<p style="margin: 0.15em 0">{line}</p>' for line in lines)
    return f'<div role="group" aria-label="{escape(label)}" style="{style}">{inside}</div>'


def table(caption: str, head: tuple, rows: list[tuple]) -> None:
    """Show a table of texts; the first text of each row is its name."""
    text = [caption, *("  " + " | ".join(row) for row in [head, *rows])]
    left = 'style="text-align: left; vertical-align: top"'
    name = 'style="text-align: left; vertical-align: top; white-space: nowrap"'
    heads = "".join(f'<th scope="col" {left}>{escape(value)}</th>' for value in head)
    body = "".join(
        f'<tr><th scope="row" {name}>{escape(row[0])}</th>'
        + "".join(f"<td {left}>{escape(value)}</td>" for value in row[1:])
        + "</tr>"
        for row in rows
    )
    html = f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    show("\n".join(text), html)


def _in_notebook() -> bool:
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def _line(text: str) -> str:
    return " ".join(text.split())


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none yet"


def _a(value) -> str:
    return "a Verdict" if isinstance(value, Verdict) else f"{_line(repr(value))} ({type(value).__name__})"


def _nearest(name: str, known: list[str]) -> str:
    return ", ".join(difflib.get_close_matches(name, known, 3, 0.4) or known) or "none is here"
