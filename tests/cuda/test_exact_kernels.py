"""Sums and means on a GPU: the exact value, rounded once, against whole numbers and against the host's own fold.

The kernels run in Triton's interpreter where there is no GPU. The full counts are those of `make test-long`.
"""

import itertools
import os

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from exact_oracle import KINDS, WIDTHS, bits_of, near_one

from gpu_bench.tasks import ADVERSARIAL
from gpu_bench.tensors import AdversarialTensors
from treefold import ReduceOp
from treefold.backends.torch import TorchBackend
from treefold.bench.work import Work
from treefold.dtypes import numpy_dtype
from treefold.execution.cuda import exact_kernels, one_device
from treefold.execution.cuda.one_device import DeviceJob, fold_batch
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
IS_INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
BACKEND = TorchBackend()
#: Elements of each kind: 8 kinds and 8 numbers of contributions make a million.
LENGTH = 16_000 if IS_FULL else 40
COUNTS = (2, 3, 4, 5, 7, 8, 33, 64) if IS_FULL else (3, 8)
SUM, MEAN = ReduceOp.SUM, ReduceOp.MEAN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes overflows with NumPy


@pytest.fixture(autouse=True)
def declined(monkeypatch):
    """Return what fills with the number of declined blocks of each launch; large blocks, which NumPy likes, if many."""
    found, launch = [], one_device._launch

    def looked_at(batch, declined, fold):
        launches = launch(batch, declined, fold)
        found.append((int(declined.sum()), len(declined)))
        return launches

    monkeypatch.setattr(one_device, "_launch", looked_at)
    if IS_INTERPRETED and IS_FULL:
        monkeypatch.setattr(one_device, "_BLOCK", 4096)
        monkeypatch.setattr(one_device, "_PART", 4096)
    one_device._blocks.cache_clear()
    yield found
    one_device._blocks.cache_clear()


@pytest.fixture
def nothing_is_proved(monkeypatch):
    """Let whole numbers fold everything."""
    if not IS_INTERPRETED:
        pytest.skip("the compiled kernel keeps what it was compiled with")
    monkeypatch.setattr(exact_kernels, "MOST_PROVED", tl.constexpr(0))


def drawn(kinds, dtype, count, length, seed=0):
    """Return the bits of contributions, a row for each."""
    form, rng = WIDTHS[dtype], np.random.default_rng((seed, count, form_number(dtype)))
    return np.concatenate([kind(rng, form, (count, length)) for kind in kinds], axis=1).astype(f"u{form[0] // 8}")


def form_number(dtype):
    return list(WIDTHS).index(dtype)


def folded(bits, dtype, fold, *, is_in_place=False):
    """Return the bits that the kernels make of contributions, and those that the host makes."""
    parts = [row.view(numpy_dtype(dtype)) for row in bits]
    tensors = [BACKEND.from_host(part.copy(), "cpu:0").to(DEVICE) for part in parts]
    targets = tensors if is_in_place else [torch.empty_like(tensors[0])]
    fold_batch([DeviceJob(dtype, tensors, targets)], fold)
    made = np.empty_like(parts[0])
    fold_into(parts, [made], fold, dtype)
    found = [BACKEND.host_view(target.cpu()).view(bits.dtype) for target in targets]
    assert all(np.array_equal(found[0], other) for other in found)
    return found[0], made.view(bits.dtype)


def wrong(bits, dtype, fold, found, step=1):
    """Return how many of every ``step``-th element are not the exact value, rounded once."""
    weights = fold.weights or (1,) * len(bits)
    divisor = 1 if fold.op is SUM else sum(weights)
    columns = bits[:, ::step].T.tolist()
    rights = [bits_of(dtype, column, weights, divisor) for column in columns]
    return sum(one != right for one, right in zip(found[::step].tolist(), rights, strict=True))


