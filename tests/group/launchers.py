"""The launchers of others, as tests start them. MPI: ``make test`` brings MPICH; any other on PATH serves as well."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # What Open MPI needs where tests run: as root, with more ranks than cores.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def skip_without(package):
    """Skip the test if a package is missing, or the launcher of its processes."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "mpi4py" and MPIEXEC is None:
        pytest.skip("no mpiexec is installed")


def launch(*command):
    """Run a launcher; return what is printed."""
    done = subprocess.run(
        command, env=os.environ | _ENVIRONMENT, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
