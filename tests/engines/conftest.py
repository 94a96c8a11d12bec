"""Lets the tests of this folder use what starts ranks as processes."""

import sys
from pathlib import Path

sys.path.extend([str(Path(__file__).parent), str(Path(__file__).parents[1] / "group")])

from gloo_processes import gloo, stores  # noqa: F401 - fixtures
