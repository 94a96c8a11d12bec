import importlib.util
import signal
import subprocess
import sys

import pytest

from lab import launch, star

PATIENCE_S = 120


@pytest.fixture
def pair(build):
    return build(star(1000, 1000))


def printed(job):
    texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
    assert job.wait(PATIENCE_S) == [0] * len(job.processes)
    return sorted(line for text in texts for line in text.splitlines())


class TestStart:
    def test_variables(self, pair):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
        command = ["sh", "-c", "echo " + " ".join(f"${name}" for name in names)]
        with launch.start(pair, command, launch.round_robin(2, 2), stdout=subprocess.PIPE) as job:
            assert printed(job) == [
                "0 4 0 2 0 10.77.0.1",
                "1 4 0 2 1 10.77.0.1",
                "2 4 1 2 0 10.77.0.1",
                "3 4 1 2 1 10.77.0.1",
            ]

    def test_a_job_ends_with_its_block(self, pair):
        with launch.start(pair, ["sh", "-c", "echo up; sleep 1000"], (0, 1), stdout=subprocess.PIPE) as job:
            assert [process.stdout.readline() for process in job.processes] == [b"up\n"] * 2
        assert [process.poll() for process in job.processes] == [-signal.SIGKILL] * 2


class TestMpiexec:
    @pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpich, the extra `bench`")
    @pytest.mark.parametrize("order", [launch.blocks, launch.round_robin])
    def test_ranks_are_where_they_belong(self, pair, order):
        body = (
            "from mpi4py import MPI; import socket; world = MPI.COMM_WORLD\n"
            "line = f'{world.rank} {socket.gethostname()} {world.allreduce(2 ** world.rank)}'\n"
            "print(line + '\\n', end='', flush=True)"  # in one piece, as ranks print at once
        )
        placement = order(2, 2)
        with launch.mpiexec(pair, [sys.executable, "-c", body], placement, stdout=subprocess.PIPE) as job:
            assert printed(job) == [f"{rank} host{host} 15" for rank, host in enumerate(placement)]
