"""GPU kernels run in Triton's interpreter here, on host memory, unless there is a GPU (see the root conftest)."""

import importlib.util
import os

import pytest
import torch

from treefold.execution.cuda import one_device


@pytest.fixture(autouse=True)
def _large_parts(monkeypatch):
    """Let the interpreter, whose time goes by operations, fold many elements in each."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(one_device, "_PART", one_device._BLOCK)


@pytest.fixture(autouse=True)
def _needs_triton():
    """Skip where Triton has no package, or nothing to run kernels on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton has no package for this platform")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is a GPU, and this build of PyTorch does not see it")
