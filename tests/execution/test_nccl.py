"""NCCL without GPUs: the calls that it gets, the use of its results, and its errors.

The class ``FakeNccl`` stands for ``torch.cuda.nccl``: it takes the same arguments, and adds in an order of its own.
"""

import types

import numpy as np
import pytest
import torch
import torch.cuda.nccl
from pretended import pretended_gpus

from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReduceOp,
    all_reduce,
)
from treefold.backends.torch import TorchBackend
from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE
from treefold.errors import GpuError
from treefold.execution.cuda.nccl import wire_dtype
from treefold.fold import Fold
from treefold.ops import cross_device_ops
from treefold.plan import from_json
from treefold.testing import assert_same_bits, owned

COUNT = 3
HOST = TorchBackend()
TAKEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)


class FakeNccl:
    """One process, one tensor per GPU; folds from the last GPU to the first."""

    def __init__(self, gpus):
        self.gpus, self.calls = gpus, []
        self.error = None

    def all_reduce(self, inputs, outputs=None, op=0, streams=None, comms=None):
        """Do what torch.cuda.nccl.all_reduce does; None for streams means the current ones."""
        assert streams is None
        assert comms is None
        if self.error is not None:
            raise RuntimeError(self.error)
        dtypes, shapes = {tensor.dtype for tensor in inputs}, {tensor.shape for tensor in inputs}
        assert len(dtypes) == len(shapes) == 1
        assert dtypes <= set(TAKEN)
        assert all(tensor.is_contiguous() for tensor in (*inputs, *outputs))
        self.calls.append((len(inputs), inputs[0].dtype, inputs[0].numel(), op))
        fold = [torch.add, torch.mul, torch.fmax, torch.fmin][op]
        total = inputs[-1].clone()
        for tensor in reversed(inputs[:-1]):
            total = fold(total, tensor)
        for given, made in zip(inputs, outputs, strict=True):
            assert made.shape == given.shape
            made.copy_(total)
            self.gpus.put(made, self.gpus.device_of(given))


@pytest.fixture
def gpus():
    with pretended_gpus(COUNT) as backend:
        yield backend


@pytest.fixture
def nccl(gpus, monkeypatch):
    fake = FakeNccl(gpus)
    monkeypatch.setattr(torch._C, "_nccl_all_reduce", None, raising=False)
    monkeypatch.setattr(torch.cuda.nccl, "all_reduce", fake.all_reduce)
    return fake


def put(gpus, arrays):
    tensors = [HOST.from_host(np.array(array), "cpu:0") for array in arrays]
    return PerReplica([gpus.put(tensor, f"gpu:{index}") for index, tensor in enumerate(tensors)])


def on_host(tensor):
    return HOST.host_view(tensor)


class TestResults:
    @pytest.mark.parametrize("accumulate", ["exact", "native"])
    @pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
    @pytest.mark.parametrize("op", list(ReduceOp))
    def test_are_the_hosts(self, op, dtype, accumulate, gpus, nccl):
        if dtype == "bool" and op not in {ReduceOp.MIN, ReduceOp.MAX}:
            return
        if dtype in COMPLEX and op in {ReduceOp.MIN, ReduceOp.MAX}:
            return
        arrays = [owned(replica, (5, 7), dtype) for replica in range(COUNT)]
        value = put(gpus, arrays)
        made = NcclAllReduce(accumulate=accumulate).reduce(op, value, value)
        assert made.plan.executor == "nccl"
        wire = wire_dtype(Fold(op, accumulate), dtype)
        length = 70 if dtype in COMPLEX else 35
        assert nccl.calls == ([] if wire is None else [(COUNT, getattr(torch, wire), length, _number(op))])
        expected = all_reduce(arrays, op)
        for replica, (tensor, array) in enumerate(zip(made, expected, strict=True)):
            assert_same_bits(on_host(tensor), array)
            assert_same_bits(on_host(value[replica]), arrays[replica])

    def test_of_halves_are_rounded_once(self, gpus, nccl):
        """2048 + 1 + 1 is 2050 in float32, and 2048 if every sum is rounded to float16; NCCL is asked for either."""
        value = put(gpus, [np.full(4, number, np.float16) for number in (2048, 1, 1)])
        [wide, *_] = NcclAllReduce().reduce("sum", value, value)
        assert wide.tolist() == [2050] * 4
        NcclAllReduce(accumulate="native").reduce("sum", value, value)
        assert [dtype for _, dtype, _, _ in nccl.calls] == [torch.float32, torch.float16]

    @pytest.mark.parametrize("op", ["min", "max"])
    def test_keep_nan(self, op, gpus, nccl):
        value = put(gpus, [np.array([1.0, np.nan, -0.0]), np.array([2.0, 3.0, 0.0]), np.array([4.0, 5.0, 0.0])])
        for tensor in NcclAllReduce().reduce(op, value, value):
            assert_same_bits(on_host(tensor), all_reduce([on_host(t) for t in value], op)[0])
        assert not nccl.calls

    def test_are_on_their_gpus(self, gpus, nccl):
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        made = NcclAllReduce().reduce("sum", value, ["gpu:2", "gpu:0", "gpu:1"])
        assert [gpus.device_of(tensor) for tensor in made] == ["gpu:2", "gpu:0", "gpu:1"]
        assert all(tensor.tolist() == [7] * 4 for tensor in made)
        assert len(nccl.calls) == 1

    def test_go_into_given_tensors(self, gpus, nccl):
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        for tensor in value:
            tensor.requires_grad_()
        with torch.no_grad():
            NcclAllReduce().reduce("sum", value, value, out=value)
        assert all(tensor.tolist() == [7] * 4 and tensor._version == 1 for tensor in value)
        assert len(nccl.calls) == 1

    def test_never_alias(self, gpus, nccl):
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        made = NcclAllReduce().reduce("sum", value, value)
        assert len({tensor.data_ptr() for tensor in (*value, *made)}) == 2 * COUNT
        assert len(nccl.calls) == 1

    def test_of_views_are_those_of_their_numbers(self, gpus, nccl):
        base = np.arange(24, dtype=np.complex64).reshape(4, 6) * (1 + 2j)
        value = put(gpus, [base * 2**replica for replica in range(COUNT)])
        views = PerReplica([tensor.T[::2].conj() for tensor in value])
        for tensor in NcclAllReduce().reduce("sum", views, views):
            np.testing.assert_array_equal(on_host(tensor.resolve_conj()), base.T[::2].conj() * 7)
        assert len(nccl.calls) == 1


