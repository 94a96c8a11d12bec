import pathlib
import re
import tomllib

import pytest

import treefold

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


class TestWorkflows:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_run_make_and_nothing_else(self, path):
        commands = re.findall(r"^\s*(?:- )?run:(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert [command for command in commands if not re.fullmatch(r" make [a-z-]+( [A-Z]+=\S+)*", command)] == []

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_pin_every_action(self, path):
        actions = re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))
        assert actions
        assert [action for action in actions if not re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", action)] == []


class TestArchitecture:
    def test_names_files_that_are_there(self):
        package = ROOT / "src" / "treefold"
        rooms = "|".join(room.name for room in package.iterdir() if room.is_dir())
        text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        named = re.findall(rf"(?<![\w/])((?:{rooms})/[a-z0-9_]+(?:/[a-z0-9_]+)?)", text)
        assert len(named) > 10
        assert [name for name in named if not (package / name).exists() and not (package / f"{name}.py").exists()] == []


class TestCitation:
    def test_names_the_version_and_licence_of_the_package(self):
        citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
        assert f"version: {PROJECT['version']}" in citation
        assert f"license: {PROJECT['license']}" in citation
        assert PROJECT["version"] == treefold.__version__


class TestPackage:
    """The entries of pyproject.toml."""

    def test_promises_only_what_ran(self):
        promised = {name for name in PROJECT["classifiers"] if re.match(r"Operating System|.* :: Python :: 3\.", name)}
        assert promised == {
            "Operating System :: POSIX :: Linux",
            *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        }

    def test_builds_its_site_without_frameworks(self):
        extras = PROJECT["optional-dependencies"]
        found, todo = set(), list(extras["docs"])
        while todo:
            name = re.split(r"[ >=<;]", todo.pop())[0]
            inner = re.fullmatch(r"treefold\[(.*)\]", name)
            todo += [one for extra in inner[1].split(",") for one in extras[extra]] if inner else []
            found.add(name)
        assert {"sphinx", "scipy"} <= found
        assert found.isdisjoint({"torch", "tensorflow", "tensorflow-cpu", "jax", "triton", "mpich"})

    def test_brings_what_its_example_needs(self):
        assert any(name.startswith("optax") for name in PROJECT["optional-dependencies"]["jax"])
