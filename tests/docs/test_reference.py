"""The reference has every public name with its arguments, docstrings of modules run, and the site has every page."""

import doctest
import enum
import importlib
import inspect
import re

import pytest
from papers import ROOT

from treefold.cli.app import make_app

PAGES = ROOT / "docs" / "reference"
MODULES = [f"treefold{room}" for room in ("", ".averaging", ".exact", ".torch", ".tensorflow", ".keras", ".testing")]
#: What users open by ``help``, beside these.
OPENED = [*MODULES, "treefold.errors", "treefold.group", "treefold.plan", "treefold.topology"]


def described(module):
    """Yield the path, the number of parameters, the result's type and the docstring of each name on a module's page.

    A class stands for its constructor, which its own docstring describes; its own methods follow.
    """
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isclass(value) and not issubclass(value, enum.Enum | Exception):
            made = inspect.getdoc(value.__init__) or ""
            yield f"{module}.{name}", len(inspect.signature(value).parameters), "None", f"{inspect.getdoc(value)}{made}"
            for own in vars(value):
                method = getattr(value, own)
                if (inspect.isfunction(method) or inspect.ismethod(method)) and not own.startswith("_"):
                    is_bound = inspect.ismethod(method) or isinstance(vars(value)[own], staticmethod)
                    count = len(inspect.signature(method).parameters) - (not is_bound)
                    result = inspect.signature(method).return_annotation
                    yield f"{module}.{name}.{own}", count, result, inspect.getdoc(method) or ""
        elif inspect.isroutine(value):
            signature = inspect.signature(value)
            yield f"{module}.{name}", len(signature.parameters), signature.return_annotation, inspect.getdoc(value)


class TestReference:
    @pytest.mark.parametrize("module", MODULES)
    def test_has_every_public_name(self, module):
        page = (PAGES / f"{module.rpartition('.')[2]}.md").read_text(encoding="utf-8")
        named = re.findall(rf"^\.\. auto(?:class|function|data):: {re.escape(module)}\.(\w+)$", page, re.MULTILINE)
        public = importlib.import_module(module)
        assert sorted(named) == sorted(one for one in public.__all__ if not inspect.ismodule(getattr(public, one)))

    @pytest.mark.parametrize("module", MODULES)
    def test_describes_the_arguments_and_the_result_of_names_with_several(self, module):
        lacking = []
        for path, count, result, docs in described(module):
            wanted = (
                "Args:|Attributes:",
                *(["Returns:"] if result not in {"None", "NoReturn", "Iterator[None]"} else []),
            )
            if count > 1 and ":meta private:" not in docs:
                lacking += [(path, one) for one in wanted if not re.search(rf"^({one})$", docs, re.MULTILINE)]
        assert lacking == []

    def test_has_every_command(self):
        commands = {one.name or one.callback.__name__ for one in make_app().registered_commands}
        assert (
            set(re.findall(r"^\| `treefold (\w+)` ", (PAGES / "command.md").read_text("utf-8"), re.MULTILINE))
            == commands
        )


@pytest.mark.parametrize("module", OPENED)
class TestHelp:
    def test_begins_with_a_sentence_and_code_that_runs(self, module):
        opened = importlib.import_module(module)
        sentence, code = inspect.getdoc(opened).split("\n\n")[:2]
        assert sentence.endswith(".")
        assert code.startswith(">>> ")
        (block,) = doctest.DocTestFinder(recurse=False).find(opened, module, globs={})
        assert doctest.DocTestRunner().run(block).failed == 0


class TestExamples:
    def test_all_are_on_their_page(self):
        shown = re.findall(
            r"literalinclude\} \.\./(examples/\w+\.py)", (ROOT / "docs" / "examples.md").read_text("utf-8")
        )
        assert sorted(shown) == sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py"))
