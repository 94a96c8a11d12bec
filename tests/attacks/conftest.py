"""Lets the tests of this folder share ``attack``, and the damaged machines of ``tests/topology``."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "topology")]
