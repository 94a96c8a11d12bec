"""Lets the tests of this folder share ``pasted_machines`` and ``shown``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
