"""Batches of tensors folded in one launch: the bits of the NumPy reference, whatever the dtype, op and values."""

import contextlib
import importlib.metadata
import itertools
import os
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from treefold import ReduceOp
from treefold.backends.numpy_fold import fold_block
from treefold.backends.torch import TorchBackend
from treefold.dtypes import REDUCIBLE
from treefold.errors import GpuError
from treefold.execution.cuda import one_device
from treefold.execution.cuda.one_device import DeviceJob, fold_batch, is_fused
from treefold.execution.gpus import CudaExecutor
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.testing import assert_same_bits, owned, owned_sum
from treefold.testing.inputs import mixed_values

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
#: Contributions, elements, whether all are finite.
FORMS = tuple(itertools.product((1, 2, 3, 8, 17), (1, 1000, 2500), (False, True)))
FORMS = FORMS if IS_FULL else ((3, 1100, False), (17, 100, True))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = TorchBackend()
FOLDS = [Fold(op, accumulate) for op in ReduceOp for accumulate in ("exact", "native")]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes overflows with NumPy


def tensor(array):
    return BACKEND.from_host(np.array(array), "cpu:0").to(DEVICE)


def on_host(array):
    return BACKEND.host_view(array.cpu())


def folded(parts, fold, *, num_targets=1):
    """Fold arrays through one launch and return the targets."""
    dtype = parts[0].dtype.name
    result = getattr(torch, fold.result_dtype(dtype))
    targets = [torch.empty(parts[0].shape, dtype=result, device=DEVICE) for _ in range(num_targets)]
    fold_batch([DeviceJob(dtype, [tensor(part) for part in parts], targets)], fold)
    return [on_host(target) for target in targets]


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: f"{fold.op.name}-{fold.accumulate}")
def test_gives_the_bits_of_the_numpy_fold(fold, dtype):
    is_refused = dtype == "bool" and fold.op not in {ReduceOp.MIN, ReduceOp.MAX}
    is_refused |= dtype.startswith("complex") and fold.op in {ReduceOp.MIN, ReduceOp.MAX}
    if is_refused or not is_fused(fold, dtype):
        pytest.skip("refused, or folded by the backend")
    for count, size, is_finite in FORMS:
        if dtype == "bool":
            parts = [np.random.default_rng(replica).random(size) < 0.5 for replica in range(count)]
        else:
            parts = [
                mixed_values(31 * replica + count, (size,), dtype, is_finite=is_finite) for replica in range(count)
            ]
        expected = fold_block(parts, fold, dtype=dtype, divisor=count, result=fold.result_dtype(dtype))
        for got in folded(parts, fold, num_targets=2):
            assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT])
def test_what_overflows_on_the_way_is_settled(op, dtype):
    """Largest and smallest numbers in every order: finite contributions with a finite fold give that."""
    largest = float(ml_dtypes.finfo(dtype).max)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    values = (largest, -largest, tiny, -0.0, 1.5, largest / 2)
    columns = np.array(list(itertools.product(values, repeat=3)))
    parts = [np.ascontiguousarray(columns[:, replica].astype(dtype)) for replica in range(3)]
    fold = Fold(op)
    expected = fold_block(parts, fold, dtype=dtype, divisor=3, result=dtype)
    assert_same_bits(folded(parts, fold)[0], expected)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.PRODUCT])
def test_what_is_infinite_or_underflows_on_the_way_is_settled(op, dtype):
    """Infinities, NaN and zeros between the largest and the smallest numbers, in every order."""
    form = ml_dtypes.finfo(dtype)
    most, tiny = float(form.max), float(form.tiny)
    values = (most, -most, tiny, tiny, 0.75 * most, np.inf, -np.inf, np.nan, 0.0)
    columns = np.array(list(itertools.permutations(values, 4)))
    parts = [np.ascontiguousarray(columns[:, replica].astype(dtype)) for replica in range(4)]
    fold = Fold(op)
    expected = fold_block(parts, fold, dtype=dtype, divisor=4, result=dtype)
    assert_same_bits(folded(parts, fold)[0], expected)


class TestBatch:
    def test_many_tensors_take_three_launches(self):
        """Whole blocks in one, the ends of arrays in another, what both decline in the third; no packing."""
        shapes = [(), (1,), (1023,), (1024,), (1025,), (0,), (64, 32), (3000,)]
        jobs, targets = [], []
        for shape in shapes:
            sources = [tensor(owned(replica, shape)) for replica in range(5)]
            targets.append([torch.full(shape, -1.0, device=DEVICE) for _ in range(3)])
            jobs.append(DeviceJob("float32", sources, targets[-1]))
        assert fold_batch(jobs, Fold(ReduceOp.SUM)) == 3
        for shape, ends in zip(shapes, targets, strict=True):
            for end in ends:
                assert_same_bits(on_host(end), owned_sum(5, shape))

    def test_in_place(self):
        """A block is read from every tensor before it is written to any."""
        tensors = [tensor(owned(replica, (2500,))) for replica in range(8)]
        fold_batch([DeviceJob("float32", tensors, tensors)], Fold(ReduceOp.SUM))
        for end in tensors:
            assert_same_bits(on_host(end), owned_sum(8, (2500,)))

    @pytest.mark.parametrize("offset", [1, 2, 3])
    def test_tensors_that_begin_anywhere(self, offset):
        whole = [tensor(owned(replica, (2048 + offset,))) for replica in range(3)]
        target = torch.full((2060,), 7.0, device=DEVICE)
        end = target[offset : offset + 2048]
        fold_batch([DeviceJob("float32", [one[offset:] for one in whole], [end])], Fold(ReduceOp.SUM))
        assert_same_bits(on_host(end), owned_sum(3, (2048 + offset,))[offset:])
        assert (target[:offset] == 7).all()
        assert (target[offset + 2048 :] == 7).all()

    def test_dtypes_do_not_mix(self):
        jobs, targets = [], []
        for dtype in ("float32", "float16", "int32"):
            targets.append(torch.empty(1024, dtype=getattr(torch, dtype), device=DEVICE))
            sources = [tensor(owned(replica, (1024,), dtype)) for replica in range(4)]
            jobs.append(DeviceJob(dtype, sources, [targets[-1]]))
        assert fold_batch(jobs, Fold(ReduceOp.SUM)) == 5
        for job, target in zip(jobs, targets, strict=True):
            assert_same_bits(on_host(target), owned_sum(4, (1024,), job.dtype))


