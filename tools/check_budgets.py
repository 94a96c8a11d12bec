"""Fail where a file or a function has outgrown its budget of lines.

A file may have 400 lines, a function 40; a docstring is not counted.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
ROOMS = ("src", "tests", "tools", "native", "benchmarks")
SUFFIXES = (".py", ".cpp", ".hpp")


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines from ``def`` to the last statement, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def find_overruns(path: Path) -> Iterator[str]:
    """Yield one line of text for the file, and for each function in it, that is over its budget."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}:1 the file: {lines} lines, allowed {MAX_FILE_LINES}"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = count_lines(node)
            if lines > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno} {node.name}: {lines} lines, allowed {MAX_FUNCTION_LINES}"


def main(root: Path) -> int:
    """Print every overrun below ``root``; return 1 if there is one, else 0."""
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in SUFFIXES)
    overruns = [overrun for path in files for overrun in find_overruns(path)]
    for overrun in overruns:
        print(overrun)
    return 1 if overruns else 0


if __name__ == "__main__":
    sys.exit(main(Path()))
