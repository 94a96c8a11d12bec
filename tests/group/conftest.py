"""Ranks as real processes, for all tests of this folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from rank_processes import RankProcesses

from treefold import _native


@pytest.fixture(scope="session", autouse=True)
def shared_memory():
    if not _native.HAS_SHARED_MEMORY:
        pytest.skip("this system has no shared memory of the kind that groups need")


@pytest.fixture(scope="session")
def ranks():
    processes = RankProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def refusing(tmp_path_factory):
    """Ranks with a system that can be made to refuse."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make a system that refuses")
    library = tmp_path_factory.mktemp("refusals") / "refusals.so"
    source = Path(__file__).with_name("refusals.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    processes = RankProcesses({"LD_PRELOAD": str(library), "TREEFOLD_TEST_REFUSALS": str(library)})
    yield processes
    processes.close()
