import os
import re

import pytest


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else path.stat().st_mode for path in folder.rglob("*")}


@pytest.fixture
def refused(treefold, tmp_path):
    """Return a function that runs the command, sees that it changes nothing, and returns its sentence."""
    (tmp_path / "older.safetensors").write_bytes(b"older")

    def run(*arguments, output="older.safetensors"):
        before = tree(tmp_path)
        outcome = treefold("average", *arguments, "-o", tmp_path / output)
        assert (outcome.code, outcome.out) == (2, "")
        assert tree(tmp_path) == before
        [sentence] = re.findall(r"^treefold: (.*)$", outcome.err, re.MULTILINE)
        return sentence.replace(f"{tmp_path}{os.sep}", "")

    return run
