"""The elements of SVG that the drawings share, and one theme for light and dark.

Colours are CSS variables, set in the drawing itself, so that a drawing is legible inside a page and on its own.
"""

from __future__ import annotations

import html
import math

#: Colours that keep 4.5:1 against the paper, in the order in which packs and curves take them. The first eight are
#: chosen by hand; the others are, of all that keep the contrast, those farthest from each other (by CIEDE2000).
LIGHT = (
    "#0b62c4", "#c2410c", "#0b7a4b", "#8b2fb0", "#8a6100", "#0e7081", "#be1860", "#59626f",
    "#785afa", "#501e0a", "#647800", "#0000a0", "#e61e3c", "#00463c", "#785a78", "#a0001e",
    "#283200", "#3c3c6e", "#8c6e64", "#50143c", "#6e6e5a", "#14465a", "#5a4628", "#503c3c",
)  # fmt: skip
DARK = (
    "#6cb2ff", "#ff9a66", "#56d09b", "#d79cf5", "#f0c04c", "#57d1e4", "#ff8fbf", "#b4bfcc",
    "#786efa", "#befa14", "#fa1e46", "#009600", "#e60ad2", "#3c8c8c", "#b4780a", "#f0f0be",
    "#e65000", "#828264", "#c8faf0", "#967882", "#96a000", "#fad2dc", "#00d20a", "#beaa96",
)  # fmt: skip
QUIET = 7  # the grey among them, for the baseline
#: Drawings are never narrower than this part of their size: text of 11 pixels keeps 9 of them.
NARROWEST = 0.82
PAGE = 1040  # nor wider, on a page of 1280 pixels, than its frames leave

_INK = {"ink": ("#1a2027", "#e8ecf1"), "quiet": ("#5a6572", "#a3aebb"), "rule": ("#c9d0d9", "#3d4753")}
_PAPER = {"paper": ("#ffffff", "#14181d")}


def theme() -> str:
    """Return the CSS that all drawings use; including it more than once does no harm."""
    named = _INK | _PAPER | {f"tone-{index}": pair for index, pair in enumerate(zip(LIGHT, DARK, strict=True))}
    light = "".join(f"--tf-{name}:{pair[0]};" for name, pair in named.items())
    dark = "".join(f"--tf-{name}:{pair[1]};" for name, pair in named.items())
    tones = "".join(f".tf-tone-{index}{{color:var(--tf-tone-{index})}}" for index in range(len(LIGHT)))
    return (
        f".tf-drawing{{{light}font:13px system-ui,sans-serif;fill:var(--tf-ink);color:var(--tf-ink)}}"
        f"@media(prefers-color-scheme:dark){{.tf-drawing{{{dark}}}}}"
        f".tf-quiet{{fill:var(--tf-quiet)}}.tf-strong{{font-weight:600}}.tf-paper{{fill:var(--tf-paper)}}"
        f".tf-band{{fill:var(--tf-quiet);fill-opacity:.08}}.tf-rule{{stroke:var(--tf-rule);fill:none}}{tones}"
        ".tf-line{stroke:currentColor;fill:none}.tf-fill{fill:currentColor}"
        ".tf-ring{stroke:currentColor;fill:var(--tf-paper)}.tf-tone-text{fill:currentColor}"
    )


def element(name: str, *children: str, **attributes: str | float) -> str:
    """Return an element; ``_`` in attribute names means ``-`` and a trailing one is dropped (``class_``)."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(content: str, x: float, y: float, **attributes: str | float) -> str:
    """Return a line of text, escaped, its baseline at ``y``."""
    return element("text", html.escape(content), x=x, y=y, **attributes)


def titled(content: str) -> str:
    """Return a ``<title>``: a name for assistive technology, a hint under the pointer."""
    return element("title", html.escape(content))


def arrow(start: tuple[float, float], end: tuple[float, float], *, gap: float, head: float, thick: float) -> str:
    """Return an arrow that ends ``gap`` before a point.

    Its head is drawn and not a ``<marker>``: markers do not take the colour of their line everywhere.
    """
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    (tip_x, tip_y), (x, y) = ((x2 - ux * before, y2 - uy * before) for before in (gap, gap + head))
    corners = ((tip_x, tip_y), (x - uy * 4, y + ux * 4), (x + uy * 4, y - ux * 4))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    line = element("line", class_="tf-line", x1=x1, y1=y1, x2=x, y2=y, stroke_width=thick)
    return line + element("polygon", class_="tf-fill", points=points)


def drawing(parts: list[str], *, width: float, height: float, title: str, description: str, zoom: float = 1.0) -> str:
    """Return the whole SVG with its theme, its title and its description in words, shown ``zoom`` times its size.

    On a phone a large drawing is scrolled rather than unreadable; on a wide screen none is scrolled.
    """
    head = [titled(title), element("desc", html.escape(description)), element("style", theme())]
    paper = element("rect", class_="tf-paper", width="100%", height="100%", rx=8)
    least = _number(min(round(width * NARROWEST), PAGE))
    return element(
        "svg",
        *head,
        paper,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="tf-drawing",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        role="img",
        aria_label=title,
        style=f"width:{_number(width * zoom)}px;max-width:100%;min-width:{least}px;height:auto",
    )


def _number(value: str | float) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
