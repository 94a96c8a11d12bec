import inspect

import numpy as np
import pytest
import torch
import torch.cuda.comm

from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.errors import ArgumentError, DeviceError, MismatchError, OutputError
from treefold.torch import all_reduce_, all_reduce_coalesced, broadcast_coalesced, reduce_add_coalesced

SHAPES = ((3,), (2, 5), (), (0, 4), (7,))
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.float32)
BUFFER_SIZES = (0, 1, 16, 10 * 2**20)


def groups(count):
    """Return one list of tensors per replica; replica r holds 2**r."""
    return [[torch.full(shape, 2**r, dtype=d) for shape, d in zip(SHAPES, DTYPES, strict=True)] for r in range(count)]


def expected(value):
    return [torch.full(shape, value, dtype=d) for shape, d in zip(SHAPES, DTYPES, strict=True)]


def are_equal(found, wanted):
    pairs = list(zip(found, wanted, strict=True))
    return all(one.dtype is two.dtype and torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("buffer_size", BUFFER_SIZES)
class TestPlainDefinitions:
    """Any number of tensors and devices, mixed dtypes, any size of buffers."""

    def test_of_reduce_add_coalesced(self, count, buffer_size):
        inputs = groups(count)
        for _ in range(2):
            total = reduce_add_coalesced(inputs, "cpu", buffer_size)
            assert type(total) is tuple
            assert are_equal(total, expected(2**count - 1))
        assert all(are_equal(group, expected(2**r)) for r, group in enumerate(inputs))

    def test_of_all_reduce_coalesced(self, count, buffer_size):
        results = all_reduce_coalesced(groups(count), buffer_size)
        assert len(results) == count
        assert all(are_equal(total, expected(2**count - 1)) for total in results)
        assert len({total[0].data_ptr() for total in results}) == count

    def test_of_broadcast_coalesced(self, count, buffer_size):
        [tensors] = groups(1)
        results = broadcast_coalesced(tensors, ["cpu"] * count, buffer_size)
        assert len(results) == count
        assert all(type(copies) is tuple and are_equal(copies, tensors) for copies in results)
        assert len({tensor.data_ptr() for tensor in (tensors[0], *(copies[0] for copies in results))}) == count + 1


class TestReduceAddCoalesced:
    def test_takes_what_torch_cuda_comm_takes(self):
        for ours, theirs in (
            (reduce_add_coalesced, torch.cuda.comm.reduce_add_coalesced),
            (broadcast_coalesced, torch.cuda.comm.broadcast_coalesced),
        ):
            mine = inspect.signature(ours).parameters.values()
            positional = [(p.name, p.default) for p in mine if p.kind is not p.KEYWORD_ONLY]
            assert positional == [(p.name, p.default) for p in inspect.signature(theirs).parameters.values()]

    def test_takes_any_op(self):
        inputs = [[torch.full((2,), 2.0**r)] for r in range(3)]
        assert are_equal(reduce_add_coalesced(inputs, op="mean"), [torch.full((2,), 7 / 3)])
        assert are_equal(reduce_add_coalesced(inputs, op="mean", weights=[1, 0, 1]), [torch.full((2,), 2.5)])
        assert all_reduce_coalesced(inputs, op="max")[1][0].tolist() == [4, 4]

    def test_takes_iterators(self):
        models = [torch.nn.Linear(2, 1) for _ in range(2)]
        total = reduce_add_coalesced(model.parameters() for model in models)
        assert torch.equal(total[0], models[0].weight + models[1].weight)
        assert not any(tensor.requires_grad for tensor in total)

    def test_of_nothing_is_nothing(self):
        for _ in range(2):
            assert reduce_add_coalesced([[], []]) == ()
            assert all_reduce_coalesced([[], []]) == [(), ()]
            assert broadcast_coalesced([], ["cpu", "cpu"]) == [(), ()]

    def test_names_what_is_missing(self):
        with pytest.raises(MismatchError, match=r"^Replica 1 has nothing at \[1\] where replica 0 has a value"):
            reduce_add_coalesced([[torch.ones(1), torch.ones(1)], [torch.ones(1)]])

    def test_refuses_no_devices(self):
        with pytest.raises(
            ArgumentError, match=r"^inputs got no values\. It takes one value per replica, at least one\.$"
        ):
            reduce_add_coalesced([])

    @pytest.mark.parametrize("inputs", [torch.ones(2, 2), [torch.ones(2), torch.ones(2)]])
    def test_refuses_bare_tensors(self, inputs):
        sentence = r"^inputs holds tensors themselves\. It takes one list of tensors for each device\.$"
        with pytest.raises(ArgumentError, match=sentence):
            reduce_add_coalesced(inputs)

    @pytest.mark.parametrize(
        "inputs",
        [3, None, {0: [torch.ones(2)]}, "ab", [3, 4], [{"w": torch.ones(2)}], [np.ones(2), np.ones(2)]],
        ids=str,
    )
    def test_refuses_what_is_no_list_of_lists(self, inputs):
        sentence = r"^inputs has .+ where a list of (lists of )?tensors is meant\. Pass a list or tuple\.$"
        for call in (reduce_add_coalesced, all_reduce_coalesced):
            with pytest.raises(ArgumentError, match=sentence):
                call(inputs)

    def test_takes_generators(self):
        assert are_equal(
            reduce_add_coalesced((t for t in group) for group in groups(2)), reduce_add_coalesced(groups(2))
        )
        [copies] = broadcast_coalesced((t for t in groups(1)[0]), (name for name in ["cpu"]))
        assert are_equal(copies, groups(1)[0])

    @pytest.mark.parametrize("device", [True, 1.0, None])
    def test_refuses_what_is_no_device(self, device):
        sentence = rf'^A device is {device}\. It takes a torch\.device, a name such as "cuda:1", or a CUDA index\.$'
        with pytest.raises(ArgumentError, match=sentence):
            broadcast_coalesced([torch.ones(1)], [device])

    def test_refuses_an_index_that_no_device_has(self):
        with pytest.raises(ArgumentError, match=r"^A device is an int\. It takes a torch\.device, "):
            broadcast_coalesced([torch.ones(1)], [10**5000])

    @pytest.mark.skipif(torch.cuda.is_available(), reason="here PyTorch reports a GPU")
    @pytest.mark.parametrize("device", [0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)])
    def test_places_nothing_elsewhere(self, device):
        for call in (
            lambda: reduce_add_coalesced([[torch.ones(1)]], device),
            lambda: broadcast_coalesced([torch.ones(1)], [device]),
        ):
            with pytest.raises(DeviceError, match=r"^PyTorch has no device (gpu|cuda):0 here\."):
                call()

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here")
    def test_agrees_with_torch_cuda_comm(self):
        inputs = [[tensor.cuda() for tensor in group] for group in groups(2)]
        theirs = torch.cuda.comm.reduce_add_coalesced([[t.clone() for t in group] for group in inputs])
        assert are_equal(reduce_add_coalesced(inputs), theirs)

    def test_bounds_buffers_by_their_size(self):
        for call in (
            lambda: reduce_add_coalesced([[torch.ones(1)]], None, -1),
            lambda: broadcast_coalesced([], [], -1),
        ):
            with pytest.raises(ArgumentError, match=r"^bytes_per_pack is -1\."):
                call()


