import os
import re
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file
from saved_files import LITTLE, save, write_index


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else path.stat().st_mode for path in folder.rglob("*")}


@pytest.fixture
def refused(treefold, tmp_path):
    """Return a function that runs the command, sees that it changes nothing and takes little memory.

    It returns the command's sentence.
    """
    (tmp_path / "older.safetensors").write_bytes(b"older")
    treefold("average")  # what is imported once is not what is measured

    def run(*arguments, output="older.safetensors"):
        before = tree(tmp_path)
        tracemalloc.start()
        try:
            outcome = treefold("average", *arguments, "-o", tmp_path / output)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (outcome.code, outcome.out) == (2, "")
        assert peak < LITTLE
        assert tree(tmp_path) == before
        [sentence] = re.findall(r"^treefold: (.*)$", outcome.err, re.MULTILINE)
        return sentence.replace(f"{tmp_path}{os.sep}", "")

    return run


@pytest.fixture
def pair(tmp_path):
    """Return the paths of two files that can be averaged."""
    paths = [tmp_path / f"{replica}.safetensors" for replica in range(2)]
    for replica, path in enumerate(paths):
        save_file({"w": np.full(3, 2.0**replica)}, path)
    return paths


@pytest.fixture
def shards(tmp_path):
    """Return a folder of two shards with their index."""
    folder = tmp_path / "model"
    folder.mkdir()
    for number, name in enumerate(("u", "v")):
        save(folder / f"model-{number}.safetensors", 2**number, name)
    write_index(folder, {"u": "model-0.safetensors", "v": "model-1.safetensors"})
    return folder