@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("dtype", WIDTHS)
class TestBits:
    def test_are_the_hosts(self, dtype, op, declined):
        """Ties with specks, cancellation, subnormals, overflow on the way, infinities, NaN, zeros; also in place."""
        for count in COUNTS:
            bits = drawn(KINDS, dtype, count, LENGTH)
            found, host = folded(bits, dtype, Fold(op), is_in_place=count % 2 == 0)
            assert np.array_equal(found, host), count
            assert wrong(bits, dtype, Fold(op), found, step=7) == 0
        assert declined

    def test_of_ordinary_numbers_are_proved(self, dtype, op, declined):
        """Nothing is left to whole numbers, and all is right."""
        for count in COUNTS:
            bits = drawn([near_one], dtype, count, 8 * LENGTH)
            found, host = folded(bits, dtype, Fold(op))
            assert np.array_equal(found, host)
        assert not any(number for number, _ in declined)

    @pytest.mark.usefixtures("nothing_is_proved")
    def test_of_whole_numbers_are_the_hosts(self, dtype, op, declined):
        for count in COUNTS:
            bits = drawn(KINDS, dtype, count, LENGTH, seed=1)
            found, host = folded(bits, dtype, Fold(op), is_in_place=count % 2 == 1)
            assert np.array_equal(found, host), count
            assert wrong(bits, dtype, Fold(op), found, step=7) == 0
        assert all(number == blocks for number, blocks in declined)


@pytest.mark.parametrize("op", [SUM, MEAN])
def test_bits_of_a_certificate_of_float32_are_the_hosts(op, monkeypatch, declined):
    """For GPUs whose float64 is slow: nothing declines that is ordinary."""
    monkeypatch.setenv(one_device.CERTIFICATE, "float32")
    for count in COUNTS:
        bits = drawn(KINDS, "float32", count, LENGTH, seed=2)
        found, host = folded(bits, "float32", Fold(op))
        assert np.array_equal(found, host), count
        assert wrong(bits, "float32", Fold(op), found, step=7) == 0
    declined.clear()
    for count in COUNTS:
        bits = drawn([near_one], "float32", count, 8 * LENGTH)
        found, host = folded(bits, "float32", Fold(op))
        assert np.array_equal(found, host)
    assert not any(number for number, _ in declined)


WEIGHTS = ((1, 2, 0, 4), (3, 1, 1_000_003), (1, 1), (5, 0, 0), ((1 << 28) - 7, 3), (7, 11, 13, 0, 17, 19))


