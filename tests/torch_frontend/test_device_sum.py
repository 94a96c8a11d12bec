"""Exact partial sums by PyTorch's operations, as they are made on a GPU, here on tensors of the host."""

import itertools

import numpy as np
import partial_cases
import pytest
import torch
from torch_ranks import micro_batches, run

from treefold.backends.numpy_partial import Factor
from treefold.torch.training.device_sum import DeviceSum

DTYPES = ("float16", "bfloat16", "float32")
CPU = torch.device("cpu")


def tensor(array, dtype):
    return torch.from_numpy(array.view(f"int{8 * array.itemsize}").copy()).view(getattr(torch, dtype))


class TestBits:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", range(5), ids=["ones", "counts", "floats", "63 bits", "most bits"])
    def test_are_those_of_the_exact_sum(self, dtype, kind):
        """Of numbers of every kind, with weights of every kind, several times in the same memory."""
        random = np.random.default_rng([kind, DTYPES.index(dtype)])
        total = DeviceSum(dtype, 300, CPU)
        for _ in range(12):
            arrays = [partial_cases.hostile(random, dtype, 300) for _ in range(random.integers(1, 9))]
            weights = [partial_cases.weight(random, kind) for _ in arrays]
            total.clear()
            for array, words in zip(arrays, weights, strict=True):
                total.add(tensor(array, dtype), Factor(words))
            found = total.on_host().finish(sum(weights))
            expected = partial_cases.expected(dtype, arrays, weights, sum(weights))
            assert found.view(f"uint{8 * found.itemsize}").tolist() == expected.tolist()

    @pytest.mark.parametrize("order", list(itertools.permutations([1e30, 1.0, 1e-30, -1e30, -1.0])))
    def test_of_what_two_floats_do_not_hold(self, order):
        total = DeviceSum("float32", 2, CPU)
        for number in order:
            total.add(torch.tensor([number, 1.0]), Factor(partial_cases.ONE))
        assert total.on_host().finish(partial_cases.ONE).tolist() == [np.float32(1e-30), 5.0]

    def test_of_ordinary_gradients_stay_on_the_device(self):
        random, total = np.random.default_rng(0), DeviceSum("float32", 10_000, CPU)
        for _ in range(200):
            total.add(torch.from_numpy(random.normal(size=10_000).astype(np.float32)), Factor(partial_cases.ONE * 577))
        assert total.nbytes == 16 * 10_112  # whole blocks of 128

    def test_of_narrower_contributions(self):
        """Gradients in bfloat16 of parameters in float32, some of them infinite."""
        total = DeviceSum("float32", 3, CPU)
        for _ in range(3):
            total.add(torch.tensor([1.5, torch.inf, -0.0], dtype=torch.bfloat16), Factor(partial_cases.ONE))
        assert str(total.on_host().finish(partial_cases.ONE).tolist()) == "[4.5, inf, -0.0]"


class TestMicroBatches:
    """With modules that FSDP2 cuts, whose contributions travel by the process group that there is."""

    @pytest.mark.parametrize(
        ("kind", "size", "is_autocast"), [("fsdp", 2, True), ("fsdp", 3, False), ("hsdp", 4, False), ("row", 2, False)]
    )
    def test_have_the_sha_of_one_process(self, kind, size, is_autocast):
        torch.set_num_threads(1)
        expected = micro_batches.trained(0, 1, "plain", "transformer", is_autocast=is_autocast)
        options = ("transformer",), {"is_autocast": is_autocast}
        assert run(micro_batches.as_on_a_gpu, size, kind, *options, backend="gloo") == [(expected, True)] * size
