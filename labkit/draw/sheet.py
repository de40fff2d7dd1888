"""Sheet: a matplotlib Figure measured in points from its top left corner, and the few shapes our pictures are made of.

Every property is given here and none is taken from matplotlib's rcParams, which belong to the whole process: a
notebook's own style must not change our pictures, nor they its style, and the panel draws from another thread.
"""

import math

from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Affine2D

from .style import INK, TEXT, clean, font

Point = tuple[float, float]


class Sheet:
    """An empty page, `width` by `height` points; y grows downwards. A `tip` is what a mouse over the shape says."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        size = (width / 72, height / 72)
        self.figure = Figure(size, dpi=72, facecolor="none", edgecolor="none", linewidth=0, layout="none")
        _plain(self.figure.patch)
        self._points = Affine2D().scale(1 / 72, -1 / 72).translate(0, height / 72) + self.figure.dpi_scale_trans

    # -- shapes
    def rect(self, x0: float, x1: float, y0: float, y1: float, **look) -> None:
        self.shape([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], **look)

    def rects(self, boxes: list[tuple[float, float, float, float]], **look) -> None:
        """Many rectangles (x0, x1, y0, y1) as one shape."""
        corners = [[(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)] for x0, x1, y0, y1 in boxes]
        if boxes:
            self.path([point for box in corners for point in box], _codes(4, closed=True) * len(boxes), **look)

    def shape(self, corners: list[Point], **look) -> None:
        """A closed outline through these corners."""
        self.path([*corners, corners[0]], _codes(len(corners), closed=True), **look)

    def line(self, points: list[Point], *, stroke: str = INK, thick: float = 1.0, **look) -> None:
        self.path(points, _codes(len(points)), stroke=stroke, thick=thick, **look)

    def lines(self, pieces: list[list[Point]], *, stroke: str = INK, thick: float = 1.0, **look) -> None:
        """Many separate lines as one shape."""
        codes = [code for piece in pieces for code in _codes(len(piece))]
        if codes:
            self.path([point for piece in pieces for point in piece], codes, stroke=stroke, thick=thick, **look)

    def dashes(self, x0: float, x1: float, y0: float, y1: float, **look) -> None:
        """A broken line from (x0, y0) to (x1, y1)."""
        length = math.hypot(x1 - x0, y1 - y0)

        def at(distance: float) -> Point:
            part = min(distance / length, 1.0)
            return x0 + (x1 - x0) * part, y0 + (y1 - y0) * part

        self.lines([[at(d), at(d + 4)] for d in range(0, math.ceil(length), 7)], **look)

    def dots(self, centres: list[Point], radius: float, **look) -> None:
        """Round dots as one shape, each of four curves."""
        r, b = radius, 0.5523 * radius  # with this bend a cubic curve is a quarter of a circle
        quarter = [(r, b), (b, r), (0, r)]
        turns = [quarter, [(-y, x) for x, y in quarter], [(-x, -y) for x, y in quarter], [(y, -x) for x, y in quarter]]
        ring = [(r, 0), *(point for turn in turns for point in turn), (r, 0)]
        if centres:
            points = [(x + dx, y + dy) for x, y in centres for dx, dy in ring]
            codes = [Path.MOVETO] + [Path.CURVE4] * 12 + [Path.CLOSEPOLY]
            self.path(points, codes * len(centres), **look)

    def path(
        self, points, codes, *, fill: str | None = None, stroke: str | None = None, thick: float = 0.0,
        opacity: float = 1.0, layer: int = 2, tip: str = "",
    ) -> None:  # fmt: skip
        patch = PathPatch(
            Path(points, codes), facecolor=fill or "none", edgecolor=stroke or "none", linewidth=thick, alpha=opacity,
            linestyle="solid", joinstyle="miter", capstyle="butt", antialiased=True, transform=self._points,
            zorder=layer, gid=clean(tip) or None,
        )  # fmt: skip
        self.figure.add_artist(_plain(patch))

    def hatch(self, x0: float, x1: float, y0: float, y1: float, *, step=4.5, cross=False, **look) -> None:
        """Slanted lines cut to a rectangle.

        As lines and not as an SVG pattern: a pattern needs an id, and when one page shows the same picture twice and
        hides the first, browsers lose the pattern of the second.
        """
        pieces, high = [], y1 - y0
        start = x0 - high + step / 2
        for i in range(int((x1 - start) / step) + 1 if x1 > start else 0):
            foot = start + i * step  # the line from (foot, y1) up to (foot + high, y0)
            a, b = max(foot, x0), min(foot + high, x1)
            if a < b:
                pieces.append([(a, y1 - (a - foot)), (b, y1 - (b - foot))])
                if cross:
                    pieces.append([(a, y0 + (a - foot)), (b, y0 + (b - foot))])
        self.lines(pieces, **{"thick": 0.8, "opacity": 0.75, **look})

    # -- texts
    def text(
        self, x: float, y: float, text: str, *, size: float = TEXT, bold: bool = False, anchor: str = "left",
        fill: str = INK, opacity: float = 1.0, layer: int = 5,
    ) -> None:  # fmt: skip
        """One line whose baseline is at y. anchor: which end of it is at x ("left", "center", "right")."""
        label = Text(
            x, y, clean(text), color=fill, alpha=opacity, fontproperties=font(size, bold), horizontalalignment=anchor,
            verticalalignment="baseline", parse_math=False, usetex=False, transform=self._points, zorder=layer,
        )  # fmt: skip
        self.figure.add_artist(_plain(label))


def _plain(artist):
    artist.set_sketch_params(None)
    artist.set_path_effects(None)
    return artist


def _codes(n: int, closed: bool = False) -> list[int]:
    return [Path.MOVETO] + [Path.LINETO] * (n - 1) + ([Path.CLOSEPOLY] if closed else [])
