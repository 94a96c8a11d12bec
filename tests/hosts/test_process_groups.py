"""PyTorch's backend "treefold" on emulated hosts: a script of DDP, of which only the backend's name is changed."""

import subprocess
import sys
from pathlib import Path

from lab import launch, star

SCRIPT = str(Path(__file__).with_name("ddp_script.py"))
PATIENCE_S = 120


def trained(lab, backend, placement):
    command = [sys.executable, SCRIPT, backend]
    with launch.start(lab, command, placement, stdout=subprocess.PIPE) as job:
        texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
        assert job.wait(PATIENCE_S) == [0] * len(placement)
    return [text.split() for text in texts]


class TestDistributedDataParallel:
    def test_runs_on_several_hosts(self, build):
        """All ranks learn the same: what one host's learn, bit for bit, and nearly what gloo's do."""
        lab, placement = build(star(1000, 1000)), launch.round_robin(2, 2)
        ours, alone = (trained(lab, "treefold", hosts) for hosts in (placement, (0, 0, 0, 0)))
        assert ours == alone
        assert len({digest for _, digest, _ in ours}) == 1
        assert abs(float(trained(lab, "gloo", placement)[0][2]) - float(ours[0][2])) < 0.01


class TestTorchrun:
    def test_starts_it_on_several_hosts(self, build):
        lab = build(star(1000, 1000))
        with launch.torchrun(lab, [SCRIPT, "treefold"], 2, stdout=subprocess.PIPE) as job:
            texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
            assert job.wait(PATIENCE_S) == [0] * 2
        lines = [line for text in texts for line in text.splitlines()]
        assert len(lines) == 4
        assert len(set(lines)) == 1
