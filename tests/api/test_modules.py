import ast
import sys
from pathlib import Path

import treefold

PACKAGE = Path(treefold.__file__).parent


def modules():
    """Return every module of the package by name, with its file; packages by their ``__init__.py``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("treefold", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def bindings(package):
    """Return what a package binds to names when it is imported: name → what it imports, None for its own."""
    bound = {}
    for node in ast.parse(MODULES[package].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound[node.name] = None
    return bound


def imports(path):
    """Return the modules of the package that a module imports, at any time; not for annotations alone."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {inner for node in checks for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module} & MODULES.keys()
    return found


class TestModules:
    def test_are_attributes_of_their_packages(self):
        hidden = set()
        for name in MODULES:
            package, _, own = name.rpartition(".")
            if package and bindings(package).get(own, name) != name:
                hidden.add(name)
        assert hidden == set()
        loaded = {name: module for name, module in sys.modules.items() if name in MODULES and "." in name}
        for name, module in loaded.items():
            package, _, own = name.rpartition(".")
            assert getattr(sys.modules[package], own) is module

    def test_import_in_no_circle(self):
        waiting = {name: imports(path) - {name} for name, path in MODULES.items()}
        while ready := {name for name, others in waiting.items() if not others & waiting.keys()}:
            waiting = {name: others for name, others in waiting.items() if name not in ready}
        circle = set(waiting)
        while leaves := {name for name in circle if not any(name in waiting[other] for other in circle)}:
            circle -= leaves
        assert circle == set()
