"""The league's table, in words, as text, as a block of a notebook, and as a picture. Pure: rows in, a view out."""

from ..draw import page
from ..draw.picture import Picture
from ..draw.sheet import Sheet
from ..draw.style import ALARM, FILLS, INK, LANE, middle, width
from ..draw.twin import sentences, twin
from ..notes import table

HIDDEN = ("note", "seconds")
WRONG = "wrong: "
ROW_HIGH, MARK = 24.0, 4.6
SHOWN = ("a second", "99 % wait (s)", "without service (s)")
LOOKS = (ALARM, FILLS[1], FILLS[2], FILLS[0])  # of the accounts, in their order


def columns(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row if name not in HIDDEN))


def cells(row: dict, names: list[str]) -> list[str]:
    """What is not known is a dash; a lock that did not play has its reason in place of its figures."""
    if not played(row):
        return [row["lock"], f"not played: {row['note']}"]
    return ["–" if row.get(name) is None else str(row[name]) for name in names]


def played(row: dict) -> bool:
    return "acquisitions" in row


def text(rows: list[dict]) -> str:
    names = columns(rows)
    lines = [names, *(cells(row, names) for row in rows)]
    wide = [max(len(line[i]) for line in lines if i == 0 or len(line) == len(names)) for i in range(len(names))]
    told = ["  ".join(cell.ljust(w) for cell, w in zip(line, [*wide, 0], strict=False)).rstrip() for line in lines]
    return "\n".join([*told, *(f"{row['lock']}: {row['note']}" for row in rows if played(row) and row["note"])])


def display(rows: list[dict], caption: str) -> None:
    """Show it in a notebook; elsewhere print it."""
    names = columns(rows)
    lines = [cells(row, names) for row in rows]
    table(caption, tuple(names), [(*line, *[""] * (len(names) - len(line))) for line in lines])


def in_words(tally) -> str:
    row = tally.row()
    wrong = ", ".join(
        f"{name.removeprefix(WRONG)} {n}" for name, n in row.items() if name.startswith(WRONG) and n is not None
    )
    return f"{row['acquisitions']} acquisitions, {row['double holds']} double holds; money wrong: {wrong}"


def picture(rows: list[dict], title: str, judged: str = "") -> Picture:
    """One line a lock: how much money each kind of account had wrong, and beside it what the lock cost."""
    kinds = list(dict.fromkeys(name for row in rows for name in row if name.startswith(WRONG)))
    chips = [(kind.removeprefix(WRONG), LOOKS[i % len(LOOKS)]) for i, kind in enumerate(kinds)]
    head = page.Head(title, judged, 9.0 * 72, False, chips)
    left = page.MARGIN + page.column([(middle(row["lock"], 34), "") for row in rows], 64)
    aside = [width(name) + 14 for name in SHOWN]
    right = head.across - page.MARGIN - sum(aside) - 12
    top = head.height + 26
    bottom = top + ROW_HIGH * len(rows)
    sheet = Sheet(head.across, bottom + page.AXIS)
    head.draw(sheet)
    most = max((row[kind] for row in rows for kind in kinds if row.get(kind)), default=1)
    x = page.Linear(0, most, left + 6, right, "money wrong at the end (withdrawals lost)")
    page.axis_below(sheet, x, top, bottom)
    places = [right + 12 + sum(aside[: i + 1]) for i in range(len(aside))]
    for place, name in zip(places, SHOWN, strict=True):
        sheet.text(place, top - 8, name, anchor="right", opacity=page.MUTED)
    for i, row in enumerate(rows):
        y = top + (i + 0.5) * ROW_HIGH
        sheet.text(left - 10, y + 4, middle(row["lock"], 34), size=LANE, anchor="right")
        if not played(row):
            sheet.text(left + 8, y + 4, f"not played: {row['note']}", opacity=page.MUTED)
            continue
        marks = [(x(row[kind]), j) for j, kind in enumerate(kinds) if row.get(kind) is not None]
        sheet.line([(x.start, y), (max(at for at, _ in marks), y)], thick=1.0, opacity=0.35)
        for at, j in marks:
            _mark(sheet, at, y + (j - 1) * 4.2, j, f"{row['lock']}, {kinds[j].removeprefix(WRONG)}: {row[kinds[j]]}")
        for place, name in zip(places, SHOWN, strict=True):
            sheet.text(place, y + 4, "–" if row.get(name) is None else f"{row[name]:g}", anchor="right")
    lines = _lines(rows, kinds)
    return Picture(sheet, title, sentences(title, judged, *lines), twin([title, judged, *lines]))


def _mark(sheet: Sheet, x: float, y: float, shape: int, tip: str) -> None:
    r, colour = MARK, LOOKS[shape % len(LOOKS)]
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -r * 1.2), (r * 1.2, r), (-r * 1.2, r)],
        3: [(0, -r * 1.35), (r * 1.35, 0), (0, r * 1.35), (-r * 1.35, 0)],
    }
    if shape == 0:
        sheet.dots([(x, y)], r, fill=colour, stroke=INK, thick=0.6, layer=4, tip=tip)
    else:
        spots = [(x + dx, y + dy) for dx, dy in corners[(shape - 1) % 3 + 1]]
        sheet.shape(spots, fill=colour, stroke=INK, thick=0.6, layer=4, tip=tip)


def _lines(rows: list[dict], kinds: list[str]) -> list[str]:
    lines = []
    for row in rows:
        if not played(row):
            lines.append(f"{row['lock']}: not played: {row['note']}")
            continue
        wrong = ", ".join(f"{kind.removeprefix(WRONG)} {row[kind]}" for kind in kinds if row.get(kind) is not None)
        cost = ", ".join(f"{name} {row[name]}" for name in SHOWN)
        lines.append(f"{row['lock']}: money wrong: {wrong}; {cost}")
    return lines
