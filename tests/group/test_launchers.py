"""Groups under the launchers of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import MPIEXEC, TORCHRUN, launch, skip_without

_EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks.py"
_SCRIPT = """
import pathlib, sys
import numpy as np
import treefold
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
group = treefold.connect(MPI.COMM_WORLD.Split(rank % 2))
pathlib.Path(sys.argv[1], str(rank)).write_text(str(group.all_reduce(np.float32(2**rank))))
group.close()
"""
_WAITING = """
import os, signal, threading, time
import torch.distributed
import treefold

threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
for seconds in 30, 1:
    began = time.monotonic()
    try:
        treefold.connect(connect_timeout_seconds=seconds)
    except BaseException as error:
        print(type(error).__name__, time.monotonic() - began < 5, flush=True)
os._exit(0)
"""


class TestMpi:
    @pytest.fixture(autouse=True)
    def needs_mpi(self):
        skip_without("mpi4py")

    def test_the_ranks_of_a_communicator_reduce_together(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(_SCRIPT)
        launch(MPIEXEC, "-n", "4", sys.executable, script, tmp_path)
        assert [(tmp_path / str(rank)).read_text() for rank in range(4)] == ["5.0", "10.0", "5.0", "10.0"]

    def test_the_example_runs_as_it_stands(self):
        assert "all ranks hold the same bits: True" in launch(MPIEXEC, "-n", "3", sys.executable, _EXAMPLE)


class TestTorchrun:
    @pytest.fixture(autouse=True)
    def needs_torch(self):
        skip_without("torch")

    def test_the_example_runs_as_it_stands(self):
        assert "all ranks hold the same bits: True" in launch(*TORCHRUN, "3", _EXAMPLE)

    def test_a_store_that_nobody_holds(self):
        variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _WAITING],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        assert done.stdout.decode().splitlines() == ["KeyboardInterrupt True", "ConnectError True"]