class TestPacks:
    @pytest.mark.parametrize(("num_packs", "calls"), [(1, 2), (0, 4), (2, 4), ("auto", 6)])
    def test_are_calls(self, num_packs, calls, gpus, nccl):
        trees = [
            {
                name: np.full(9, 2.0**replica, dtype)
                for name, dtype in zip("abcd", ("f4", "f4", "f8", "f8"), strict=True)
            }
            for replica in range(COUNT)
        ]
        value = PerReplica(
            [
                {name: gpus.put(torch.from_numpy(array), f"gpu:{replica}") for name, array in tree.items()}
                for replica, tree in enumerate(trees)
            ]
        )
        for result in NcclAllReduce(num_packs).reduce("mean", value, value):
            for name, tensor in result.items():
                np.testing.assert_array_equal(on_host(tensor), np.full(9, 7 / 3, trees[0][name].dtype))
        assert len(nccl.calls) == calls

    def test_without_elements_are_none(self, gpus, nccl):
        value = put(gpus, [np.zeros((0, 3))] * COUNT)
        assert [tensor.shape for tensor in NcclAllReduce().reduce("sum", value, value)] == [(0, 3)] * COUNT
        assert not nccl.calls

    def test_of_rows_are_laid_behind_each_other(self, gpus, nccl):
        value = PerReplica(
            [
                IndexedSlices(
                    gpus.put(torch.full((1, 2), 2.0**replica), f"gpu:{replica}"),
                    gpus.put(torch.tensor([replica]), f"gpu:{replica}"),
                    (4, 2),
                )
                for replica in range(COUNT)
            ]
        )
        for rows in NcclAllReduce().reduce("sum", value, value):
            assert rows.values.tolist() == [[1, 1], [2, 2], [4, 4]]
        assert not nccl.calls

    def test_with_weights_are_the_plans(self, gpus, nccl):
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        [mean, *_] = NcclAllReduce().reduce("mean", value, value, weights=[1, 0, 3])
        assert mean.tolist() == [13 / 4] * 4
        assert not nccl.calls


