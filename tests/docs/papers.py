"""The pages of the documentation and the papers at the top, and the blocks of code in them."""

import itertools
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


#: What pages need that `make test` does not install, or that is slow to import: `make test-recipes` runs these blocks.
RECIPES = re.compile(r"^(?:from|import) (?:lightning|accelerate|transformers|flwr|nvflare)\b", re.MULTILINE)
#: How a program for several ranks begins: it connects, or initialises PyTorch's process group.
RANKS = re.compile(r"\b(?:treefold\.connect\((?:\)|timeout)|init_process_group\()")


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


def kind_of(block):
    """Return how a block of Python is run: as a "recipe", on "ranks", by a command ("file"), or with its "page"."""
    code = re.sub(r"#.*", "", block.text)
    if block.file:
        return "file"
    return "recipe" if RECIPES.search(code) else "ranks" if RANKS.search(code) else "page"


def programs_of(paper, kind):
    """Return the blocks of Python that are run in one way, each with the text that it is to print, or None."""
    blocks = blocks_of(paper)
    return [
        (block, after.text if after and after.language == "text" else None)
        for block, after in itertools.zip_longest(blocks, blocks[1:])
        if block.language == "python" and kind_of(block) == kind
    ]


def is_shown(shown, printed):
    """Say whether a page shows what was printed: an ellipsis stands for anything, and lines may be broken."""
    words = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("…")]
    return re.fullmatch(r"\s*" + r"[\s\S]*?".join(rf"\s*{part}\s*" for part in words) + r"\s*", printed) is not None
