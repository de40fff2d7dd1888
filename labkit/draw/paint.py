"""Puts laid lanes and the evidence of a verdict onto a sheet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .lanes import DEAD, DOUBTFUL, FAILED, FAULT, HATCHED, KILLED, POINTER, READ, REFUSED, TICK, Bar, Mark
from .layout import BAR_GAP, DENSITY, LANE_GAP, MARK, ROW, STRIP, Label, Laid, StripRow, fits_inside
from .page import MARGIN, MUTED
from .place import GAP
from .sheet import Sheet
from .style import ALARM, ALARM_INK, INK, LANE, shorten, text_on, width

FADED = 0.34  # opacity of what stood still
NEAR = 30.0  # points between bands of evidence that share a label
SIGN = 6.5  # points for one letter of a text that must fit somewhere


@dataclass(frozen=True)
class Band:
    """Evidence: a stretch of the picture over some lanes, with what it shows."""

    start: float
    end: float
    lanes: tuple[str, ...]
    text: str


def lanes(sheet: Sheet, laid: Sequence[Laid], x: Callable[[float], float], top: float, names_at: float) -> None:
    """Draw the lanes below each other from `top` on; their names end at `names_at`."""
    for lane in laid:
        _names(sheet, lane, top, names_at)
        if not lane.bars and not lane.done and lane.lane.marks:
            sheet.line([(x.start, top + lane.centre), (x.end, top + lane.centre)], opacity=0.25, layer=1)
        for i, (row, bar) in enumerate(lane.bars):
            y = top + lane.bars_top + row * (lane.bar_high + BAR_GAP)
            _bar(sheet, bar, x, y, y + lane.bar_high, hatch=not lane.lane.freezes)
            colour = text_on(bar.fill) if bar.look not in (FAILED, DOUBTFUL) else INK
            if i in lane.inside:
                sheet.text(lane.inside[i], y + 12, bar.text, bold=True, anchor="center", fill=colour)
            elif i in lane.beside:
                sheet.text(lane.beside[i], y + 12, bar.text)
        for bar in lane.lane.freezes:
            _hatched(sheet, bar, x, top + lane.bars_top, top + lane.bars_bottom)
        for i, row in enumerate(lane.strips):
            _strips(sheet, row, x, top + lane.strips_top + i * STRIP)
        if lane.done:
            _density(sheet, lane, x, top + lane.marks_top)
        for mark in lane.lane.marks:
            if not lane.done or mark.shape == FAULT:
                _mark(sheet, mark, x(mark.t), top + lane.centre, top + lane.marks_top if lane.bars else None)
        _labels(sheet, lane, top)
        top += lane.height


def _names(sheet: Sheet, lane: Laid, top: float, right: float) -> None:
    role = lane.lane.role
    y = top + lane.centre + (4 if not role else -1)
    sheet.text(right, y, lane.lane.name, size=9.0 if lane.lane.thin else LANE, anchor="right")
    if role:
        sheet.text(right, y + 12, role, anchor="right", opacity=MUTED)
    if lane.unlabelled:
        sheet.text(right, y + 24, f"+{lane.unlabelled} in the text", size=9, anchor="right", opacity=MUTED)


def _bar(sheet: Sheet, bar: Bar, x, y0: float, y1: float, hatch: bool) -> None:
    """hatch: what of it was frozen, unless the whole lane is hatched there."""
    if bar.look in HATCHED:
        _hatched(sheet, bar, x, y0, y1)
        return
    parts = bar.pieces()
    for i, (start, end, frozen) in enumerate(parts):
        x0, x1 = x(start), x(end)
        if i == len(parts) - 1:
            x1 = max(x1 - 0.7, x(bar.start) + 1.5)  # a hair of space before the next bar
        outline = _outline(x0, x1, y0, y1, bar.how if i == len(parts) - 1 else "ended")
        look = {"fill": bar.fill, "tip": bar.tip}
        if bar.look == FAILED:
            look |= {"opacity": 0.25}
        elif bar.look == DOUBTFUL or frozen:
            look |= {"opacity": FADED}
        sheet.shape(outline, layer=2, **look)
        if frozen and hatch:
            sheet.hatch(x0, x1, y0, y1, layer=3)
        if bar.look == FAILED:
            sheet.shape(outline, layer=2, stroke=bar.fill, thick=1.6)
        elif bar.look == DOUBTFUL:
            for a, b in zip(outline, [*outline[1:], outline[0]], strict=True):
                sheet.dashes(a[0], b[0], a[1], b[1], stroke=bar.fill, thick=1.6, layer=2)


def _outline(x0: float, x1: float, y0: float, y1: float, how: str) -> list[tuple[float, float]]:
    """Straight where a span ended, torn where its process died, pointed where it was still going on."""
    high, bite = y1 - y0, min(4.0, (x1 - x0) / 2)
    if how == "died":
        teeth = [(x1 - bite * (i % 2), y0 + high * i / 6) for i in range(7)]
    elif how == "open":
        teeth = [(x1 - bite * 1.5, y0), (x1, (y0 + y1) / 2), (x1 - bite * 1.5, y1)]
    else:
        teeth = [(x1, y0), (x1, y1)]
    return [(x0, y0), *teeth, (x0, y1)]


def _hatched(sheet: Sheet, bar: Bar, x, y0: float, y1: float) -> None:
    """Standing still or dead: hatched, with a window for the text where there is room."""
    x0, x1 = x(bar.start), max(x(bar.end), x(bar.start) + 2)
    dead = bar.look == DEAD
    step = 6.0 if dead else 4.5
    sheet.shape(_outline(x0, x1, y0, y1, bar.how), stroke=INK, thick=0.8, opacity=0.6, layer=3, tip=bar.tip)
    if bar.look in (DEAD, KILLED):
        fill, opacity = (INK, 0.12) if dead else (bar.fill, FADED)
        sheet.shape(_outline(x0, x1, y0, y1, bar.how), fill=fill, opacity=opacity, layer=2)
    ends = x1 - (6 if bar.how == "open" and x1 - x0 > 12 else 0)
    if fits_inside(bar, x):
        half = width(bar.text) / 2 + 4
        middle = (x0 + x1) / 2
        sheet.hatch(x0, middle - half, y0, y1, step=step, cross=dead, layer=3)
        sheet.hatch(middle + half, ends, y0, y1, step=step, cross=dead, layer=3)
        sheet.text(middle, (y0 + y1) / 2 + 3.5, bar.text, anchor="center")
    else:
        sheet.hatch(x0, ends, y0, y1, step=step, cross=dead, layer=3)


def _strips(sheet: Sheet, row: StripRow, x, top: float) -> None:
    """One kind of fault as thin hatched strips; one of them is parted for the text, unless that stands beside them."""
    y0, y1 = top + 3, top + STRIP - 2
    if row.text_at is not None:
        sheet.text(row.text_at, top + 10, row.text)
    for bar in row.strips:
        x0, x1 = x(bar.start), max(x(bar.end), x(bar.start) + 2)
        parts = [(x0, x1, bar.how)]
        if bar is row.parted:
            parts = [(x0, row.text_at - 4, "ended"), (row.text_at + width(row.text) + 4, x1, bar.how)]
        for a, b, how in parts:
            sheet.shape(_outline(a, b, y0, y1, how), stroke=INK, thick=0.8, opacity=0.6, layer=3, tip=bar.tip)
            sheet.hatch(a, b - 4 * (how == "open" and b - a > 8), y0, y1, layer=3)


def _mark(sheet: Sheet, mark: Mark, x: float, centre: float, under: float | None) -> None:
    """under: y below the bars, where a plain mark points up at them; None on a lane without bars."""
    fill, thin = mark.fill or INK, {"stroke": INK, "thick": 0.7}
    if mark.shape == FAULT:
        sheet.shape(_cross(x, centre, 6.5, 2.1), fill=ALARM, stroke="#ffffff", thick=0.9, layer=4, tip=mark.tip)
    elif mark.shape == REFUSED:
        sheet.shape(_cross(x, centre, 7.2, 2.6), stroke=fill, thick=1.3, layer=4, tip=mark.tip)
    elif mark.shape == READ:
        corners = [(x - 4.6, centre + 4), (x + 4.6, centre + 4), (x, centre - 4.6)]
        sheet.shape(corners, fill=fill, opacity=FADED, layer=3, tip=mark.tip)
        sheet.shape(corners, stroke=fill, thick=1.4, layer=4)
    elif mark.shape == TICK:
        sheet.rect(x - 0.9, x + 0.9, centre - 7, centre + 7, fill=fill, layer=3, tip=mark.tip)
    elif mark.shape == POINTER and under is not None:
        foot = under + MARK - 1
        sheet.shape([(x - 3.6, foot), (x + 3.6, foot), (x, under)], fill=fill, layer=4, tip=mark.tip)
    else:
        sheet.dots([(x, centre)], 4.8, fill=fill, layer=4, tip=mark.tip, **(thin if mark.fill else {}))


def _cross(x: float, y: float, reach: float, half: float) -> list[tuple[float, float]]:
    """The twelve corners of an X: `reach` to the corners, arms 2 * half wide."""
    r, h = reach * 0.75, half
    corner = [(0, -h), (r - h, -r), (r, h - r)]  # turned three times by a right angle, it is the whole
    turns = [corner, [(-b, a) for a, b in corner], [(-a, -b) for a, b in corner], [(b, -a) for a, b in corner]]
    return [(x + dx, y + dy) for turn in turns for dx, dy in turn]


def _labels(sheet: Sheet, lane: Laid, top: float) -> None:
    for label in lane.above:
        y = top + lane.bars_top - ROW * label.row
        if label.row:
            sheet.line([(label.x, y - 1), (label.x, top + lane.bars_top)], thick=0.7, opacity=0.45, layer=3)
        sheet.text(label.left + 3, y - 2.5, label.text, bold=label.bold)
    first = top + lane.labels_top + (ROW if lane.done else 0)
    for label in lane.below:
        y = first + ROW * label.row
        if label.row:
            sheet.line([(label.x, first - 1), (label.x, y + 1.5)], thick=0.7, opacity=0.45, layer=3)
        sheet.text(label.left + 3, y + 9, label.text, bold=label.bold, fill=ALARM_INK if label.bold else INK)


def _density(sheet: Sheet, lane: Laid, x, top: float) -> None:
    """Bars upwards for what happened, downwards for what was refused."""
    most, step = max([1, *lane.done, *lane.refused]), (x.end - x.start) / len(lane.done)
    base = top + DENSITY - 2 if not any(lane.refused) else top + DENSITY / 2
    high = (base - top - 2) / most
    for counts, sign, colour in ((lane.done, -1, INK), (lane.refused, 1, ALARM)):
        bars = [(x.start + i * step, base + sign * max(2.0, n * high)) for i, n in enumerate(counts) if n]
        sheet.rects([(a, a + step - 0.5, min(base, y), max(base, y)) for a, y in bars], fill=colour, opacity=0.6)
    sheet.line([(x.start, base), (x.end, base)], thick=0.6, opacity=0.35, layer=1)
    sheet.text(x.start + 2, top + DENSITY + 9, shorten(lane.lane.dense, int((x.end - x.start) / SIGN)))


# -- evidence


def _band_labels(bands: Sequence[Band], x, right: float) -> list[tuple[float, float, Label]]:
    """[(x0, x1, label), …] for one row above the lanes; bands too near for labels of their own share one."""
    groups: list[list[Band]] = []
    reach = float("-inf")
    for band in sorted(bands, key=lambda b: (b.start, b.end)):
        if x(band.start) - reach < NEAR:
            groups[-1].append(band)
        else:
            groups.append([band])
        reach = max(reach, x(band.end))
    placed: list[tuple[list[Band], tuple[float, float, Label]]] = []
    for group in groups:
        spot = _band_label(group, x, right)
        while placed and placed[-1][1][2].left + placed[-1][1][2].width + GAP > spot[2].left:
            group = placed.pop()[0] + group
            spot = _band_label(group, x, right)
        placed.append((group, spot))
    return [spot for _, spot in placed]


def _band_label(group: Sequence[Band], x, right: float) -> tuple[float, float, Label]:
    x0, x1 = x(min(b.start for b in group)), x(max(b.end for b in group))
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    text = shorten(max(group, key=lambda b: b.end - b.start).text, int((right - MARGIN) / SIGN) - len(more)) + more
    room = Label(0, text, True).width
    left = max(MARGIN, min(max(x.start, (x0 + x1 - room) / 2), right - room))
    return x0, x1, Label((x0 + x1) / 2, text, True, left)


def evidence(sheet: Sheet, bands: Sequence[Band], laid: Sequence[Laid], x, top: float, first_lane: float) -> None:
    """A tint over the lanes that each band names, with broken lines from its label down to the last of them."""
    tops, y = {}, first_lane
    for lane in laid:
        tops[lane.lane.key] = (y - LANE_GAP / 2, y + lane.height - LANE_GAP / 2)
        y += lane.height
    for key, (y0, y1) in tops.items():
        over = [band for band in bands if key in band.lanes or not tops.keys() & set(band.lanes)]
        sheet.rects([(x0, x1, y0, y1) for x0, x1 in _union(over, x)], fill=ALARM, opacity=0.17, layer=0)
    for band in bands if len(bands) <= 2 else ():
        foot = max((y1 for key, (_, y1) in tops.items() if key in band.lanes), default=y)
        for edge in {x(band.start), x(band.end)}:
            sheet.dashes(edge, edge, top + ROW, foot, stroke=ALARM, thick=1.0, opacity=0.75, layer=1)
    for x0, x1, label in _band_labels(bands, x, sheet.width - MARGIN):
        sheet.line([(x0, top + ROW + 1), (x1, top + ROW + 1)], stroke=ALARM, thick=2.0, layer=1)
        sheet.text(label.left + 3, top + 9, label.text, bold=True, fill=ALARM_INK)


def _union(bands: Sequence[Band], x) -> list[tuple[float, float]]:
    """What these bands cover on the page: [(x0, x1), …] apart from each other, each at least 3 points wide."""
    covered: list[tuple[float, float]] = []
    for band in sorted(bands, key=lambda b: (b.start, b.end)):
        middle, half = (x(band.start) + x(band.end)) / 2, max(1.5, (x(band.end) - x(band.start)) / 2)
        if covered and middle - half <= covered[-1][1] + 1:
            covered[-1] = (covered[-1][0], max(middle + half, covered[-1][1]))
        else:
            covered.append((middle - half, middle + half))
    return covered
