"""Every contribution arrives once, and in order: permutations are composed, which no other order gives."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from treefold import PerReplica, ReductionToOneDevice
from treefold.backends import additional_backend
from treefold.testing import FakeBackend

LENGTH = 11


def drawn(count):
    """Return permutations, one per replica, and their composition from the first to the last."""
    rng = np.random.default_rng(count)
    permutations = [rng.permutation(LENGTH).astype(np.int32) for _ in range(count)]
    return permutations, functools.reduce(lambda first, then: then[first], permutations)


def composed(arrays):
    return functools.reduce(lambda first, then: then[first], arrays)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
class TestOrder:
    @pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, jnp.asarray], ids=["numpy", "torch", "jax"])
    def test_on_host_memory(self, count, make):
        arrays, right = drawn(count)
        ops = ReductionToOneDevice(accumulation_fn=composed)
        value = PerReplica([make(array) for array in arrays])
        for found in ops.reduce("sum", value, value):
            assert np.asarray(found).tolist() == right.tolist()

    @pytest.mark.parametrize("root", [0, 1, 4])
    def test_on_devices(self, count, root):
        arrays, right = drawn(count)
        with additional_backend(FakeBackend(13)) as fake:

            def on_fakes(parts):
                return fake.array(composed([part.data for part in parts]), f"gpu:{root}")

            value = PerReplica([fake.array(array, f"gpu:{index}") for index, array in enumerate(arrays)])
            ops = ReductionToOneDevice(f"gpu:{root}", accumulation_fn=on_fakes)
            assert [found.data.tolist() for found in ops.reduce("sum", value, value)] == [right.tolist()] * count
