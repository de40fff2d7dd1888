"""Picture: what every draw returns. It shows itself in a notebook as SVG, with the same in words folded below it."""

import html
import threading
from pathlib import Path as File

from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_hex
from matplotlib.path import Path

from .sheet import Sheet
from .style import ALARM, ALARM_INK, INK, clean, width

# The page's own text colour: JupyterLab's, and wherever that is not set, what the text around the picture has.
_INKS = {
    INK: "var(--labkit-ink)",
    ALARM_INK: f"color-mix(in srgb, {ALARM} 75%, var(--labkit-ink))",
}
# `svg:root` is true only of a picture in a file of its own, where no page says what is light and what is dark.
_ALONE = "svg:root{color:#1f2428;color-scheme:light dark}@media (prefers-color-scheme:dark){svg:root{color:#e8e8e8}}"
_PX_PER_POINT = 96 / 72
_VERBS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


class Picture:
    """A drawn figure. `svg()` and `png(path)` give it out; `alt` states its conclusion, `text` is its twin in words."""

    def __init__(self, sheet: Sheet, title: str, alt: str, text: str):
        self.figure, self.title, self.alt, self.text = sheet.figure, title, alt, text
        self._size = sheet.width, sheet.height
        self._lock = threading.Lock()  # a Figure must not be drawn by two threads at once

    def svg(self) -> str:
        """The picture as one <svg> element: to put into a page, or with a file of its own.

        The same picture is always the same text. It carries no ids, so any number of them stand on one page.
        """
        renderer = _Svg(*self._size)
        with self._lock:
            self.figure.draw(renderer)
        width, height = (round(side * _PX_PER_POINT) for side in self._size)
        title, alt = html.escape(clean(self.title)), html.escape(clean(self.alt))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{alt}" width="{width}" height="{height}" '
            f'viewBox="0 0 {_short(self._size[0])} {_short(self._size[1])}" style="max-width:100%;height:auto;'
            "--labkit-ink:var(--jp-content-font-color1,currentColor);"
            "font-family:'DejaVu Sans',Verdana,sans-serif\">"
            f"<title>{title}</title><style>{_ALONE}</style>{''.join(renderer.parts)}</svg>"
        )

    def png(self, path, dpi: float = 144) -> File:
        """Write the picture as a PNG file on white; dpi: points of the file an inch of the picture."""
        with self._lock:
            self.figure.savefig(
                path,
                format="png",
                dpi=dpi,
                facecolor="white",
                transparent=False,
                bbox_inches=self.figure.bbox_inches,
                metadata={"Title": self.alt},
            )
        return File(path)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        twin = html.escape(self.text)
        folded = f"<details><summary>as text</summary><pre>{twin}</pre></details>"
        return {"text/html": f"{self.svg()}{folded}", "text/plain": self.text}


class _Svg(RendererBase):
    """Writes the shapes and texts of a Sheet as SVG.

    Not matplotlib's own SVG backend: that one takes its settings from rcParams, which all threads share, writes a style
    that reaches into the whole page, and cannot leave a colour to the page.
    """

    def __init__(self, width: float, height: float):
        super().__init__()
        self.width, self.height = width, height
        self.parts: list[str] = []
        self._groups: list[str] = []

    def get_canvas_width_height(self):
        return self.width, self.height

    def points_to_pixels(self, points):
        return points

    def flipy(self):
        return True

    def get_text_width_height_descent(self, s, prop, ismath):
        size = prop.get_size_in_points()
        return width(s, size, prop.get_weight() == "bold"), size, size / 5

    def open_group(self, s, gid=None):
        """A shape with a tip becomes a group with a title; matplotlib's many other groups are left out."""
        if gid:
            self.parts.append(f"<g><title>{html.escape(gid, quote=False)}</title>")
        self._groups.append("</g>" if gid else "")

    def close_group(self, s):
        self.parts.append(self._groups.pop())

    def draw_path(self, gc, path, transform, rgbFace=None):
        d = []
        for points, code in path.iter_segments(transform, remove_nans=False, simplify=False):
            pairs = zip(points[::2], points[1::2], strict=True)
            there = [f"{_short(x)} {_short(self.height - y)}" for x, y in pairs if code != Path.CLOSEPOLY]
            d.append(_VERBS[code] + " ".join(there))
        look = [f"fill:{_colour(rgbFace) if rgbFace is not None else 'none'}"]
        if gc.get_linewidth():
            look += [f"stroke:{_colour(gc.get_rgb())}", f"stroke-width:{_short(gc.get_linewidth())}"]
        self.parts.append(f'<path d="{"".join(d)}" style="{";".join(look + _opacity(gc))}"/>')

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        # x is the left end as matplotlib measured it; the browser measures its own font from the true anchor.
        anchor = {"left": "start", "center": "middle", "right": "end"}[mtext.get_horizontalalignment()]
        x, _ = mtext.get_transform().transform(mtext.get_position())
        look = [f"font-size:{_short(prop.get_size_in_points())}px", f"fill:{_colour(gc.get_rgb())}"]
        look += [f"text-anchor:{anchor}"] if anchor != "start" else []
        look += ["font-weight:bold"] if prop.get_weight() == "bold" else []
        place = f'x="{_short(x)}" y="{_short(y)}"'
        self.parts.append(f'<text {place} style="{";".join(look + _opacity(gc))}">{html.escape(s, quote=False)}</text>')


def _colour(rgb) -> str:
    colour = to_hex(rgb[:3])
    return _INKS.get(colour, colour)


def _opacity(gc) -> list[str]:
    return [f"opacity:{_short(gc.get_alpha())}"] if gc.get_alpha() != 1 else []


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
