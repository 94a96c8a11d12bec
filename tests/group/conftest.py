"""Ranks as real processes, for all tests of this folder."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from rank_processes import RankProcesses


@pytest.fixture(scope="session")
def ranks():
    """What starts ranks and tells how they ended."""
    processes = RankProcesses()
    yield processes
    processes.close()
