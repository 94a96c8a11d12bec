"""Lets the tests of this folder share ``native_cases``, and puts back the settings of the core that they change."""

import os
import sys
from pathlib import Path

import pytest

from treefold import _native
from treefold.execution import native

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_settings_afterwards():
    """Leave the number of threads, and what proves sums exact, as they were."""
    before = native.num_threads()
    yield
    native.set_num_threads(before)
    _native.set_certificate(_native.CERTIFICATES.index(os.environ.get("TREEFOLD_CERTIFICATE", "flag")))
