"""Fail where a file, a function or a class has outgrown its budget.

A file may have 600 lines, a function 50, its docstring not counted; a class 200 lines and 20 methods. Most are shorter.
An idea is not cut in two to meet a number. Classes that were larger when the budget came are listed, and only shrink.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 50
MAX_CLASS_LINES, MAX_METHODS = 200, 20
ROOMS = ("src", "tests", "tools", "native", "benchmarks")
SUFFIXES = (".py", ".cpp", ".hpp")
#: Where a class may have as many lines and methods as it needs: an error's constructors are sentences.
CLASSES_OF_SENTENCES = Path("src/treefold/errors")
#: (lines, methods) of the classes in ``src`` that are larger. Take a class out once it fits; add none.
LARGER: dict[str, tuple[int, int]] = {
    "src/treefold/backends/interface.py:ArrayBackend": (168, 33),
    "src/treefold/backends/jax.py:JaxBackend": (153, 24),
    "src/treefold/backends/numpy.py:NumpyBackend": (92, 21),
    "src/treefold/backends/tensorflow.py:TensorflowBackend": (153, 27),
    "src/treefold/backends/torch.py:TorchBackend": (158, 29),
    "src/treefold/group/transport/hosts.py:ChannelLink": (226, 17),
    "src/treefold/group/group.py:Group": (260, 25),
    "src/treefold/group/reductions.py:Reductions": (242, 14),
    "src/treefold/ops/base.py:CrossDeviceOps": (305, 24),
    "src/treefold/torch/c10d/process_group.py:TreefoldProcessGroup": (315, 40),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def count_lines(function: Function) -> int:
    """Return the lines from ``def`` to the last statement, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def measure_class(node: ast.ClassDef) -> tuple[int, int]:
    """Return the lines of a class, and the number of its methods."""
    return (node.end_lineno or node.lineno) - node.lineno + 1, sum(isinstance(item, Function) for item in node.body)


def find_overruns(path: Path) -> Iterator[str]:
    """Yield one line of text for the file, and for each function and class in it, that is over its budget."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}:1 the file: {lines} lines, allowed {MAX_FILE_LINES}"
    if path.suffix != ".py":
        return
    has_class_budgets = path.parts[0] == "src" and CLASSES_OF_SENTENCES not in path.parents
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, Function):
            lines = count_lines(node)
            if lines > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno} {node.name}: {lines} lines, allowed {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.ClassDef) and has_class_budgets:
            lines, methods = measure_class(node)
            max_lines, max_methods = LARGER.get(f"{path}:{node.name}", (MAX_CLASS_LINES, MAX_METHODS))
            if lines > max_lines or methods > max_methods:
                yield (
                    f"{path}:{node.lineno} {node.name}: {lines} lines and {methods} methods, allowed {max_lines} and "
                    f"{max_methods}"
                )


def main(root: Path) -> int:
    """Print every overrun below ``root``; return 1 if there is one, else 0."""
    files = sorted(
        path.relative_to(root) for room in ROOMS for path in (root / room).rglob("*") if path.suffix in SUFFIXES
    )
    overruns = [overrun for path in files for overrun in find_overruns(path)]
    for overrun in overruns:
        print(overrun)
    return 1 if overruns else 0


if __name__ == "__main__":
    sys.exit(main(Path()))
