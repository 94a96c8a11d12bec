import subprocess
import sys
from pathlib import Path

import pytest

from lab import launch, star

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 240
#: Runs an example whose rank 1 is gone, as if by a crash, when it makes its tenth all-reduce.
CRASH = """
import os, runpy, sys, treefold
calls, all_reduce = [], treefold.Group.all_reduce
def crash(*arguments, **options):
    calls.append(arguments)
    if os.environ["RANK"] == "1" and len(calls) == 10:
        os._exit(1)
    return all_reduce(*arguments, **options)
treefold.Group.all_reduce = crash
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class TestExamples:
    """The examples for several hosts run there, by the lines that they tell."""

    def test_numpy_goes_on_without_a_lost_rank(self, build):
        lab = build(star(1000, 1000, 1000))
        command = [sys.executable, "-c", CRASH, str(EXAMPLES / "hosts_numpy.py")]
        with (
            launch.outside_store(lab),
            launch.start(lab, command, (0, 1, 2), store_outside=True, stdout=subprocess.PIPE) as job,
        ):
            printed, _ = job.processes[0].communicate(timeout=PATIENCE_S)
            assert job.wait(PATIENCE_S) == [0, 1, 0]
        assert printed.decode().splitlines() == [
            "step 9: lost (1,), 2 ranks go on",
            "40 means over 2 ranks: 280.00 K, humidity 0.500",
            "all ranks hold the same bits: True",
        ]

    @pytest.mark.long
    def test_torch_under_torchrun(self, build):
        lab = build(star(1000, 1000, 1000))
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "3", "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "host0:29500", str(EXAMPLES / "hosts_torch.py")]
        told = launch.engine_variables(lab)
        with launch.Job([host.popen(command, told, stdout=subprocess.PIPE) for host in lab.hosts]) as job:
            printed = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
            assert job.wait(PATIENCE_S) == [0, 0, 0]
        assert "all ranks hold the same bits: True\n" in "".join(printed)
