"""Random generators that begin anew in every micro-batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, step: int, index: int) -> Iterator[None]:
    """Seed the generators of Python, NumPy and PyTorch by these three numbers, and restore them afterwards.

    The states of PyTorch's generators on GPUs are saved only if the process uses GPUs.
    """
    digest = hashlib.sha256(f"{seed} {step} {index}".encode()).digest()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - modules use this generator, too
    with torch.random.fork_rng(devices):
        try:
            random.seed(digest)
            np.random.seed(np.frombuffer(digest, np.uint32))  # noqa: NPY002
            torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