@pytest.mark.parametrize(
    ("installed", "is_used"),
    [
        ({"triton": "3.3.1"}, False),
        ({"triton": "3.4.0"}, True),
        ({"triton": "4.0.0+git1234"}, True),
        ({"pytorch-triton-rocm": "3.5.1"}, True),
        ({}, False),
    ],
)
def test_triton_is_new_enough(installed, is_used, monkeypatch):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    one_device._triton_version.cache_clear()
    try:
        assert one_device.has_triton() is is_used
    finally:
        monkeypatch.undo()
        one_device._triton_version.cache_clear()


def test_triton_is_left_alone_once_tensorflow_is_loaded(monkeypatch):
    """Loading it then would end the process: the backend's operations fold instead."""
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    monkeypatch.delitem(sys.modules, "triton")
    assert not is_fused(Fold(ReduceOp.SUM), "float32")


class TestOutOfMemory:
    def test_tables_come_before_launches(self, monkeypatch):
        """Where the second dtype's table finds no memory, nothing of the first dtype was written."""
        jobs = []
        for dtype in ("float32", "float16"):
            sources = [tensor(owned(replica, (1024,), dtype)) for replica in range(2)]
            jobs.append(DeviceJob(dtype, sources, sources))
        uploads = []

        def scarce(table, *place):
            uploads.append(table)
            if len(uploads) == 2:
                raise torch.OutOfMemoryError
            return uploaded(table, *place)

        uploaded = one_device._uploaded
        monkeypatch.setattr(one_device, "_uploaded", scarce)
        with pytest.raises(torch.OutOfMemoryError):
            fold_batch(jobs, Fold(ReduceOp.SUM))
        for job in jobs:
            for replica, source in enumerate(job.sources):
                assert_same_bits(on_host(source), owned(replica, (1024,), job.dtype))

    def test_it_says_that_nothing_was_written(self, monkeypatch):
        def scarce(*_):
            message = "CUDA out of memory. Tried to allocate 2.00 GiB."
            raise torch.OutOfMemoryError(message)

        monkeypatch.setattr(one_device, "run", scarce)
        with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory") as caught:
            CudaExecutor().run(SimpleNamespace(devices=("gpu:0",)), [], None, None)
        (note,) = caught.value.__notes__
        assert note.startswith("treefold: nothing was written; every tensor holds what it held before the call. Reduce")


class TestTables:
    """Tables on a device, here on one that is not there: ``_upload`` is replaced."""

    device = SimpleNamespace(type="cuda", index=0)

    @pytest.fixture
    def gpu(self, monkeypatch):
        """Return what the fake device did and is told to do."""
        state = SimpleNamespace(is_capturing=False, stream=1, uploads=0, recorded=[])
        part = SimpleNamespace(
            record_stream=lambda stream: state.recorded.append(stream.cuda_stream), device=self.device
        )

        def upload(key, _device, _lengths):
            state.uploads += 1
            return one_device._Upload(key, part, part, 1, set())

        monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.is_capturing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=state.stream))
        monkeypatch.setattr(one_device, "_upload", upload)
        monkeypatch.setattr(one_device, "_uploads", BoundedCache(one_device._MOST_TABLES))
        monkeypatch.setattr(one_device, "_in_graphs", {})
        return state

    def uploaded(self, number):
        made = one_device._uploaded(((number, number + 64, 1024),), self.device, (1024,))
        assert made.use(has_bytes=False) is None
        return made

    def test_are_copied_once(self, gpu):
        """The same tensors find theirs again; memory outlives the work of each stream, which is told of it once."""
        first = self.uploaded(0)
        gpu.stream = 2
        assert self.uploaded(0) is self.uploaded(0) is first
        assert self.uploaded(1) is not first
        assert gpu.uploads == 2
        assert gpu.recorded == [1, 1, 2, 2, 2, 2]

    def test_of_the_same_numbers_in_other_rows_are_others(self, gpu):
        one_device._uploaded(((1, 2, 3), (4, 5, 6)), self.device, (3, 6))
        one_device._uploaded(((1, 2), (3, 4), (5, 6)), self.device, (2, 4, 6))
        assert gpu.uploads == 2

    def test_of_graphs_are_kept(self, gpu):
        """A replay reads them, however many other tensors were reduced since; a capture waits for nothing."""
        first = self.uploaded(0)
        gpu.is_capturing = True
        assert self.uploaded(0) is first
        gpu.is_capturing = False
        for number in range(1, one_device._MOST_TABLES + 2):
            self.uploaded(number)
        assert len(one_device._uploads) == one_device._MOST_TABLES
        assert self.uploaded(0) is first
        self.uploaded(1)
        assert gpu.uploads == one_device._MOST_TABLES + 3

    def test_are_not_copied_during_a_capture(self, gpu):
        """The graph would hold the copy, and not what was copied."""
        gpu.is_capturing = True
        with pytest.raises(GpuError, match=r"^This reduction would have to copy a table of addresses to the GPU while"):
            self.uploaded(0)
        assert not gpu.uploads
