"""PyTorch's backend "treefold" and the functions of ``treefold.torch`` under ``torch.compile``."""

import subprocess
import sys

import pytest
from torch_ranks import compiled, run, training


class TestDistributedDataParallel:
    @pytest.mark.parametrize("hook", ["", "mean_hook", "shared_mean_hook"])
    def test_learns_what_it_learns_uncompiled(self, hook):
        """From the second step on, DDP calls the process group within the compiled function."""
        assert run(compiled.train, 2, hook) == run(training.train, 2, compiled.ONE_BUCKET, hook)


class TestCollectives:
    def test_give_what_they_give_uncompiled(self):
        for answers in run(compiled.both, 2):
            for name, (plain, first, again) in answers.items():
                assert (name, first, again) == (name, plain, plain)


class TestFunctionsOfOneProcess:
    def test_may_be_called_first_by_a_compiled_function(self):
        torchs, ours = [[3, 3], [3, 3], [1, 1], [3, 3]], [[3, 3], [3, 3], [1, 1], [1, 1], [1, 2], [2, 2]]
        assert run(compiled.in_one_process, 1) == [torchs + ours]


class TestImport:
    def test_does_not_load_the_compiler(self):
        program = "import sys, treefold.torch; sys.exit('torch._dynamo' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603 - our own
