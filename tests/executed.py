"""What an executed notebook must show, judged by its outputs. A rule takes it and yields what it finds wrong.

The notebook is one that `labkit.exercise.with_solutions` made, so each exercise was run as its stub and as solved.
"""

import re

from bs4 import BeautifulSoup
from papers import calls, code_cells, tags

from labkit.exercise import attempts
from labkit.notes import CLAIM

WANTED = {"exercise-check": "not yet", "solution-check": "solved"}
LEAST_ALT = 4  # words beyond the title that can state a conclusion


def bundles(nb):
    """(id of the cell, the output by MIME type) of everything that was displayed."""
    return [(c["id"], output["data"]) for c in code_cells(nb) for output in c["outputs"] if "data" in output]


def no_warnings(nb):
    """Nothing was written to stderr: what warns, fails."""
    for cell in code_cells(nb):
        said = "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stderr")
        if said:
            yield f"{cell['id']}: stderr: {said.strip()}"


def exercises(nb):
    """Each stub is "not yet", and each solution solves."""
    for cell in code_cells(nb):
        wanted = [WANTED[tag] for tag in tags(cell) if tag in WANTED]
        said = ["solved" if attempt["ok"] else "not yet" for attempt in attempts({"cells": [cell]})]
        if said != wanted:
            yield f"{cell['id']}: said {', '.join(said) or 'nothing'}, wanted {', '.join(wanted) or 'nothing'}"


def claims(nb):
    """What was settled is what the cells name, each once, and held; of the rest the notebook says why not."""
    settled = [data[CLAIM] for _, data in bundles(nb) if CLAIM in data]
    for bundle in settled:
        if bundle["ok"] is not (None if bundle.get("discussed") else True):
            yield f"{bundle['id']}: not supported: {bundle['ours']}"
    named = sorted(call.id for call in calls(nb, "claim", "discuss"))
    done, excused = sorted(bundle["id"] for bundle in settled), not_run_here(nb)
    if done != [id for id in named if id not in excused]:
        yield f"settled were {', '.join(done) or 'none'}; named are {', '.join(named) or 'none'}"


def not_run_here(nb):
    """The claims of which the notebook printed "LOCK-20 is not run here", as this machine lacks something."""
    printed = [output["text"] for cell in code_cells(nb) for output in cell["outputs"] if "text" in output]
    return re.findall(r"([A-Z]+-\d+) is not run here", "\n".join(printed))


def figures(nb):
    """A figure is SVG for a screen reader too: an image whose label says more than its title, with a twin in words."""
    for cell, data in bundles(nb):
        for kind in data:
            if kind.startswith("image/"):
                yield f"{cell}: {kind} carries no alt text; show inline SVG"
        page = BeautifulSoup(data.get("text/html", ""), "html.parser")
        for svg in page.find_all("svg"):
            title, label = _text(svg.title), svg.get("aria-label", "")
            if svg.get("role") != "img":
                yield f'{cell}: the figure {title!r} has no role="img"'
            if len(label.split()) < len(title.split()) + LEAST_ALT:
                yield f"{cell}: the figure {title!r} has alt text that states no conclusion: {label!r}"
            for twin in (" ".join(data.get("text/plain", "").split()), _text(page.select_one("details pre"))):
                if not title or title not in twin or twin == title:
                    yield f"{cell}: the figure {title!r} has no twin in words: {twin!r}"


def _text(node) -> str:
    return " ".join(node.get_text().split()) if node else ""


RULES = (no_warnings, exercises, claims, figures)
