import ast
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import channel_conformance
import pytest

_PATIENCE_S = 120
_MPIEXEC = Path(sys.executable).with_name("mpiexec")

if importlib.util.find_spec("mpi4py") is None:
    pytest.skip("needs mpi4py, of the extra `bench`", allow_module_level=True)
if not (_MPIEXEC.exists() or shutil.which("mpiexec")):
    pytest.skip("needs mpiexec, of MPICH", allow_module_level=True)


def run(function, size):
    """Run a function of the suite on so many processes."""
    plain, options = function, {}
    if isinstance(function, functools.partial):
        plain, options = function.func, function.keywords
    return run_named(plain.__name__, options, size)


def run_named(name, options, size):
    """Run a function of the suite, or one of the ranks' own, on so many processes."""
    script = Path(__file__).with_name("mpi_ranks.py")
    launcher = str(_MPIEXEC) if _MPIEXEC.exists() else "mpiexec"
    command = [launcher, "-n", str(size), sys.executable, str(script), name, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)  # noqa: S603 - our own
    lines = [line for line in done.stdout.splitlines() if line.startswith("returned ")]
    assert len(lines) == 1, done.stderr
    return [ast.literal_eval(one) for one in json.loads(lines[0].removeprefix("returned "))]


class TestMpiChannel:
    @pytest.mark.parametrize("check", channel_conformance.CHECKS, ids=lambda check: check.__name__)
    def test_is_a_channel(self, check):
        """The suite of all channels, but for deaths, which end the whole job."""
        check(run)


class TestDuplicate:
    def test_frees_the_communicators_of_groups_that_all_ranks_have_closed(self):
        """Those that some rank still uses are kept until a later time: MPI has some 2,000 and no more."""
        kept = run_named("connect_often", {}, 3)
        assert kept == [[1, 2, 2, 2, 2], [1, 2, 2, 2, 2], [0, 1, 1, 1, 1]]
