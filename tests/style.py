"""The rules of form that every notebook keeps, judged without running it.

A rule takes a notebook and its name and yields what it finds wrong, one line each. What `advice` says is no failure: a
number met with filler is worse than one missed.
"""

import ast
import re
import statistics
from itertools import groupby
from urllib.parse import unquote

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from papers import FOLDER, calls, code_cells, headings, parse, programs, source, tagged, tags, texts, tokens

from labkit import exercise
from labkit.errors import LabError
from labkit.ledger import ledger
from labkit.notes import OPINION

MOST_LINES = 25
MOST_RECIPES = 3  # cells in a row
MOST_STORY = 8  # claims; the others belong in the fine print
FINE_PRINT = "the fine print"
EXERCISE = {"exercise": "code", "exercise-check": "code", "hint": "markdown", "solution": "markdown"}
MOST_EXERCISES = 5
SKELETON = ("what you would use on monday", "when not to use this", "your turn", "what to remember")

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://(?!127\.0\.0\.1|localhost|\[::1\]|\{)\S*", re.IGNORECASE)
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_CODE_OF_A_SOURCE = re.compile(r"\b002[ABC]\b|\barticles? 00[0-2]\b", re.IGNORECASE)
_DURATION = re.compile(r"(?:^|_)(?:s|ms|us|seconds|elapsed|took|duration|latency|waited)$")
_WORD = re.compile(r"\w[\w'’-]*")


# -- cells
def valid(nb, name):
    """It is a notebook, of a format that keeps the ids of cells, and no two cells share one."""
    if nb.get("nbformat") != 4 or nb.get("nbformat_minor", 0) < 5:
        yield "its format is older than 4.5, and gives its cells new ids at each save"
        return
    ids = [cell.get("id") for cell in nb["cells"]]
    if twins := {id for id in ids if ids.count(id) > 1}:
        yield f"{sorted(map(str, twins))}: more than one cell has this id"
        return
    try:
        nbformat.validate(nb)
    except nbformat.ValidationError as error:
        yield f"no valid notebook: {error.message}"


def clean(nb, name):
    """No outputs and no counters: everything in the file was written by hand."""
    for cell in code_cells(nb):
        if cell["outputs"]:
            yield f"{cell['id']}: has outputs"
        if cell["execution_count"] is not None:
            yield f"{cell['id']}: has an execution count"


def short(nb, name):
    """A cell is read on one screen; a solution too."""
    for cell, program in programs(nb):
        if (n := len(program.splitlines())) > MOST_LINES:
            yield f"{cell}: {n} lines of code, at most {MOST_LINES}"


def recipes(nb, name):
    """A recipe is at most three cells of code in a row."""
    for is_recipe, run in groupby(nb["cells"], lambda cell: "recipe" in tags(cell)):
        first, *more = run
        if is_recipe and len(more) >= MOST_RECIPES:
            yield f"{first['id']}: {1 + len(more)} recipe cells in a row, at most {MOST_RECIPES}"
    for cell in tagged(nb, "recipe"):
        if cell["cell_type"] != "code":
            yield f"{cell['id']}: a recipe that is no code"


# -- code
def python(nb, name):
    """Plain Python that parses: no magics, no commands of a shell. Solutions too."""
    for cell, program in programs(nb):
        if TransformerManager().transform_cell(program).rstrip() != program.rstrip():
            yield f"{cell}: a magic, a command of a shell or a question to IPython"
            continue
        try:
            tree = ast.parse(program)
        except SyntaxError as error:
            yield f"{cell}: no Python: {error.msg} (line {error.lineno})"
            continue
        if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(tree)):
            yield f"{cell}: get_ipython, a magic in disguise"


def no_sleep(nb, name):
    """Time is spent with `w.work` and `lab.let_pass`, and events are waited for."""
    for cell, program in programs(nb):
        for node in ast.walk(parse(program)):
            match node:
                case ast.Attribute(attr="sleep") | ast.Name(id="sleep") | ast.alias(name="sleep"):
                    yield f"{cell}: sleep; time is spent with w.work or lab.let_pass"


def no_star(nb, name):
    """Every name can be traced to where it comes from."""
    for cell, program in programs(nb):
        for node in ast.walk(parse(program)):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                yield f"{cell}: from {node.module} import *"


def at_home(nb, name):
    """No code reaches beyond the machine."""
    for cell, program in programs(nb):
        for match in _URL.finditer(program):
            yield f"{cell}: {match[0]} lies beyond this machine"


