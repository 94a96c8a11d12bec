"""Kernels for GPUs run in Triton's interpreter here, on host memory, unless a GPU is at hand."""

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before kernels are compiled: read when they are defined


@pytest.fixture(autouse=True)
def _needs_triton():
    """Skip where Triton has no package."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton has no package for this platform")
