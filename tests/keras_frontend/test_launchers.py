"""The example of ``treefold.keras`` under the launchers of others; ``tests/examples`` has treefold's own."""

import sys
from pathlib import Path

import pytest
from launchers import MPIEXEC, TORCHRUN, launch, skip_without

_EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_training.py"


@pytest.mark.long
class TestExample:
    def test_under_torchrun(self, monkeypatch):
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        printed = launch(*TORCHRUN, "2", _EXAMPLE)
        assert "2 ranks, torch: loss" in printed
        assert "all ranks hold the same bits: True" in printed

    def test_under_mpiexec(self, monkeypatch):
        skip_without("mpi4py")
        monkeypatch.setenv("KERAS_BACKEND", "jax")
        printed = launch(MPIEXEC, "-n", "2", sys.executable, _EXAMPLE)
        assert "2 ranks, jax: loss" in printed
        assert "all ranks hold the same bits: True" in printed
