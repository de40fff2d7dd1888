"""The form of every notebook, without running it; and each rule finds what was planted, and nothing in a clean page."""

import papers
import pytest
import style
from papers import code, load, paper, text

from labkit.ledger import CHAPTERS, ledger

pytest_plugins = ["told"]

FINISHED = (
    "00-start-here",
    "01-locks",
    "02-redlock-debate",
    "03-consensus-locks",
    "04-queues",
    "05-streams",
    "06-sorted-sets",
    "07a-limiting-algorithms",
    "07b-limiting-in-production",
    "11-decisions",
)


# -- the notebooks
@pytest.mark.parametrize("path", papers.PATHS, ids=lambda path: path.stem)
def test_a_notebook_keeps_the_rules(path, record_property):
    nb = load(path)
    found = [f"{rule.__name__}: {finding}" for rule in style.RULES for finding in rule(nb, path.stem)]
    if path.stem in FINISHED:
        found += style.complete(nb, path.stem)
    for line in style.advice(nb, path.stem):
        record_property("told", f"{path.stem}: {line}")
    assert not found, "\n".join(found)


def test_every_notebook_is_a_chapter_and_every_finished_chapter_is_there():
    names = [path.stem for path in papers.PATHS]
    assert set(FINISHED) <= set(names) <= set(CHAPTERS)


def test_no_claim_is_settled_by_two_notebooks():
    by = [(call.id, path.stem) for path in papers.PATHS for call in papers.calls(load(path), "claim", "discuss")]
    ids = [id for id, _ in by]
    assert [pair for pair in by if ids.count(pair[0]) > 1] == []


# -- the rules
NAME = "01-locks"
OPINION = next(entry.id for entry in ledger().values() if (entry.chapter, entry.verdict) == (NAME, style.OPINION))
HINT = "<details><summary>Hint</summary>\n\nAdd.\n\n</details>"
SOLUTION = "<details><summary>Solution</summary>\n\n```python\ndef double(x):\n    return 2 * x\n```\n\n</details>"
CLAIM = 'claim("LOCK-15", not v.ok and left == 90, ours=v)'


def one_exercise(number=1):
    return [
        text(f"**Exercise 01.{number}.** Double it."),
        code("def double(x):\n    raise NotImplementedError", "exercise"),
        code(f'attempt("01.{number}", lambda: double(2) == 4)', "exercise-check"),
        text(HINT, "hint"),
        text(SOLUTION, "solution"),
    ]


def clean_page(*more, before=()):
    return paper(
        text("# Break a lock\n\nSee [the start](00-start-here.ipynb) and [Redis](https://example.org/redis)."),
        code("import redis\nfrom time import monotonic", "imports"),
        code('DRIVER = "auto"\nQUICK = False\nSEED = 7', "parameters"),
        *before,
        text("## When the holder sleeps\n\nWhose write lands last?\n\n### The repair\n\n```\n# no heading\n```"),
        code("def lock(r):\n    return r.set('lock', 1, nx=True)", "recipe"),
        code("v = check.mutual_exclusion(e.timeline)\nv"),
        code(CLAIM),
        text("## Your turn"),
        *one_exercise(),
        *more,
    )


def changed(cell, **what):
    """The clean page with something of its first cell of this kind (a tag, or "claim") changed."""
    nb = clean_page()
    found = next(c for c in nb["cells"] if cell in papers.tags(c) or (cell == "claim" and papers.source(c) == CLAIM))
    found.update(what)
    return nb


def adding(source, *tags):
    return clean_page(code(source, *tags))


def saying(source):
    return clean_page(text(source))


def claiming(condition, id="LOCK-15"):
    return changed("claim", source=f'claim("{id}", {condition}, ours=v)')


def other_form(**what):
    return clean_page() | what


def without(tag):
    nb = clean_page()
    return nb | {"cells": [cell for cell in nb["cells"] if tag not in papers.tags(cell)]}


def swapped():
    nb = clean_page()
    nb["cells"][-2:] = nb["cells"][:-3:-1]
    return nb