@pytest.mark.parametrize("dtype", WIDTHS)
class TestWeights:
    @pytest.mark.parametrize("weights", WEIGHTS if IS_FULL else WEIGHTS[1:2] + WEIGHTS[3:5], ids=str)
    def test_give_the_hosts_bits(self, dtype, weights, declined):
        fold = Fold(MEAN, weights=weights)
        assert one_device.is_fused(fold, dtype)
        bits = drawn(KINDS, dtype, len(weights), LENGTH, seed=3)
        found, host = folded(bits, dtype, fold)
        assert np.array_equal(found, host)
        assert wrong(bits, dtype, fold, found, step=7) == 0
        assert declined

    def test_of_ordinary_numbers_are_proved(self, dtype, declined):
        bits = drawn([near_one], dtype, 3, 8 * LENGTH)
        found, host = folded(bits, dtype, Fold(MEAN, weights=(3, 100, 57)))
        assert np.array_equal(found, host)
        assert [number for number, _ in declined] == [0]

    @pytest.mark.usefixtures("nothing_is_proved")
    def test_give_the_hosts_bits_in_whole_numbers(self, dtype, declined):
        fold = Fold(MEAN, weights=(3, 0, 100_000_007, 57))
        bits = drawn(KINDS, dtype, 4, LENGTH, seed=4)
        found, host = folded(bits, dtype, fold)
        assert np.array_equal(found, host)
        assert wrong(bits, dtype, fold, found, step=7) == 0
        assert declined

    def test_that_are_long_are_the_hosts_work(self, dtype):
        assert not one_device.is_fused(Fold(MEAN, weights=(1 << 28, 1)), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_block_that_declines_leaves_the_others_alone(dtype, declined):
    """Of 5 blocks the third and the last have a number that no additions tell; in place, too."""
    length = 4 * one_device._BLOCK + 100
    bits = drawn([near_one], dtype, 5, length)
    for at in (2 * one_device._BLOCK + 17, length - 1):
        bits[:, at] = specks(dtype, 8)[:, 0]
    for is_in_place in (False, True):
        found, host = folded(bits, dtype, Fold(SUM), is_in_place=is_in_place)
        assert np.array_equal(found, host)
    assert declined == [(2, 5), (2, 5)]


def test_more_contributions_than_are_proved_are_whole_numbers(monkeypatch, declined):
    monkeypatch.setattr(exact_kernels, "MOST_PROVED", tl.constexpr(4))
    for count, blocks in ((4, 0), (5, 1)):
        found, host = folded(drawn([near_one], "float32", count, 10), "float32", Fold(MEAN))
        assert np.array_equal(found, host)
        assert declined.pop() == (blocks, 1)


@triton.jit
def _forgets(total, error, rest, value, lost, has_lost: tl.constexpr):  # noqa: ARG001 - those of the kernel
    """Add as ``_added`` does, and forget what the sum of errors loses."""
    both = total + value
    part = both - total
    return both, error + ((total - (both - part)) + (value - part)), rest


@triton.jit
def _ignores(total, error, rest, value, lost, has_lost: tl.constexpr):  # noqa: ARG001 - as above
    """Add as if nothing were lost."""
    return total + value, error, rest


@pytest.mark.skipif(not IS_INTERPRETED, reason="the compiled kernel keeps what it was compiled with")
@pytest.mark.parametrize(
    ("dtype", "certificate"), [("float64", ""), ("float32", "float64"), ("float32", "float32"), ("bfloat16", "")]
)
class TestFaults:
    """A fault in a certificate shows: what it lets pass is wrong."""

    def test_of_additions_whose_errors_are_ignored(self, dtype, certificate, monkeypatch):
        assert self.wrong_with(_ignores, dtype, certificate, monkeypatch)

    def test_of_a_bound_that_is_forgotten(self, dtype, certificate, monkeypatch):
        assert self.wrong_with(_forgets, dtype, certificate, monkeypatch)

    def test_of_none_is_none(self, dtype, certificate, monkeypatch):
        assert not self.wrong_with(exact_kernels._added, dtype, certificate, monkeypatch)

    def wrong_with(self, added, dtype, certificate, monkeypatch):
        monkeypatch.setattr(exact_kernels, "_added", added)
        if certificate:
            monkeypatch.setenv(one_device.CERTIFICATE, certificate)
        bits = specks(dtype, 8 * LENGTH)
        found, host = folded(bits, dtype, Fold(SUM))
        return np.count_nonzero(found != host)


def specks(dtype, length):
    """Return ties, and two numbers that cancel around one so small that the sum of errors loses it: it decides."""
    tie, far, speck = {"float64": (53, 200, 400), "float32": (24, 90, 149), "bfloat16": (8, 40, 100)}[dtype]
    rows = np.ones((5, length)) * np.array([[1], [2.0**-tie], [2.0**-far], [2.0**-speck], [-(2.0**-far)]])
    rows[3] *= np.resize([1, 0, -1], length)
    return rows.astype(numpy_dtype(dtype)).view(f"u{WIDTHS[dtype][0] // 8}")


def test_a_certificate_of_another_name_is_refused(monkeypatch):
    monkeypatch.setenv(one_device.CERTIFICATE, "float16")
    with pytest.raises(ValueError, match=r"^TREEFOLD_GPU_CERTIFICATE is 'float16' in the environment"):
        folded(drawn([near_one], "float32", 3, 4), "float32", Fold(SUM))


@pytest.mark.parametrize("dtype", ADVERSARIAL)
def test_adversarial_data_of_the_benchmark_is_declined_everywhere(dtype, declined):
    tensors = AdversarialTensors(Work("w", ((3 * one_device._BLOCK + 1,),), "sum", dtype, 8), [DEVICE] * 8)
    tensors.name_owners()
    target = torch.empty_like(tensors.columns[0][0])
    fold_batch([DeviceJob(dtype, tensors.columns[0], [target])], Fold(SUM))
    assert tensors.count_wrong([[target] * 8]) == 0
    assert declined == [(4, 4)]


def test_counts_and_kinds_make_a_million():
    assert LENGTH * len(KINDS) * len(COUNTS) >= 1_000_000 or not IS_FULL
    assert len(set(itertools.chain(COUNTS, KINDS))) == len(COUNTS) + len(KINDS)
