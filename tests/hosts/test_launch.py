import importlib.util
import signal
import subprocess
import sys

import pytest

from lab import LabError, launch, star

PATIENCE_S = 120
#: What every rank does: an all-reduce of 2**rank over gloo, as a script of a user does.
REDUCE = """
import os, socket, torch
from torch import distributed
distributed.init_process_group("gloo")
value = torch.tensor([2 ** distributed.get_rank()])
distributed.all_reduce(value)
print(socket.gethostname(), os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"], value.item(), flush=True)
distributed.destroy_process_group()
"""


@pytest.fixture
def pair(build):
    """A lab of two hosts."""
    return build(star(1000, 1000))


def printed(job):
    """Return the lines of all processes of a job that has succeeded, sorted."""
    texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
    assert job.wait(PATIENCE_S) == [0] * len(job.processes)
    return sorted(line for text in texts for line in text.splitlines())


class TestPlacement:
    def test_blocks(self):
        """Neighbours share a host."""
        assert launch.blocks(3, 2) == (0, 0, 1, 1, 2, 2)

    def test_round_robin(self):
        """Neighbours do not."""
        assert launch.round_robin(3, 2) == (0, 1, 2, 0, 1, 2)


class TestStart:
    def test_variables(self, pair):
        """Each rank finds what torchrun would tell it."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
        command = ["sh", "-c", "echo " + " ".join(f"${name}" for name in names)]
        with launch.start(pair, command, launch.round_robin(2, 2), stdout=subprocess.PIPE) as job:
            assert printed(job) == [
                "0 4 0 2 0 10.77.0.1",
                "1 4 0 2 1 10.77.0.1",
                "2 4 1 2 0 10.77.0.1",
                "3 4 1 2 1 10.77.0.1",
            ]

    def test_own_variables_win(self, pair):
        """What the caller says is added, in place of what the lab would say."""
        told = {"GLOO_SOCKET_IFNAME": "lo", "COLOUR": "red"}
        command = ["sh", "-c", "echo $GLOO_SOCKET_IFNAME $COLOUR"]
        with launch.start(pair, command, (0,), environment=told, stdout=subprocess.PIPE) as job:
            assert printed(job) == ["lo red"]

    def test_a_killed_rank(self, pair):
        """Only that one, and all that it has started."""
        with launch.start(pair, ["sh", "-c", "echo up; read line"], (0, 1), **_pipes()) as job:
            _wait_for_both(job)
            job.kill(1)
            assert job.processes[1].wait(PATIENCE_S) == -signal.SIGKILL
            job.processes[0].stdin.close()
            assert job.wait(PATIENCE_S) == [1, -signal.SIGKILL]  # `read` fails at the end of its input

    def test_a_stopped_rank_goes_on(self, pair):
        """It answers after it was resumed, and not before."""
        with launch.start(pair, ["cat"], (0,), **_pipes()) as job:
            [cat] = job.processes
            cat.stdin.write(b"first\n")
            cat.stdin.flush()
            assert cat.stdout.readline() == b"first\n"
            job.stop(0)
            job.resume(0)
            assert cat.communicate(b"second\n", timeout=PATIENCE_S)[0] == b"second\n"

    def test_a_stopped_rank_keeps_no_host(self, pair):
        """The lab is removed although one of its processes cannot react."""
        job = launch.start(pair, ["cat"], (0,), **_pipes())
        job.processes[0].stdin.write(b"up\n")
        job.processes[0].stdin.flush()
        assert job.processes[0].stdout.readline() == b"up\n"
        job.stop(0)
        pair.close()
        assert job.processes[0].poll() == -signal.SIGKILL

    def test_a_job_ends_with_its_block(self, pair):
        """Whatever still runs is killed."""
        with launch.start(pair, ["sh", "-c", "echo up; sleep 1000"], (0, 1), **_pipes()) as job:
            _wait_for_both(job)
        assert [process.poll() for process in job.processes] == [-signal.SIGKILL] * 2

    def test_gloo_with_the_store_outside(self, pair):
        """PyTorch's ranks find each other at a store that none of them holds."""
        command = [sys.executable, "-c", REDUCE]
        with (
            launch.outside_store(pair),
            launch.start(pair, command, (0, 1), store_outside=True, stdout=subprocess.PIPE) as job,
        ):
            assert printed(job) == ["host0 0 10.77.0.254 3", "host1 0 10.77.0.254 3"]


class TestTorchrun:
    def test_reduces(self, pair, tmp_path):
        """PyTorch's own launcher, one on each host."""
        script = tmp_path / "reduce.py"
        script.write_text(REDUCE)
        with launch.torchrun(pair, [str(script)], stdout=subprocess.PIPE) as job:
            assert printed(job) == ["host0 0 10.77.0.1 3", "host1 0 10.77.0.1 3"]


class TestMpiexec:
    def test_leads_into_the_hosts(self, pair, tmp_path):
        """What it calls in place of ssh drops ssh's options and runs the command on the host of that address."""
        launcher = tmp_path / "mpiexec"
        launcher.write_text(
            '#!/bin/sh\nwhile [ "$1" != -launcher-exec ]; do shift; done\n'
            'for host in 1 2; do "$2" -x 10.77.0.$host "hostname;" echo "$3"; done\n'
        )
        launcher.chmod(0o700)
        command = ["a-command"]
        with launch.mpiexec(pair, command, (0, 1), launcher=str(launcher), stdout=subprocess.PIPE) as job:
            assert printed(job) == ["a-command", "a-command", "host0", "host1"]

    def test_refuses_other_placements(self, pair):
        """It can do blocks and round robin."""
        sentence = r"^mpiexec places ranks in blocks or round robin on all hosts, not on \[1, 0\]\.$"
        with pytest.raises(LabError, match=sentence), launch.mpiexec(pair, ["true"], (1, 0)):
            pass

    @pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpich, the extra `bench`")
    @pytest.mark.parametrize("order", [launch.blocks, launch.round_robin])
    def test_ranks_are_where_they_belong(self, pair, order):
        """MPICH's own launcher places ranks as asked."""
        body = (
            "from mpi4py import MPI; import socket; world = MPI.COMM_WORLD\n"
            "line = f'{world.rank} {socket.gethostname()} {world.allreduce(2 ** world.rank)}'\n"
            "print(line + '\\n', end='', flush=True)"  # in one piece, as ranks print at once
        )
        placement = order(2, 2)
        with launch.mpiexec(pair, [sys.executable, "-c", body], placement, stdout=subprocess.PIPE) as job:
            assert printed(job) == [f"{rank} host{host} 15" for rank, host in enumerate(placement)]


def _pipes():
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def _wait_for_both(job):
    for process in job.processes:
        assert process.stdout.readline() == b"up\n"