OUTPUT = {"output_type": "stream", "name": "stdout", "text": "1"}
PLANTED = [
    (style.valid, "older than 4.5", other_form(nbformat_minor=4)),
    (style.valid, "no valid notebook", changed("recipe", cell_type="prose")),
    (style.valid, "'twin']: more than one cell", clean_page(code("1", id="twin"), code("2", id="twin"))),
    (style.clean, "has outputs", changed("recipe", outputs=[OUTPUT])),
    (style.clean, "has an execution count", changed("recipe", execution_count=3)),
    (style.short, "26 lines", adding("x = 1\n" * 26)),
    (style.short, "27 lines", changed("solution", source=SOLUTION.replace("return", "x\n    " * 25 + "return"))),
    (style.recipes, "4 recipe cells in a row", clean_page(*[code("x = 1", "recipe")] * 4)),
    (style.recipes, "a recipe that is no code", clean_page(text("Mix well.", "recipe"))),
    (style.python, "a magic", adding("%pip install redis")),
    (style.python, "a magic", adding("%%time\nx = 1")),
    (style.python, "a command of a shell", adding("for x in range(3):\n    !ls")),
    (style.python, "a question to IPython", adding("lab.redis?")),
    (style.python, "in disguise", adding('get_ipython().system("ls")')),
    (style.python, "no Python", adding("def f(:")),
    (style.python, "no Python", changed("solution", source=SOLUTION.replace("2 *", "2 **/"))),
    (style.no_sleep, "sleep", adding("import time\ntime.sleep(1)")),
    (style.no_sleep, "sleep", adding("from time import sleep as nap")),
    (style.no_sleep, "sleep", adding("import time as t\nstep = t.sleep")),
    (style.no_sleep, "sleep", changed("solution", source=SOLUTION.replace("return", "time.sleep(1)\n    return"))),
    (style.no_star, "from labkit import *", adding("from labkit import *")),
    (style.at_home, "https://example.org/x", adding('get("https://example.org/x")')),
    (style.at_home, "redis://store.example", adding("u = 'redis://store.example:6379'")),
    (style.at_home, "http://192.168.0.1", adding("# see http://192.168.0.1/")),
    (style.imports, "0 cells", without("imports")),
    (style.imports, "2 cells", adding("import os", "imports")),
    (style.imports, "more than imports", changed("imports", source="import os\nos.umask(0)")),
    (style.parameters, "0 cells", without("parameters")),
    (style.parameters, "2 cells", adding("SEED = 1", "parameters")),
    (style.parameters, "DRIVER", changed("parameters", source='DRIVER = "local"\nQUICK = False\nSEED = 7')),
    (style.parameters, "QUICK", changed("parameters", source='DRIVER = "auto"\nQUICK = 0\nSEED = 7')),
    (style.parameters, "SEED", changed("parameters", source='DRIVER = "auto"\nQUICK = False\nSEED = True')),
    (style.parameters, "plain values", changed("parameters", source="SEED = time.time()")),
    (style.title, "2 headings", saying("# Another title")),
    (style.title, "2 headings", saying("Another title\n=====")),
    (style.title, "does not begin", clean_page() | {"cells": clean_page()["cells"][::-1]}),
    (style.title, "does not begin", paper(text("Hello.\n\n# Title"))),
    (style.levels, "level 4, below one of level 2", saying("#### Deep")),
    (style.levels, "level 2, below one of level 0", paper(text("## Deep"))),
    (style.links, "98-nowhere.ipynb", saying("[on](98-nowhere.ipynb#top)")),
    (style.links, "img/nothing.png", saying("![nothing](img/nothing.png)")),
    (style.links, "98-nowhere.ipynb", saying("<details>\n\n* [on][n]\n\n[n]: 98-nowhere.ipynb\n\n</details>")),
    (style.links, "98-nowhere", adding('lock = recall("98-nowhere", "lock")')),
    (style.links, "None", adding("lock = recall(chapter)")),
    (style.no_codes, "002A", saying("As 002A says.")),
    (style.no_codes, "article 000", adding("x = 1  # article 000")),
    (style.settles, "not written out", claiming("v.ok", '" + "LOCK-15')),
    (style.settles, "does not know", claiming("v.ok", "LOCK-99")),
    (style.settles, "belongs to 00-start-here", claiming("v.ok", "LOCK-19")),
    (style.settles, "is an opinion", claiming("v.ok", OPINION)),
    (style.settles, "is no opinion", adding('discuss("LOCK-02", sides=[])')),
    (style.settles, "settled before", adding(CLAIM)),
    (style.conditions, "measures nothing", claiming("True")),
    (style.conditions, "measures nothing", claiming("v.ok or True")),
    (style.conditions, "measures nothing", claiming("QUICK or v.ok")),
    (style.conditions, "measures nothing", claiming("1 < 2")),
    (style.conditions, "measures nothing", changed("claim", source='claim("LOCK-15", ours=v)')),
    (style.conditions, "a bare duration", claiming("waited_s < 2")),
    (style.conditions, "a bare duration", claiming("not (took > 2 * TTL_MS / 1000)")),
    (style.conditions, "a bare duration", claiming("0.9 < e.timeline.seconds < 1.1 and round(left_ms) == 3")),
    (style.story, "9 claims", clean_page(*[code(CLAIM)] * 8)),
    (style.exercises, "four cells in a row", without("hint")),
    (style.exercises, "four cells in a row", swapped()),
    (style.exercises, "four cells in a row", adding("double(2)", "exercise")),
    (style.exercises, "not folded", changed("solution", source=SOLUTION.replace("details", "div"))),
    (style.exercises, "not folded", changed("hint", source="Add.")),
    (style.exercises, "stub and check are code", changed("hint", cell_type="code", outputs=[], execution_count=None)),
    (style.exercises, "no text above it", clean_page(code("1"), *one_exercise(2)[1:])),
    (style.exercises, 'attempt("01.2", ...)', clean_page(*one_exercise(1))),
    (style.exercises, 'attempt("01.1", ...)', changed("exercise-check", source="double(2) == 4")),
    (style.exercises, "no solution that can be run", changed("solution", source=SOLUTION.replace("python", "text"))),
    (style.exercises, "6 exercises", clean_page(*[cell for n in range(2, 7) for cell in one_exercise(n)])),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "said", "nb"), PLANTED, ids=[f"{rule.__name__}-{said}" for rule, said, _ in PLANTED])
