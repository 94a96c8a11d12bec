"""The pages of the documentation and the papers at the top, and the blocks of code in them."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAPERS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, its text, and whether it follows the one before."""

    language: str
    line: int
    text: str
    follows: bool

    @property
    def file(self) -> str | None:
        """The name of the file that the block is: a program that a command on the page runs."""
        name = re.match(r"# (\w+\.py)\n", self.text)
        return name and name[1]


def blocks_of(paper):
    """Return the fenced blocks of a paper, in their order; only blank lines stand before one that follows."""
    text = (ROOT / paper).read_text(encoding="utf-8")
    found, end = [], 0
    for fence in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE):
        between = text[end : fence.start()]
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(fence[1], line, fence[2], bool(found) and not between.strip()))
        end = fence.end()
    return found


def is_shown(shown, printed):
    """Say whether a page shows what was printed: an ellipsis stands for anything, and lines may be broken."""
    words = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("…")]
    return re.fullmatch(r"\s*" + r"[\s\S]*?".join(rf"\s*{part}\s*" for part in words) + r"\s*", printed) is not None
