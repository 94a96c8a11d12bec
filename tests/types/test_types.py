"""Type checkers read what users write, and find its mistakes and nothing else."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
FILES = sorted(HERE.glob("user_*.py"))
#: The lines that are marked as mistakes.
MISTAKES = {
    (path.name, number)
    for path in FILES
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    if "  # error" in line
}


def needs(checker):
    found = importlib.util.find_spec(checker)
    return pytest.mark.skipif(found is None, reason=f"{checker} is not installed: it comes with treefold[test]")


def output_of(arguments, **environment):
    """Return what a type checker prints; it ends with 1, as there are mistakes."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)  # noqa: S603
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


class TestUserCode:
    @needs("mypy")
    def test_is_read_by_mypy(self, tmp_path):
        options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
        said = output_of(["mypy", *options, *FILES], MYPYPATH=str(SOURCES))
        found = re.findall(r"(\w+\.py):(\d+): error: ", said)
        assert {(name, int(number)) for name, number in found} == MISTAKES, said

    @needs("pyright")
    def test_is_read_by_pyright(self, tmp_path):
        for path in FILES:  # a project takes no files from outside
            shutil.copy(path, tmp_path)
        config = {"extraPaths": [str(SOURCES)], "typeCheckingMode": "strict"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
        arguments = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", tmp_path]
        said = output_of(arguments, PYRIGHT_PYTHON_IGNORE_WARNINGS="1")  # does not look for newer versions of itself
        found = [one for one in json.loads(said)["generalDiagnostics"] if one["severity"] == "error"]
        lines = {(pathlib.Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}
        assert lines == MISTAKES, said

    @pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
    def test_runs_where_it_is_right(self, path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        right = [function for name, function in vars(module).items() if name.startswith("right_")]
        assert right
        for function in right:
            function()