def test_a_rule_finds_what_was_planted(rule, said, nb):
    found = list(rule(nb, NAME))
    assert any(said in finding for finding in found), found


CLEAN = {
    "a whole page": clean_page(),
    "sources as lists of lines": clean_page()
    | {"cells": [c | {"source": c["source"].splitlines(keepends=True)} for c in clean_page()["cells"]]},
    "25 lines, three recipes, five exercises": clean_page(
        *[cell for n in range(2, 6) for cell in one_exercise(n)],
        *[code("x = 1\n" * 25, "recipe")] * 3, text("And now"), code("x = 1", "recipe"),
    ),
    "a server of its own": adding('get(f"http://{node.address}/"), "http://127.0.0.1:80", "redis://localhost"'),
    "percent and exclamation marks": adding("x = 7 % 3 != 1\ns = 'what?'\nprint(f'{x!r:>5}%')"),
    "code shown as text": saying("```\n# time.sleep(1), %pip\n```\n\n    # from x import *"),
    "a link to a heading": saying("[above](#the-repair), [mail](mailto:a@b.c), [there](00-start-here.ipynb#your-turn)"),
    "a recall": adding('lock = recall("00-start-here", "beat")'),
    "numbers": saying("Order 0002, 002 of 1002A, and 000 articles."),
    "an opinion": adding(f'discuss("{OPINION}", sides=[("a", "b"), ("c", "d")])'),
    "nine claims, one in the fine print": clean_page(
        text("## The fine print"), code('claim("LOCK-02", v.ok, ours=v)'),
        before=[code(f'claim("LOCK-0{n}", v.ok, ours=v)') for n in (1, 3, 4, 5, 6, 7, 8)],
    ),
    "a ratio": claiming("slow_s > 3 * fast_s"),
    "a count beside a duration": claiming("waited_s is not None and 5 < attempts <= 10 + 2"),
    "a call": claiming("not any(w.raised for w in workers) and set(got) == {1, 2}"),
}  # fmt: skip


@pytest.mark.parametrize("nb", CLEAN.values(), ids=CLEAN)
@pytest.mark.parametrize("rule", style.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_nothing_in_a_clean_page(rule, nb):
    assert list(rule(nb, NAME)) == []


def test_every_rule_was_planted():
    assert {rule for rule, _, _ in PLANTED} == set(style.RULES)


# -- finished chapters
def finished():
    """A chapter with everything in it."""
    settle = {True: 'discuss("{}", sides=[])', False: 'claim("{}", v.ok, ours=v)'}
    return clean_page(
        *[text(f"## {heading.capitalize()}?") for heading in style.SKELETON if heading != "your turn"],
        *one_exercise(2),
        *one_exercise(3),
        *[
            code(settle[entry.verdict == style.OPINION].format(entry.id))
            for entry in ledger().values()
            if entry.chapter == NAME and entry.id != "LOCK-15"
        ],
        code(f'claims_table("{NAME}")'),
    )


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ('"LOCK-02"', "LOCK-02 is not settled"),
        (f'"{OPINION}"', f"{OPINION} is not settled"),
        ("raise NotImplementedError", "2 exercises, at least 3"),
        ("claims_table(", "no table of its claims"),
        *[(f"## {heading.capitalize()}", f"0 headings {heading.capitalize()!r}") for heading in style.SKELETON],
    ],
)
def test_what_a_finished_chapter_lacks_is_found(gone, said):
    assert list(style.complete(finished(), NAME)) == []
    nb = finished()
    last = [cell for cell in nb["cells"] if gone in cell["source"]][-1]
    nb["cells"].remove(last)
    assert any(said in finding for finding in style.complete(nb, NAME))


def test_two_recaps_are_one_too_many():
    nb = finished()
    nb["cells"].append(text("## What to remember"))
    assert list(style.complete(nb, NAME)) == ["2 headings 'What to remember', one is wanted"]


# -- advice
def test_advice_is_given_where_a_chapter_is_unlike_the_others():
    nb = paper(text("# Title\n\nWords."), *[code("x = 1\n" * 17, id=f"c{i}") for i in range(3)])
    assert list(style.advice(nb, NAME)) == [
        "code cells have a median of 17 lines and a 90th percentile of 17 (6 and 16)",
        "3 code cells in a row from c0 (2)",
        "0.0 words of prose a line of code (8 to 15)",
        "0 sections in 4 cells (one each 6 to 10)",
        "4 cells (35 to 70)",
    ]


def test_no_advice_where_it_is_like_them():
    section = [text("## Next"), *[text("Ten words of prose that speak to one reader only."), code("x = 1")] * 4]
    assert list(style.advice(paper(text("# Title"), *section * 5), NAME)) == []
