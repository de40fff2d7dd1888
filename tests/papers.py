"""Notebooks as the tests read them: plain dicts, with their parts by name. Also made by hand, for planted cases."""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

import mistune

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
_markdown = mistune.create_markdown(renderer=None)


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# -- made by hand
def paper(*cells: dict) -> dict:
    """A notebook of these cells; those without an id get one by their place."""
    made = [{**cell, "id": cell["id"] or f"cell-{i}"} for i, cell in enumerate(cells)]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}


def text(source: str, *tags: str, id: str = "") -> dict:
    return {"cell_type": "markdown", "id": id, "metadata": {"tags": list(tags)}, "source": source}


def code(source: str, *tags: str, id: str = "", outputs=()) -> dict:
    return text(source, *tags, id=id) | {"cell_type": "code", "outputs": list(outputs), "execution_count": None}


# -- parts
def source(cell: dict) -> str:
    return "".join(cell["source"])


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def code_cells(nb: dict) -> list[dict]:
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def texts(nb: dict) -> list[dict]:
    return [cell for cell in nb["cells"] if cell["cell_type"] == "markdown"]


def tagged(nb: dict, tag: str) -> list[dict]:
    return [cell for cell in nb["cells"] if tag in tags(cell)]


def tokens(cell: dict) -> list[dict]:
    """What a text cell is made of, every token of every depth, in order."""
    found, todo = [], list(_markdown(source(cell)))
    while todo:
        token = todo.pop(0)
        found.append(token)
        todo[:0] = token.get("children", ())
    return found


def words(token: dict) -> str:
    """The words that a reader sees of a token."""
    return token.get("raw", "") + "".join(map(words, token.get("children", ())))


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    cell: str  # the id of its cell


def headings(nb: dict) -> list[Heading]:
    return [
        Heading(token["attrs"]["level"], words(token), cell["id"])
        for cell in texts(nb)
        for token in tokens(cell)
        if token["type"] == "heading"
    ]


def solutions(cell: dict) -> list[str]:
    """The ```python blocks of a text cell."""
    return re.findall(r"^```python\n(.*?)^```", source(cell), re.MULTILINE | re.DOTALL)


def programs(nb: dict) -> list[tuple[str, str]]:
    """(id of the cell, code) of everything that is run: the code cells, and the solutions of exercises."""
    found = []
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            found.append((cell["id"], source(cell)))
        elif "solution" in tags(cell):
            found += [(cell["id"], block) for block in solutions(cell)]
    return found


def parse(program: str) -> ast.Module:
    """The syntax tree; empty for what is no Python, which a rule of its own finds."""
    try:
        return ast.parse(program)
    except SyntaxError:
        return ast.Module([], [])


@dataclass(frozen=True)
class Call:
    """A call written out in a notebook. id: its first argument if that is a text, else None."""

    name: str
    id: str | None
    condition: ast.expr | None  # its second argument
    cell: str


def calls(nb: dict, *names: str) -> list[Call]:
    """The calls of these functions, in the order of the cells."""
    found = []
    for cell, program in programs(nb):
        for node in ast.walk(parse(program)):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in names:
                given = {i: value for i, value in enumerate(node.args)} | {k.arg: k.value for k in node.keywords}
                first = given.get(0, given.get("id"))
                id = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
                found.append(Call(name, id, given.get(1, given.get("condition")), cell))
    return found
