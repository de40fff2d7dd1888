"""Pairs: what somebody published beside what was measured here."""

from collections.abc import Sequence

from ..errors import LabError
from . import page
from .picture import Picture
from .sheet import Sheet
from .style import FILLS, INK, LANE, UNKNOWN, middle, width
from .twin import sentences, twin

Figure = float | tuple[float, float] | None  # a number, from-to, or not known
Pair = tuple[str, Figure, Figure]
ROW, BAR = 38.0, 12.0
OURS = FILLS[0]


def pairs(
    rows: Sequence[Pair],
    verdict=None,
    *,
    unit: str = "",
    names: tuple[str, str] = ("the article", "ours"),
    log: bool | None = None,
    title: str = "The article's figures beside ours",
    width_in: float = 9.0,
) -> Picture:
    """Two bars a row: rows = [("serial locks a second", 1978, 2600), …]; hatched is the article's, filled is ours.

    A figure is a number, a pair (from, to), or None when there is none. unit -- of all of them, written at the axis.
    names -- what the two are called. log -- a logarithmic axis (None: if the figures span more than a hundredfold).
    Raises LabError for a figure below zero.
    """
    numbers = [n for _, *figures in rows for figure in figures for n in _ends(figure)]
    if any(not n >= 0 for n in numbers):
        raise LabError(
            f"A figure below zero cannot be drawn as a bar: {min(numbers):g}.",
            "A bar says how much from nothing.",
            "Give amounts, ratios or times; for a change give both values.",
        )
    positive = [n for n in numbers if n > 0] or [1.0]
    if log is None:
        log = min(positive) * 100 < max(positive)
    lines = [f"{what}: {names[0]} {_text(a, unit)}, {names[1]} {_text(b, unit)}" for what, a, b in rows]
    head = page.head(title, verdict, width_in)
    left = page.MARGIN + page.column([(middle(what, 40), "") for what, _, _ in rows], 64)
    right = head.across - page.MARGIN - max([0.0, *(width(_text(f)) for _, *figures in rows for f in figures)]) - 8
    if log:
        x = page.Log(min(positive), max(positive), left, right, number, f"{unit}, logarithmic scale".lstrip(", "))
    else:
        x = page.Linear(0.0, max(positive), left, right, unit)
    top = head.height + 22
    bottom = top + ROW * len(rows)
    sheet = Sheet(head.across, bottom + page.AXIS)
    head.draw(sheet)
    page.axis_below(sheet, x, top, bottom)
    _legend(sheet, head.height, names)
    for i, (what, *figures) in enumerate(rows):
        y = top + i * ROW + 6
        sheet.text(left - 10, y + BAR + 4.5, middle(what, 40), size=LANE, anchor="right")
        for j, figure in enumerate(figures):
            _bar(sheet, x, figure, y + j * (BAR + 2), theirs=j == 0)
    return Picture(sheet, title, sentences(title, head.judged, *lines), twin([title, head.judged, *lines]))


def _legend(sheet: Sheet, top: float, names: tuple[str, str]) -> None:
    x = page.MARGIN
    for name, theirs in zip(names, (True, False), strict=True):
        _box(sheet, x, x + 18, top + 4, top + 13, theirs)
        sheet.text(x + 23, top + 12, name)
        x += 23 + width(name) + 16


def _bar(sheet: Sheet, x, figure: Figure, y: float, theirs: bool) -> None:
    ends = _ends(figure)
    if not ends:
        sheet.text(x.start + 4, y + 10, "not given" if theirs else "not run here", opacity=page.MUTED)
        return
    x1 = max(x(max(ends)), x.start + 1.5)
    _box(sheet, x.start, x1, y, y + BAR, theirs)
    if len(ends) == 2:  # from nothing to the least it is certain, from there to the most it is a range
        sheet.line([(x(min(ends)), y - 1), (x(min(ends)), y + BAR + 1)], thick=1.6, layer=4)
    sheet.text(x1 + 5, y + 10, _text(figure), bold=not theirs)


def _box(sheet: Sheet, x0: float, x1: float, y0: float, y1: float, theirs: bool) -> None:
    if theirs:
        sheet.rect(x0, x1, y0, y1, fill=UNKNOWN, opacity=0.25)
        sheet.rect(x0, x1, y0, y1, stroke=INK, thick=0.8, opacity=0.6)
        sheet.hatch(x0, x1, y0, y1, step=6)
    else:
        sheet.rect(x0, x1, y0, y1, fill=OURS)


def _ends(figure: Figure) -> tuple[float, ...]:
    return () if figure is None else tuple(figure) if isinstance(figure, tuple | list) else (figure,)


def number(value: float) -> str:
    """As a reader writes it: whole numbers as they are, others with three figures: 1978, 27 600, 2.21."""
    rounded = value if float(value).is_integer() else float(f"{value:.3g}")
    whole = float(rounded).is_integer()
    return f"{rounded:,.0f}".replace(",", "\u202f" if abs(rounded) >= 1e4 else "") if whole else f"{rounded:g}"


def _text(figure: Figure, unit: str = "") -> str:
    ends = _ends(figure)
    return f"{' to '.join(map(number, ends))} {unit}".rstrip() if ends else "none"
