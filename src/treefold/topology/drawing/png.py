"""A drawing as a PNG, for places that take no SVG. Needs resvg-py, of the extra ``png``."""

from __future__ import annotations

import importlib
import re

from treefold.errors import MissingExtraError

_DARK = re.compile(r"@media\(prefers-color-scheme:dark\)\{[^{}]*\{[^{}]*\}\}")
_SET, _USE = re.compile(r"--(tf-[\w-]+):([^;]+);"), re.compile(r"var\(--(tf-[\w-]+)\)")


def render_png(svg: str, *, zoom: float = 2.0) -> bytes:
    """Return a drawing of this room on light paper, ``zoom`` pixels to each of its units.

    Raises:
        MissingExtraError: resvg-py is not installed.

    """
    try:
        resvg = importlib.import_module("resvg_py")
    except ImportError:
        raise MissingExtraError.png() from None
    data: bytes = resvg.svg_to_bytes(svg_string=with_plain_colours(svg), zoom=zoom)
    return bytes(data)


def with_plain_colours(svg: str) -> str:
    """Return a drawing whose colours are written out, for programs that know no CSS variables: light paper only.

    >>> with_plain_colours("<style>.tf-drawing{--tf-ink:#123456;}.a{fill:var(--tf-ink)}</style>")
    '<style>.tf-drawing{}.a{fill:#123456}</style>'
    """
    light = _DARK.sub("", svg)
    colours = dict(_SET.findall(light))
    return _USE.sub(lambda found: colours.get(found[1], "#000000"), _SET.sub("", light))
