"""How every picture looks: colours, sizes, the width of a text."""

from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

# Two inks that a page may replace (see picture.py): the page's own text colour, and vermillion mixed with it.
INK = "#1f2428"
ALARM_INK = "#b34a05"
ALARM = "#D55E00"  # Okabe and Ito's vermillion: what went wrong, was refused or is above its limit, and nothing else
UNKNOWN = "#8a8a8a"
# The other colours of Okabe and Ito (2008), which stay apart for every kind of colour blindness.
FILLS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")

TITLE, SUBTITLE, LANE, TEXT = 13.0, 10.5, 11.0, 9.5  # points


def fill(index: int) -> str:
    return FILLS[index % len(FILLS)]


def text_on(colour: str) -> str:
    """White or near black, whichever can be read better on this fill (WCAG's relative luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#ffffff" if 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18 else "#111111"


@lru_cache(maxsize=64)
def font(size: float, bold: bool = False) -> FontProperties:
    weight = "bold" if bold else "normal"
    return FontProperties(
        family="DejaVu Sans", style="normal", variant="normal", stretch="normal", weight=weight, size=size
    )


@lru_cache(maxsize=4096)
def width(text: str, size: float = TEXT, bold: bool = False) -> float:
    """Width in points that a text may take. Signs that our font lacks are as wide as high in the font that has them."""
    known = "".join(c for c in text if ord(c) in _signs())
    measured = text_to_path.get_text_width_height_descent(known, font(size, bold), False)[0]
    return 1.04 * measured + (len(text) - len(known)) * size  # hinting at a screen's resolution widens it a little


@lru_cache(maxsize=1)
def _signs() -> frozenset[int]:
    return frozenset(get_font(findfont(font(TEXT))).get_charmap())


def clean(text) -> str:
    """As one line that XML can carry: line breaks become spaces, other signs nobody can see a middle dot."""
    return "".join(c if c.isprintable() else "·" for c in " ".join(str(text).split()))


def shorten(text, most: int = 30) -> str:
    text = clean(text)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def middle(name, most: int = 25) -> str:
    """A name cut in its middle: names that differ often do so at their ends."""
    name = clean(name)
    return name if len(name) <= most else f"{name[: most - 10]}…{name[-9:]}"


def wrap(text: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Lines of at most `room` points, broken between words, and inside a word that is wider than that."""
    lines: list[str] = []
    for word in clean(text).split(" "):
        if lines and width(f"{lines[-1]} {word}", size, bold) <= room:
            lines[-1] += f" {word}"
            continue
        while (wide := width(word, size, bold)) > room and len(word) > 1:
            cut = max(1, int(len(word) * room / wide * 0.9))
            lines.append(word[:cut])
            word = word[cut:]
        lines.append(word)
    return lines


def unit(seconds: float) -> tuple[str, float]:
    """(name, factor) of the unit in which times up to this many seconds read well."""
    return ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)


def time_text(seconds: float) -> str:
    """One duration with its unit, three figures: 234 µs, 7.26 ms, 1.30 s."""
    name, factor = unit(abs(seconds))
    value = seconds * factor
    return f"{value:.0f} {name}" if abs(value) >= 99.95 else f"{value:.3g} {name}" if value else "0 s"
