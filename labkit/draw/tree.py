"""Trees: questions, their answers, and the way that one need takes through them."""

from collections.abc import Sequence
from dataclasses import dataclass

from . import page
from .picture import Picture
from .sheet import Sheet
from .style import ALARM_INK, FILLS, INK, LANE, clean, text_on, width, wrap
from .twin import sentences, twin

STEP, LINE, GAP, PAD = 26.0, 14.0, 7.0, 6.0  # points: indent a level, height of a line, between rows, inside a label
TAKEN, NOWHERE = FILLS[0], "no answer"

# A question, the datum that it asks for, and what follows each answer: another question, or the advice.
Tree = tuple[str, str, dict[str, "Tree | str"]]


@dataclass(frozen=True)
class _Row:
    depth: int
    answer: str
    says: str
    taken: bool
    leaf: bool


def tree(
    tree: Tree, path: Sequence[str | None] = (), *, title: str = "How to decide", judged: str = "",
    width_in: float = 9.0,
) -> Picture:  # fmt: skip
    """A tree of questions as an outline, with one path marked.

    tree -- (question, datum, {answer: tree or advice}). path -- the answers from the top down; None as the last one:
    the question has no answer for this need.
    """
    rows = [_Row(0, "", tree[0], bool(path), False), *_rows(tree, list(path), 1, bool(path))]
    head = page.head(title, None, width_in, found=judged)
    laid, y = [], head.height + 6
    for row in rows:
        x = page.MARGIN + row.depth * STEP + (width(row.answer, bold=True) + 2 * PAD + 8 if row.answer else 0)
        lines = wrap(row.says, head.across - page.MARGIN - x, LANE if not row.leaf else LANE - 1, bold=row.taken)
        laid.append((row, x, y, lines))
        y += LINE * len(lines) + GAP
    sheet = Sheet(head.across, y + 4)
    head.draw(sheet)
    _branches(sheet, laid)
    for row, x, top, lines in laid:
        colour = ALARM_INK if row.taken and row.answer == NOWHERE else INK
        if row.answer:
            left = page.MARGIN + row.depth * STEP
            look = {"fill": TAKEN} if row.taken else {"stroke": INK, "thick": 0.8, "opacity": 0.5}
            sheet.rect(left, x - 8, top - 1, top + LINE + 1, **look)
            ink = text_on(TAKEN) if row.taken else INK
            sheet.text(left + PAD, top + LINE - 3.5, row.answer, bold=row.taken, fill=ink)
        for i, line in enumerate(lines):
            size = LANE if not row.leaf else LANE - 1
            look = {"size": size, "bold": row.taken, "fill": colour, "opacity": 1.0 if row.taken or not path else 0.75}
            sheet.text(x, top + LINE * (i + 1) - 3.5, line, **look)
    said = [f"{row.answer}: {row.says}" if row.answer else row.says for row in rows]
    told = [f"{'· ' * row.depth}{'→ ' * row.taken}{line}" for row, line in zip(rows, said, strict=True)]
    way = "; ".join(line for row, line in zip(rows, said, strict=True) if row.taken) or "no path is marked"
    return Picture(sheet, clean(title), sentences(title, judged, way), twin([title, judged, *told]))


def _rows(tree: Tree, path: list, depth: int, here: bool):
    _, _, branches = tree
    for answer, then in branches.items():
        taken = here and path[:1] == [answer]
        leaf = isinstance(then, str)
        yield _Row(depth, answer, then if leaf else then[0], taken, leaf)
        if not leaf:
            yield from _rows(then, path[1:], depth + 1, taken)
    if here and path[:1] == [None]:
        yield _Row(depth, NOWHERE, "none of these takes this need", True, True)


def _branches(sheet: Sheet, laid) -> None:
    """Thin lines from each question down to its answers."""
    for i, (row, _, top, lines) in enumerate(laid):
        below = [(r, y) for r, _, y, _ in laid[i + 1 :]]
        end = next((k for k, (r, _) in enumerate(below) if r.depth <= row.depth), len(below))
        children = [y for r, y in below[:end] if r.depth == row.depth + 1]
        if children:
            x = page.MARGIN + row.depth * STEP + STEP / 2
            pieces = [[(x, top + LINE * max(1, len(lines)) + 1), (x, children[-1] + LINE / 2)]]
            pieces += [[(x, y + LINE / 2), (x + STEP / 2, y + LINE / 2)] for y in children]
            sheet.lines(pieces, thick=0.8, opacity=0.45, layer=1)
