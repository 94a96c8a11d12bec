import ast
import builtins
import re
from pathlib import Path

import pytest

import treefold
from treefold import errors

PACKAGE = Path(treefold.__file__).parent
DRAWN = re.compile(r"^    (?P<indent>[│ ]*)(?:[├└]── )(?P<name>\w+) +(?P<kind>[A-Z]\w+(?= {2})|tf\.\S+)?", re.MULTILINE)


def drawn():
    """Return what the tree draws: class, its parent, and the exception of Python's that it is, too."""
    parents, rows = {0: "TreefoldError"}, []
    for line in DRAWN.finditer(errors.__doc__):
        depth = len(line["indent"]) // 4
        rows.append((line["name"], parents[depth], line["kind"]))
        parents[depth + 1] = line["name"]
    return rows


def defined():
    """Return the exceptions that are defined anywhere in the package: class, its bases as written, and its file."""
    rows, kinds = [], {name for name, kind in vars(builtins).items() if isinstance(kind, type)}
    exceptions = {name for name in kinds if issubclass(getattr(builtins, name), BaseException)}
    classes = [
        (node.name, tuple(map(ast.unparse, node.bases)), path.relative_to(PACKAGE).as_posix())
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    while True:
        found = [row for row in classes if row not in rows and {b.rpartition(".")[2] for b in row[1]} & exceptions]
        if not found:
            return rows
        rows += found
        exceptions |= {name for name, _, _ in found}


class TestErrorTree:
    def test_has_every_exception_of_the_package(self):
        assert sorted(name for name, _, _ in defined()) == sorted(["TreefoldError", *(name for name, _, _ in drawn())])

    def test_is_in_one_place(self):
        elsewhere = [name for name, _, file in defined() if not file.startswith("errors/")]
        assert elsewhere == ["ReplicaMismatchError"]
        assert set(errors.__all__) == {name for name, _, _ in defined()} - set(elsewhere)

    @pytest.mark.parametrize(("name", "parent", "kind"), [row for row in drawn() if row[0] in errors.__all__])
    def test_draws_the_parents(self, name, parent, kind):
        bases = [getattr(errors, parent), *([getattr(builtins, kind)] if kind else [])]
        assert getattr(errors, name).__bases__ == tuple(bases)

    def test_is_sorted(self):
        siblings = [name for name, parent, _ in drawn() if parent == "TreefoldError"]
        assert siblings == sorted(siblings)
        assert errors.__all__ == sorted(errors.__all__)
