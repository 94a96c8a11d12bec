"""The reference has every public name, and the site has every page."""

import importlib
import inspect
import re

import pytest
from papers import ROOT

from treefold.cli.app import make_app

PAGES = ROOT / "docs" / "reference"


class TestReference:
    @pytest.mark.parametrize(
        "module",
        [f"treefold{room}" for room in ("", ".averaging", ".exact", ".torch", ".tensorflow", ".keras", ".testing")],
    )
    def test_has_every_public_name(self, module):
        page = (PAGES / f"{module.rpartition('.')[2]}.md").read_text(encoding="utf-8")
        named = re.findall(rf"^\.\. auto(?:class|function|data):: {re.escape(module)}\.(\w+)$", page, re.MULTILINE)
        public = importlib.import_module(module)
        assert sorted(named) == sorted(one for one in public.__all__ if not inspect.ismodule(getattr(public, one)))

    def test_has_every_command(self):
        commands = {one.name or one.callback.__name__ for one in make_app().registered_commands}
        assert (
            set(re.findall(r"^\| `treefold (\w+)` ", (PAGES / "command.md").read_text("utf-8"), re.MULTILINE))
            == commands
        )


class TestExamples:
    def test_all_are_on_their_page(self):
        shown = re.findall(
            r"literalinclude\} \.\./(examples/\w+\.py)", (ROOT / "docs" / "examples.md").read_text("utf-8")
        )
        assert sorted(shown) == sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py"))
