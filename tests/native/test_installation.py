import subprocess
import sys

import pytest
from native_cases import ACCUMULATIONS, DTYPES, OPS

from treefold import ReduceOp, _native
from treefold.dtypes import REDUCIBLE

#: What a compiled module that belongs to other sources has instead, as a statement about a copy of this one.
OTHERS = {
    "without names": ("del module.DTYPES", "it lacks DTYPES"),
    "of another dtype": ("module.DTYPES = ('float8', *module.DTYPES[1:])", "its DTYPES are float8, bfloat16, float32"),
    "of fewer dtypes": ("module.DTYPES = module.DTYPES[1:]", "its DTYPES are bfloat16, float32, float64"),
    "of other ops": ("module.OPS = (*module.OPS, 'MEDIAN')", "its OPS are SUM, MEAN, MIN, MAX, PRODUCT, MEDIAN"),
    "of other ways to accumulate": ("module.ACCUMULATIONS = ('wide',)", "its ACCUMULATIONS are wide"),
    "without a function": ("del module.run_pipeline", "it lacks run_pipeline"),
}

IMPORT = """
import importlib.util, sys, types
built = importlib.util.spec_from_file_location("treefold._native", {path!r})
module = types.ModuleType("treefold._native")
original = importlib.util.module_from_spec(built)
built.loader.exec_module(original)
module.__dict__.update(vars(original))
{statement}
sys.modules["treefold._native"] = module
try:
    import treefold
except ImportError as error:
    print(type(error).__name__, error)
else:
    import numpy as np
    print(treefold.all_reduce([np.array([1.5], "float16"), np.array([2.5], "float16")])[0])
"""


def words_of(statement):
    program = IMPORT.format(path=_native.__file__, statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    return done.stdout.strip()


class TestInstallation:
    @pytest.mark.parametrize(("statement", "what"), OTHERS.values(), ids=OTHERS)
    def test_with_a_module_of_other_sources_is_refused(self, statement, what):
        """It could take one dtype for another without a word: the import says what is wrong and what to do."""
        words = words_of(statement)
        assert words.startswith(
            f"InstallationError treefold._native was built from other sources than treefold: {what}"
        )
        assert words.endswith(
            ". Build it again: pip install --force-reinstall treefold, or pip install -e . in a checkout."
        )

    def test_with_its_own_module_reduces(self):
        assert words_of("") == "[4.]"


class TestNames:
    def test_are_those_of_the_library(self):
        assert sorted(DTYPES) == sorted([*REDUCIBLE, "bool"])
        assert sorted(OPS) == sorted(op.name for op in ReduceOp)
        assert sorted(ACCUMULATIONS) == ["exact", "native"]