def imports(nb, name):
    """One cell tagged `imports`, of nothing else: wherever recipes are recalled, it is run."""
    cells = tagged(nb, "imports")
    if [cell["cell_type"] for cell in cells] != ["code"]:
        yield f"{len(cells)} cells tagged imports, one cell of code is wanted"
    elif not all(isinstance(node, ast.Import | ast.ImportFrom) for node in parse(source(cells[0])).body):
        yield f"{cells[0]['id']}: holds more than imports"


def parameters(nb, name):
    """One cell tagged `parameters`: DRIVER = "auto", QUICK = False, SEED a whole number."""
    cells = tagged(nb, "parameters")
    if [cell["cell_type"] for cell in cells] != ["code"]:
        yield f"{len(cells)} cells tagged parameters, one cell of code is wanted"
        return
    given = {}
    for node in parse(source(cells[0])).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=known)], value=ast.Constant(value=value)):
                given[known] = value
            case _:
                yield f"{cells[0]['id']}: holds more than plain values"
    if given.get("DRIVER") != "auto":
        yield f'{cells[0]["id"]}: DRIVER is not "auto"'
    if given.get("QUICK") is not False:
        yield f"{cells[0]['id']}: QUICK is not False"
    if type(given.get("SEED")) is not int:
        yield f"{cells[0]['id']}: SEED is no whole number"


# -- text
def title(nb, name):
    """One heading of the first level, and the notebook begins with it."""
    titles = [heading.cell for heading in headings(nb) if heading.level == 1]
    first = nb["cells"][0]
    if len(titles) != 1:
        yield f"{len(titles)} headings of level 1, one is wanted"
    elif titles != [first["id"]] or tokens(first)[0]["type"] != "heading":
        yield "does not begin with its title"


def levels(nb, name):
    """No level of heading is skipped on the way down."""
    above = 0
    for heading in headings(nb):
        if heading.level > above + 1:
            yield f"{heading.cell}: {heading.text!r} has level {heading.level}, below one of level {above}"
        above = heading.level


def links(nb, name):
    """What is linked or recalled inside the course exists."""
    for cell in texts(nb):
        for token in tokens(cell):
            target = token.get("attrs", {}).get("url", "").partition("#")[0]
            if target and not _OUTSIDE.match(target) and not (FOLDER / unquote(target)).exists():
                yield f"{cell['id']}: a link to {target}, which is not there"
    for call in calls(nb, "recall"):
        if call.id is None or not (FOLDER / f"{call.id}.ipynb").exists():
            yield f"{call.cell}: recalls {call.id!r}, which is no notebook"


def no_codes(nb, name):
    """A source is named in words, never by a code that no reader knows."""
    for cell in nb["cells"]:
        for match in _CODE_OF_A_SOURCE.finditer(source(cell)):
            yield f"{cell['id']}: {match[0]!r} names a source by a code"


# -- claims
def settles(nb, name):
    """What a notebook settles are claims of its chapter, each once; opinions are discussed, and nothing else is."""
    seen = set()
    for call in calls(nb, "claim", "discuss"):
        place, entry = f"{call.cell}: {call.name}({call.id})", ledger().get(call.id)
        if call.id is None:
            yield f"{call.cell}: {call.name}(…), whose id is not written out as a text"
        elif entry is None:
            yield f"{place}, which the ledger does not know"
        elif entry.chapter != name:
            yield f"{place}, which belongs to {entry.chapter}"
        elif (entry.verdict == OPINION) != (call.name == "discuss"):
            yield f"{place}, which is {'an' if entry.verdict == OPINION else 'no'} opinion"
        if call.id in seen:
            yield f"{place}, which was settled before"
        seen.add(call.id)


def conditions(nb, name):
    """A claim can fail, and not by the noise of the machine: it measures, and not only how long something took."""
    for call in calls(nb, "claim"):
        parts = _parts(call.condition) if call.condition else []
        if not parts or not all(map(_measures, parts)):
            yield f"{call.cell}: claim({call.id}): a part of its condition measures nothing"
        elif all(map(_bare_duration, parts)):
            yield f"{call.cell}: claim({call.id}): a bare duration; claim an order, a count or a ratio"


def _parts(node: ast.expr) -> list[ast.expr]:
    """What and, or, not put together to a condition."""
    match node:
        case ast.BoolOp(values=values):
            return [part for value in values for part in _parts(value)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _parts(operand)
    return [node]


def _names(node: ast.expr) -> set[str]:
    """What an expression looks at: names, of an attribute the last part. CAPITALS are constants."""
    owners = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    seen = [n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute) and id(n) not in owners | called]
    return {name for n in seen if not (name := getattr(n, "attr", getattr(n, "id", ""))).isupper()}


def _measures(part: ast.expr) -> bool:
    return bool(_names(part)) or any(isinstance(node, ast.Call) for node in ast.walk(part))


