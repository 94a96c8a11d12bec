"""PyTorch's backend "treefold" on emulated hosts: a script of DDP, of which only the backend's name is changed."""

import subprocess
import sys
from pathlib import Path

from lab import launch, star

SCRIPT = str(Path(__file__).with_name("ddp_script.py"))
ONE_SHA = str(Path(__file__).with_name("one_sha_script.py"))
PATIENCE_S = 120


def printed(job):
    """Return the lines of all processes, as words; all end well."""
    texts = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
    assert set(job.wait(PATIENCE_S)) == {0}
    return [line.split() for text in texts for line in text.splitlines()]


class TestDistributedDataParallel:
    def test_learns_on_several_hosts_what_it_learns_on_one(self, build):
        lab = build(star(1000, 1000))
        with launch.torchrun(lab, [SCRIPT, "treefold", "gloo"], 2, stdout=subprocess.PIPE) as job:
            apart = printed(job)
        with launch.start(lab, [sys.executable, SCRIPT, "treefold"], (0,) * 4, stdout=subprocess.PIPE) as job:
            (backend, digest, total), *others = printed(job)
        assert [len(apart), others] == [8, [[backend, digest, total]] * 3]
        assert [one for one in apart if one[0] == "treefold"] == [[backend, digest, total]] * 4
        assert all(abs(float(one[2]) - float(total)) < 0.01 for one in apart)


class TestMicroBatches:
    def test_have_on_several_hosts_the_sha_of_one_process(self, build):
        alone = subprocess.run([sys.executable, ONE_SHA], capture_output=True, check=True, timeout=PATIENCE_S)
        [sha] = alone.stdout.decode().split()
        lab = build(star(1000, 1000))
        with launch.torchrun(lab, [ONE_SHA], 2, stdout=subprocess.PIPE) as job:
            assert printed(job) == [[sha] * 3] * 4
