"""Fail if a file or a function is over its budget, or all of ``src`` is.

A file may have 600 lines, a function 50, its docstring not counted. Most are shorter. An idea is not cut in two to meet
a number. The total counts most, because readers of the project read all of it.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

#: Lines of code in ``src``, without docstrings, comments and blank lines. Each raise needs a line here with its reason.
#: The house has 27,210. Sums that go on added 1,005 (``partials``, ``numpy_partial``). Sums over whole arrays added
#: 435: their calls and rounding, the reference, and clipping by a norm. Training in micro-batches added 805
#: (``torch/training``): plain, DDP, FSDP2 and HSDP gradients, seeds, digests, the check,
#: and ``assert_same_training``. ``exact_reduce_scatter`` added 55.
#: The demo of one SHA (``cli/one_sha.py``, and what shows it) added 120.
#: Logs and ranges in profilers (``observing.py``) added 115.
#: Exact partial sums between hosts added 270. Timed calls on values like gradients added 20.
#: Exact sums on a GPU, which are two kernels, added 377.
#: Partial sums that cross hosts once, and logs as whole numbers, added 70.
#: Partial sums on a GPU (``torch/training/device_sum.py``) added 69.
MAX_TOTAL_LINES = 30_559
MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 50
ROOMS = ("src", "tests", "tools", "native", "benchmarks")
SUFFIXES = (".py", ".cpp", ".hpp")

Function = ast.FunctionDef | ast.AsyncFunctionDef
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_lines(function: Function) -> int:
    """Return the lines from ``def`` to the last statement, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def count_code(text: str) -> int:
    """Return the number of lines of Python that are neither blank, nor comments, nor parts of docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for t in tokens if t.type not in _NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def find_overruns(path: Path, text: str) -> Iterator[str]:
    """Yield one line of text for the file, and for each function in it, that is over its budget."""
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}:1 the file: {lines} lines, allowed {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text, filename=str(path))) if path.suffix == ".py" else ():
        if isinstance(node, Function) and (lines := count_lines(node)) > MAX_FUNCTION_LINES:
            yield f"{path}:{node.lineno} {node.name}: {lines} lines, allowed {MAX_FUNCTION_LINES}"


def main(root: Path) -> int:
    """Print every overrun below ``root``; return 1 if there is one, else 0."""
    overruns: list[str] = []
    total = 0
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in SUFFIXES):
        name, text = path.relative_to(root), path.read_text(encoding="utf-8")
        overruns += find_overruns(name, text)
        total += count_code(text) if name.parts[0] == "src" and path.suffix == ".py" else 0
    if total > MAX_TOTAL_LINES:
        overruns.append(f"src: {total:,} lines of code, allowed {MAX_TOTAL_LINES:,}")
    print(*overruns, sep="\n", end="\n" if overruns else "")
    return 1 if overruns else 0


if __name__ == "__main__":
    sys.exit(main(Path()))