def _bare_duration(part: ast.expr) -> bool:
    """One time compared with constants. Two times, compared with each other, are an order or a ratio."""
    names = _names(part)
    return isinstance(part, ast.Compare) and len(names) == 1 and all(map(_DURATION.search, names))


def story(nb, name):
    """At most eight claims are told as story, before "The fine print"."""
    cells = [cell["id"] for cell in nb["cells"]]
    end = next((cells.index(h.cell) for h in headings(nb) if h.text.casefold() == FINE_PRINT), len(cells))
    told = sum(cells.index(call.cell) < end for call in calls(nb, "claim"))
    if told > MOST_STORY:
        yield f"{told} claims before {FINE_PRINT.capitalize()!r}, at most {MOST_STORY}"


# -- exercises
def exercises(nb, name):
    """Five at most, of one form: below a text the stub, its check, a folded hint and a folded solution in a row."""
    marked = [(i, tag) for i, cell in enumerate(nb["cells"]) for tag in tags(cell) if tag in EXERCISE]
    for number, n in enumerate(range(0, len(marked), 4), 1):
        start = marked[n][0]
        cells = nb["cells"][start : start + 4]
        if marked[n : n + 4] != list(enumerate(EXERCISE, start)):
            yield f"{cells[0]['id']}: an exercise is four cells in a row: {', '.join(EXERCISE)}"
            return
        yield from _exercise(cells, f"{name.split('-')[0]}.{number}")
        if not start or nb["cells"][start - 1]["cell_type"] != "markdown":
            yield f"{cells[0]['id']}: no text above it says what to do"
    try:
        exercise.with_solutions(nb)
    except LabError as error:
        yield " ".join(str(error).splitlines())
    if len(marked) > 4 * MOST_EXERCISES:
        yield f"{len(marked) // 4} exercises, at most {MOST_EXERCISES}"


def _exercise(cells, id):
    place = cells[0]["id"]
    if [cell["cell_type"] for cell in cells] != list(EXERCISE.values()):
        yield f"{place}: stub and check are code, hint and solution are texts"
    for cell in cells[2:]:
        if "<details>" not in source(cell):
            yield f"{cell['id']}: is not folded with <details>"
    if [call.id for call in calls({"cells": cells}, "attempt")] != [id]:
        yield f'{place}: its check does not call attempt("{id}", ...) once'


RULES = (
    valid, clean, short, recipes, python, no_sleep, no_star, at_home, imports, parameters,
    title, levels, links, no_codes, settles, conditions, story, exercises,
)  # fmt: skip


def complete(nb, name):
    """Of a finished chapter: every claim is settled, and no part of the skeleton is missing. 00 is only the way in."""
    first = name.startswith("00")
    done = {call.id for call in calls(nb, "claim", "discuss")}
    for entry in ledger().values():
        if entry.chapter == name and entry.id not in done:
            yield f"{entry.id} is not settled"
    made, least = len(tagged(nb, "exercise")), 1 if first else 3
    if made < least:
        yield f"{made} exercises, at least {least}"
    if [call.id for call in calls(nb, "claims_table")] != [name]:
        yield f'no table of its claims: claims_table("{name}")'
    said = [heading.text.casefold().rstrip(".:!?") for heading in headings(nb)]
    for wanted in () if first else SKELETON:
        if said.count(wanted) != 1:
            yield f"{said.count(wanted)} headings {wanted.capitalize()!r}, one is wanted"


def advice(nb, name):
    """Where a chapter is unlike the others in size and rhythm."""
    cells = nb["cells"]
    lines = [len(source(cell).splitlines()) for cell in code_cells(nb)]
    median, high = statistics.median(lines), statistics.quantiles(lines, n=10, method="inclusive")[-1]
    if median > 6 or high > 16:
        yield f"code cells have a median of {median:g} lines and a 90th percentile of {high:g} (6 and 16)"
    for kind, run in groupby(cells, lambda cell: cell["cell_type"]):
        first, *more = run
        if kind == "code" and len(more) > 1:
            yield f"{1 + len(more)} code cells in a row from {first['id']} (2)"
    prose = [token["raw"] for cell in texts(nb) for token in tokens(cell) if token["type"] in ("text", "codespan")]
    ratio = sum(len(_WORD.findall(said)) for said in prose) / sum(lines)
    if not 8 <= ratio <= 15:
        yield f"{ratio:.1f} words of prose a line of code (8 to 15)"
    sections = sum(heading.level == 2 for heading in headings(nb))
    if not 6 * sections <= len(cells) <= 10 * sections:
        yield f"{sections} sections in {len(cells)} cells (one each 6 to 10)"
    if not 35 <= len(cells) <= 70:
        yield f"{len(cells)} cells (35 to 70)"
