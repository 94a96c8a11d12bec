import importlib.util
import os
import re
import subprocess
import sys

import pytest

from lab import launch, star

pytest.importorskip("sklearn", reason="the demo's data are scikit-learn's, of the extra `demo`")

PATIENCE_S = 240
RANKS, STEPS = 3, 12
OPTIONS = ["--steps", str(STEPS), "--seed", "5"]
DEMO = ["treefold.cli", "demo", *OPTIONS]


def printed(processes):
    """Return what all processes print; each must end well."""
    texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return "".join(texts)


@pytest.fixture(scope="module")
def bits_of_one_process():
    command = [sys.executable, "-m", *DEMO, "--devices", str(RANKS)]
    with subprocess.Popen(command, env=os.environ | {"COLUMNS": "200"}, stdout=subprocess.PIPE) as process:
        return re.search(r"SHA-256 of the weights is (\w{16})… on 3 of 3", printed([process]))[1]


class TestDemo:
    """``treefold demo --connect`` under a launcher over hosts trains the weights of ``treefold demo --devices``.

    Rank 0 says that all ranks' digests are equal, and all losses those of one process; a rank with others ends with 1.
    """

    @pytest.mark.long
    def test_under_torchrun(self, build, bits_of_one_process):
        lab = build(star(1000, 1000, 1000))
        with launch.torchrun(lab, ["-m", *DEMO, "--connect"], stdout=subprocess.PIPE) as job:
            assert_same_bits(printed(job.processes), bits_of_one_process, hosts=3)

    @pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpich, the extra `bench`")
    def test_under_mpiexec(self, build, bits_of_one_process):
        lab = build(star(1000, 1000, 1000))
        command = [sys.executable, "-m", *DEMO, "--connect"]
        with launch.mpiexec(lab, command, (0, 1, 2), stdout=subprocess.PIPE) as job:
            assert_same_bits(printed(job.processes), bits_of_one_process, hosts=3)

    def test_with_ranks_that_share_a_host(self, build, bits_of_one_process):
        lab = build(star(1000, 1000))
        command = [sys.executable, "-m", *DEMO, "--connect"]
        with launch.start(lab, command, (0, 1, 0), stdout=subprocess.PIPE) as job:
            assert_same_bits(printed(job.processes), bits_of_one_process, hosts=2)


def assert_same_bits(text, digest, hosts):
    """Rank 0 alone has printed, and what it checks holds."""
    # MPICH's UCX warns at the end, on stdout, of the words with which ranks have left, which nobody needs any more.
    lines = [line for line in text.splitlines() if " UCX  WARN " not in line]
    assert re.fullmatch(rf"{STEPS} steps on {hosts} hosts: loss \d\.\d{{4}} at first, \d\.\d{{4}} at last", lines[0])
    assert lines[1:3] == [
        f"ok      All {RANKS} processes end with the same bits: {digest}…",
        f"ok      These, and all losses, are those of {RANKS} devices of one process",
    ]
    assert re.fullmatch(r"ok      16 gradients have the sum that they have in one process: [0-9a-f]{16}…", lines[3])
