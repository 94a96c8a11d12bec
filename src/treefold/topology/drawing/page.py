"""One self-contained HTML page for a run: nothing is loaded, so that it opens anywhere, offline, in years.

The page follows the reader's choice of light or dark and fits a phone. All text is escaped, except the drawings, which
``svg`` has escaped already.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

PHONE = 344.0  # The width that frames leave on a screen of 390 pixels.
_LONG = 40  # A cell with more characters is broken into lines.
_LONG_NAME = 16  # The name of a row with more characters is broken into lines on phones.
#: A number that matters: its name, its value as written, and a few words of context.
Figure = tuple[str, str, str]


class PageTable(Protocol):
    """A header, and rows with as many cells."""

    @property
    def header(self) -> Sequence[str]:
        """The names of the columns."""

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """The cells, row by row."""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, whether it holds, and the evidence."""

    claim: str
    holds: bool
    found: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a heading, a sentence, and if given drawings (SVG), a table and preformatted text.

    Attributes:
        folded: Words shown in place of the table until a reader opens it. The table is then the last part.

    """

    heading: str
    sentence: str
    drawing: str = ""
    verbatim: str = ""
    table: PageTable | None = None
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page, from top to bottom. Empty parts are left out, with their frames.

    ``facts``: the small print, such as versions, machine and arguments. ``is_picture_first``: the first section stands
    above the checks.
    """

    title: str
    summary: str = ""
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    sections: tuple[Section, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    is_picture_first: bool = False


def for_screens(draw: Callable[..., str], *, wide: float) -> str:
    """Return the output of ``draw(width=...)`` for wide screens and for phones. The page shows the one that fits."""
    return f'<div class="wide">{draw(width=wide)}</div><div class="narrow">{draw(width=PHONE)}</div>'


def render_page(page: Page) -> str:
    """Return the page as one HTML document."""
    sections = list(map(_section, page.sections))
    sections.insert(1 if page.is_picture_first else 0, _checks(page.checks))
    header = f"<header><h1>{html.escape(page.title)}</h1>{_paragraph(page.summary)}</header>"
    body = "\n".join(filter(None, [header, _figures(page.figures), *sections, _facts(page.facts)]))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(page.title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _paragraph(words: str) -> str:
    return f"<p>{html.escape(words)}</p>" if words else ""


def _figures(figures: Sequence[Figure]) -> str:
    cards = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd><strong>{html.escape(value)}</strong>"
        f"<span>{html.escape(note)}</span></dd></div>"
        for name, value, note in figures
    )
    return f'<dl class="figures">{cards}</dl>' if figures else ""


def _checks(checks: Sequence[Check]) -> str:
    items = "".join(
        f'<li class="{"ok" if c.holds else "failed"}"><b>{"ok" if c.holds else "failed"}</b>'
        f"<div>{html.escape(c.claim)}<span>{html.escape(c.found)}</span></div></li>"
        for c in checks
    )
    return f'<section><h2>Checks</h2><ul class="checks">{items}</ul></section>' if checks else ""


def _section(section: Section) -> str:
    drawing = ""
    if section.drawing:
        name = html.escape(section.heading)
        # Focusable, so that content wider than the screen can be scrolled from the keyboard.
        drawing = f'<div class="drawing" role="region" aria-label="{name}" tabindex="0">{section.drawing}</div>'
    table = html_table(section.table) if section.table is not None else ""
    verbatim = f"<pre>{html.escape(section.verbatim)}</pre>" if section.verbatim else ""
    head = f"<h2>{html.escape(section.heading)}</h2>{_paragraph(section.sentence)}"
    if section.folded:
        table = f"<details><summary>{html.escape(section.folded)}</summary>{table}</details>"
        return f"<section>{head}{drawing}{verbatim}{table}</section>"
    return f"<section>{head}{drawing}{table}{verbatim}</section>"


def html_table(table: PageTable) -> str:
    """Return a table of a page, in a box that scrolls where the page is narrower; every cell is escaped.

    Columns of long words, not figures, are set left and broken into lines; so are long names of rows on phones.
    """
    kinds = [
        ' class="long"' if max(map(len, column)) > _LONG else ""
        for column in zip(table.header, *table.rows, strict=True)
    ]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(cell)}</th>' for kind, cell in zip(kinds, table.header, strict=True)
    )
    rows = "".join(f"<tr>{_name(name)}{_cells(cells, kinds[1:])}</tr>" for name, *cells in table.rows)
    return (
        f'<div class="table" role="region" aria-label="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _name(name: str) -> str:
    kind = ' class="name"' if len(name) > _LONG_NAME else ""
    return f'<th scope="row"{kind}>{html.escape(name)}</th>'


def _cells(cells: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
    return f'<footer><dl class="facts">{rows}</dl></footer>' if facts else ""


_STYLE = """\
:root{color-scheme:light dark;--ink:#1a2027;--quiet:#5a6572;--paper:#fff;--ground:#eef1f5;--rule:#d5dbe3;
--ok:#0b7a4b;--failed:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e8ecf1;--quiet:#a3aebb;--paper:#14181d;--ground:#0b0e11;--rule:#2b333d;
--ok:#56d09b;--failed:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:70rem;margin:0 auto;padding:2rem 1rem 3rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.1rem;margin:0 0 .3rem}
p{margin:0 0 .9rem;color:var(--quiet);max-width:46rem}
section,.figures>div{background:var(--paper);border:1px solid var(--rule);border-radius:10px}
section{padding:1.1rem 1.2rem;margin-top:1rem}
dl,dd,ul{margin:0;padding:0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem;margin-top:1.2rem}
.figures>div{padding:.8rem 1rem}
dt,.figures span,.checks span{color:var(--quiet);font-size:.86rem}
.figures strong{display:block;font-size:1.45rem;line-height:1.3;font-variant-numeric:tabular-nums}
.checks{list-style:none}
.checks li{display:flex;gap:.9rem;padding:.5rem 0;border-top:1px solid var(--rule)}
.checks li:first-child{border-top:0}
.checks b{flex:0 0 3.4rem}
.checks span{display:block;overflow-wrap:anywhere}
.ok b{color:var(--ok)}.failed b{color:var(--failed)}
.drawing,.table{overflow-x:auto}
.drawing svg{display:block}
.narrow{display:none}
@media(max-width:48rem){.wide{display:none}.narrow{display:block}
.tf-fitted svg{min-width:0!important}.tf-fitted .tf-prefix,.tf-fitted .tf-legend{display:none}
.tf-fitted .tf-device-node text{font-size:var(--tf-label);dominant-baseline:central;transform:translateY(-4.5px)}
.tf-fitted .tf-name{font-size:calc(.9*var(--tf-label));transform:translateY(.5rem)}}
summary{cursor:pointer}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .55rem .35rem 0;text-align:right;white-space:nowrap;border-top:1px solid var(--rule)}
thead th{border-top:0;color:var(--quiet);font-weight:400;vertical-align:bottom;white-space:normal;
max-width:11rem}
.long{text-align:left}td.long{white-space:normal;min-width:18rem}
th:first-child{text-align:left;font-weight:400;position:sticky;left:0;background:var(--paper)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:.9rem 1rem;border-radius:8px;background:var(--ground);
font:13px/1.55 ui-monospace,monospace}
.drawing+.table,.drawing+pre,.table+pre,pre+details{margin-top:1rem}
footer{margin:1.4rem .2rem 0}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1.2rem;font-size:.86rem}
.facts dd{overflow-wrap:anywhere}
@media(max-width:30rem){main{padding:1.2rem .6rem 2rem}section{padding:.9rem .8rem}h1{font-size:1.4rem}
.figures{grid-template-columns:1fr 1fr}.facts{grid-template-columns:1fr}.facts dd{margin-bottom:.4rem}
th.name{white-space:normal}}
"""
