"""Removes what stands around a tool's output: Markdown; a shell's prompt above it; ranks, pods and times before lines.

A prefix is what lines start with in common, digits aside, up to a blank or one of ``]>:|)}``. So ``[1,0]<stdout>:``,
``[pod/worker-0]``, ``2026-01-01T10:00:00.123Z`` and ``worker-1 |`` are found the same way, and no tool is named here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

_LONGEST = 120  # characters of a prefix
_MOST_LINES = 4096  # that are looked at to find it
_SHARE = 0.5  # of the lines that are not empty have it: a shell's prompt stands before few
_ENDS = "]>:|)}"
_DIGITS = re.compile(r"\d+")
_MARKUP = re.compile(r"^[ \t]*(?:<(?=[A-Za-z!?])|\{(?=\s*\")|\[(?=\s*\[))", re.MULTILINE)
_OWN = re.compile(r"GPU\d|NIC\d|<(?!std)[A-Za-z/!?]|[{\"]|==")  # the tools' own text: a prefix ends before it
_EMPHASIS = re.compile(r"(\*\*|__|`)([^*`\n]{1,120}?)\1")
_RULE = re.compile(r"[\s>|:-]*\|[\s>|:-]*")
_BARS = 2  # a line with so many is a row of a table; one may end a prefix


def without_markdown(text: str) -> str:
    r"""Return a text without Markdown: tables are columns between blanks, no rules are below headers, nothing is bold.

    >>> without_markdown("|  | GPU0 |\n| --- | --- |\n| **GPU0** | `X` |").split()
    ['GPU0', 'GPU0', 'X']
    """
    lines = _EMPHASIS.sub(r"\2", text).split("\n")
    rows = [line.replace("|", " ") if line.count("|") >= _BARS else line for line in lines if not _is_rule(line)]
    return "\n".join(rows)


def _is_rule(line: str) -> bool:
    return line.count("|") >= _BARS and _RULE.fullmatch(line) is not None


def without_escapes(text: str) -> str:
    """Return a text whose line breaks and tabs were two characters each, as in strings of JSON."""
    return text.replace("\\n", "\n").replace("\\t", "\t").replace('"', " ")


def without_prefixes(text: str) -> str:
    r"""Return a text without the prefix that most of its lines have; lines without it stay as they are.

    >>> without_prefixes("[1,0]<stdout>: GPU0 X\n[1,0]<stdout>: GPU1 SYS")
    'GPU0 X\n GPU1 SYS'
    """
    lines = [line for line in text.split("\n", _MOST_LINES)[:_MOST_LINES] if line.strip()]
    found = Counter(shape for line in lines for shape in _shapes(line))
    if not found:
        return text
    most = max(found.values())
    if most < 2 or most < _SHARE * len(lines):  # noqa: PLR2004 - a prefix is what lines have in common
        return text
    shape = max((shape for shape, count in found.items() if count == most), key=len)
    digits_aside = r"\d+".join(map(re.escape, shape.split("0")))
    return re.sub(rf"^[ \t]*{digits_aside}", "", text, flags=re.MULTILINE).lstrip()


def below_prompt(text: str) -> str:
    """Return a text from its first line that starts as XML or JSON does, whole where there is none."""
    found = _MARKUP.search(text)
    return text[found.start() :].lstrip() if found else text


def _shapes(line: str) -> Iterator[str]:
    """Yield what could be a line's prefix, every run of digits as 0, the shortest first."""
    line = line.lstrip()[: _LONGEST + 1]
    own = _OWN.search(line)
    for end in range(1, min(own.start() if own else len(line), _LONGEST) + 1):
        is_word = not line[end - 1].isspace() and line[end : end + 1].strip() == ""
        if is_word or line[end - 1] in _ENDS:
            yield _DIGITS.sub("0", line[:end])