class TestPlans:
    @pytest.mark.usefixtures("nccl")
    def test_say_that_nccl_runs_them(self, gpus):
        plan = NcclAllReduce().plan(put(gpus, [np.ones(4)] * COUNT), ["gpu:0", "gpu:1", "gpu:2"])
        assert plan.guarantee == "per_plan"
        assert plan.notes == ()
        lines = str(plan).splitlines()
        assert lines[1:3] == [
            "executor:  nccl, in place of the copies and combinations of a pack, wherever it does the same",
            "guarantee: per_plan - the same bits on every destination; on every run, if NCCL chooses the same way",
        ]
        assert from_json(plan.to_json()) == plan

    @pytest.mark.usefixtures("nccl")
    def test_are_those_of_the_general_class(self, gpus):
        value = put(gpus, [np.ones(4)] * COUNT)
        assert AllReduceCrossDeviceOps().reduce("sum", value, value).plan.executor == "nccl"
        assert HierarchicalCopyAllReduce().reduce("sum", value, value).plan.executor == "local"

    @pytest.mark.parametrize(
        ("devices", "destinations", "why"),
        [
            (["gpu:0", "gpu:0", "gpu:1"], None, "NCCL takes one replica per GPU"),
            (["gpu:0"], None, "there is one GPU only"),
            (["gpu:0", "gpu:1"], "gpu:0", "NCCL leaves results where the values are, and other destinations are asked"),
        ],
    )
    def test_say_why_nccl_does_not(self, devices, destinations, why, gpus, nccl):
        tensors = [gpus.put(torch.full((4,), 2.0**index), device) for index, device in enumerate(devices)]
        value = PerReplica(tensors)
        cross_device_ops._warn_without_nccl.cache_clear()
        with pytest.warns(RuntimeWarning, match="NCCL is not used, because"):
            made = NcclAllReduce().reduce("sum", value, destinations or value)
        assert made.plan.notes[0].startswith(f"NCCL is not used, because {why}")
        assert made[0].tolist() == [2.0 ** len(devices) - 1] * 4
        assert not nccl.calls

    @pytest.mark.filterwarnings("ignore:NCCL is not used")
    def test_say_that_pytorch_has_none(self, gpus):
        if hasattr(torch._C, "_nccl_all_reduce"):
            pytest.skip("this build of PyTorch has NCCL")
        value = put(gpus, [np.ones(4)] * COUNT)
        [note] = NcclAllReduce().plan(value, value).notes
        assert note.startswith("NCCL is not used, because this build of PyTorch has no NCCL: ")


class TestErrors:
    def test_of_nccl_become_ours(self, gpus, nccl):
        nccl.error = "NCCL Error 2: unhandled system error\nmore"
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        with pytest.raises(GpuError) as caught:
            NcclAllReduce().reduce("sum", value, value, out=value)
        assert str(caught.value) == (
            "NCCL could not all-reduce between gpu:0, gpu:1, gpu:2 (NCCL Error 2: unhandled system error). "
            "Set NCCL_DEBUG=INFO to see why; HierarchicalCopyAllReduce does without NCCL."
        )
        assert [tensor[0].item() for tensor in value] == [1, 2, 4]

    @pytest.mark.usefixtures("nccl")
    def test_come_when_time_is_up(self, gpus, monkeypatch):
        stream = types.SimpleNamespace(record_event=lambda: types.SimpleNamespace(query=lambda: False))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _place: stream)
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        with pytest.raises(GpuError) as caught:
            NcclAllReduce().reduce("sum", value, value, CommunicationOptions(timeout_seconds=0.01), out=value)
        assert str(caught.value) == (
            "NCCL is not done after 0.01 s between gpu:0, gpu:1, gpu:2, and what these GPUs were given next waits for "
            "it. End this process; set NCCL_DEBUG=INFO to see what it waited for."
        )
        assert [tensor[0].item() for tensor in value] == [1, 2, 4]

    @pytest.mark.usefixtures("nccl")
    def test_do_not_come_before(self, gpus, monkeypatch):
        asked = []
        stream = types.SimpleNamespace(record_event=lambda: types.SimpleNamespace(query=lambda: len(asked) > COUNT))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda place: asked.append(place) or stream)
        monkeypatch.setattr("treefold.execution.cuda.nccl.time.sleep", lambda _seconds: asked.append("slept"))
        value = put(gpus, [np.full(4, 2.0**replica) for replica in range(COUNT)])
        options = CommunicationOptions(timeout_seconds=60, implementation="nccl")
        [result, *_] = NcclAllReduce().reduce("sum", value, value, options)
        assert result.tolist() == [7] * 4
        assert asked == ["cuda:0", "cuda:1", "cuda:2", "slept"]

    @pytest.mark.usefixtures("nccl")
    def test_are_options_that_it_has_not(self, gpus):
        value = put(gpus, [np.ones(4)] * COUNT)
        with pytest.raises(ValueError, match=r"^implementation=RING cannot be honoured by the nccl executor"):
            NcclAllReduce().reduce("sum", value, value, CommunicationOptions(implementation="ring"))


class TestTable:
    def test_has_no_dtype_that_pytorch_keeps_from_nccl(self):
        names = {str(dtype).removeprefix("torch.") for dtype in TAKEN}
        for op in ReduceOp:
            for dtype in (*REDUCIBLE, "bool"):
                if dtype == "bool" and op not in {ReduceOp.MIN, ReduceOp.MAX}:
                    continue  # refused before
                assert wire_dtype(Fold(op), dtype) in {None, *names}

    def test_serves_all_sums(self):
        assert all(wire_dtype(Fold(ReduceOp.SUM), dtype) for dtype in REDUCIBLE)
        assert {dtype for dtype in REDUCIBLE if not wire_dtype(Fold(ReduceOp.MEAN), dtype)} == {"int64", "uint64"}
        assert {dtype for dtype in INTEGERS if not wire_dtype(Fold(ReduceOp.MAX), dtype)} == {"uint32", "uint64"}


def _number(op):
    return {ReduceOp.SUM: 0, ReduceOp.MEAN: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3}[op]
