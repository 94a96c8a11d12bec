"""Lets the tests of this folder use what starts ranks as processes."""

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
sys.path += [str(_FOLDER), str(_FOLDER.parent / "group")]