class TestAllReduceInPlace:
    @pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
    def test_leaves_the_result_in_the_tensors(self, op):
        wanted = {"sum": 7, "mean": 7 / 3, "min": 1, "max": 4, "product": 8}[op]
        for _ in range(3):
            tensors = [torch.full((4,), 2.0**r) for r in range(3)]
            before = [tensor.data_ptr() for tensor in tensors]
            assert all_reduce_(tensors, op) is tensors
            assert [tensor.data_ptr() for tensor in tensors] == before
            assert all(torch.equal(tensor, torch.full((4,), wanted)) for tensor in tensors)

    def test_takes_lists_of_gradients_and_weights(self):
        gradients = [[torch.full((2,), 2.0**r), torch.full((), 2.0**r)] for r in range(2)]
        all_reduce_(gradients, "mean", weights=[3, 1])
        assert all(tensor.eq(1.25).all() for group in gradients for tensor in group)

    def test_refuses_one_tensor(self):
        with pytest.raises(ArgumentError, match=r"^tensors got a Tensor\. It takes a list or tuple with one value per"):
            all_reduce_(torch.ones(2, 2))

    def test_refuses_the_mean_of_integers(self):
        tensors = [torch.tensor([1]), torch.tensor([2])]
        with pytest.raises(
            ValueError, match=r"^Replica 0 has int64 \(1,\)\. To take the result it needs a writable PyTorch array"
        ):
            all_reduce_(tensors, "mean")
        assert [int(tensor) for tensor in tensors] == [1, 2]

    def test_refuses_tensors_that_share_memory(self):
        memory = torch.arange(6.0)
        for tensors in ([memory[:4], memory[2:]], ([memory[:4]], [memory[2:]])):
            where = " at [0]" if isinstance(tensors, tuple) else ""
            with pytest.raises(OutputError) as caught:
                all_reduce_(tensors)
            assert str(caught.value) == (
                f"Replica 0's array{where} overlaps replica 1's array{where}. Arrays that are reduced in place share "
                "memory with no other; copy one of them. Nothing was written."
            )
        assert torch.equal(memory, torch.arange(6.0))

    def test_is_the_ops_own_reduce(self):
        tensors = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(5)]
        made = HierarchicalCopyAllReduce().reduce("mean", PerReplica([tensor.clone() for tensor in tensors]), "cpu:0")
        all_reduce_(tensors, "mean")
        assert all(torch.equal(tensor, made[0]) for tensor in tensors)
