import os

import ml_dtypes
import numpy as np
import pytest
import torch

import treefold
from treefold import HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice
from treefold.backends import backend_of, torch_memory
from treefold.dtypes import COMPLEX, REDUCIBLE
from treefold.errors import ArgumentError, OutputError
from treefold.testing import CONFORMANCE, Adapter, assert_same_bits, mixed_values

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FEW = ("float32", "bfloat16", "int8", "int64", "complex64")
DTYPES = REDUCIBLE if os.environ.get("TREEFOLD_CASES") == "full" else FEW
HERE = tuple(f"cpu:{index}" for index in range(8))
OPS = HierarchicalCopyAllReduce()


def tensor_of(array, device="cpu:0"):
    """Return a tensor with a copy of a NumPy array, on a device by treefold's name."""
    bits = np.array(array).view(np.int16) if array.dtype == BFLOAT16 else np.array(array)
    tensor = torch.from_numpy(bits)
    tensor = tensor.view(torch.bfloat16) if array.dtype == BFLOAT16 else tensor
    return tensor.to(device.replace("gpu", "cuda")) if device.startswith("gpu") else tensor


def array_of(tensor):
    """Return a tensor's contents as a NumPy array."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(BFLOAT16)
    return plain.numpy()


def tensors(count=3, shape=(5,)):
    """Return one tensor per replica; replica r holds 2**r."""
    return [torch.full(shape, 2.0**r) for r in range(count)]


@pytest.fixture(params=["DLPack's table", "no table"])
def exchange(request, monkeypatch):
    """Views and tensors are made by DLPack's table of C functions, or as older releases of PyTorch need it."""
    if request.param == "no table":
        monkeypatch.setattr(torch_memory, "EXCHANGE", None)


class TestConformance:
    @pytest.mark.usefixtures("exchange")
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds_on_host_memory(self, case):
        adapter = Adapter(backend_of(torch.zeros(1)), HERE, tensor_of, array_of, DTYPES)
        assert case.run(adapter) is None

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch reports no GPU here")
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds_on_gpus(self, case):
        devices = tuple(f"gpu:{index}" for index in range(torch.cuda.device_count()))
        assert case.run(Adapter(backend_of(torch.zeros(1)), devices, tensor_of, array_of, DTYPES)) is None


class TestNumbers:
    @pytest.mark.usefixtures("exchange")
    @pytest.mark.parametrize("dtype", REDUCIBLE)
    @pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
    def test_are_those_of_numpy_bit_for_bit(self, op, dtype):
        if dtype in COMPLEX and op in {"min", "max"}:
            return
        arrays = [mixed_values(seed, (257,), dtype) for seed in range(5)]
        expected = treefold.all_reduce(arrays, op)
        for _ in range(2):  # the slow path, then the fast one
            for found, array in zip(treefold.all_reduce([tensor_of(a) for a in arrays], op), expected, strict=True):
                assert_same_bits(array_of(found), array)

    @pytest.mark.parametrize("weights", [torch.tensor([1.0, 0.0, 3.0]), [torch.tensor(w) for w in (1, 0, 3)]], ids=str)
    def test_take_tensors_as_weights(self, weights):
        [mean, *_] = treefold.all_reduce(tensors(), "mean", weights=weights)
        assert torch.equal(mean, torch.full((5,), 13 / 4))

    def test_refuse_tensors_that_are_no_weights(self):
        with pytest.raises(
            ArgumentError, match=r"^weights is a Tensor\. It takes a list, tuple or one-dimensional array"
        ):
            treefold.all_reduce(tensors(), "mean", weights=torch.ones(3, 1))
        with pytest.raises(ArgumentError, match=r"^weights has a tensor with grad_fn\. "):
            treefold.all_reduce(tensors(), "mean", weights=torch.ones(3, requires_grad=True) * 2)

    @pytest.mark.usefixtures("exchange")
    @pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
    def test_of_float8_are_only_moved(self, name):
        dtype = getattr(torch, f"float8_{name}")
        value = torch.arange(4.0).to(dtype)
        [copy] = treefold.broadcast(value, "cpu:1")
        assert copy.dtype is dtype
        assert torch.equal(copy.float(), value.float())
        with pytest.raises(ValueError, match=f"^float8_{name} cannot be reduced"):
            treefold.all_reduce([value, value])


class TestMemory:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
    def test_of_inputs_is_not_copied(self, dtype):
        tensor = torch.zeros(4, 6, dtype=dtype)[:, ::2]
        view = backend_of(tensor).host_view(tensor)
        assert view.__array_interface__["data"][0] == tensor.data_ptr()
        assert view.shape == tuple(tensor.shape)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_of_results_is_treefolds(self, dtype):
        before = treefold.host_memory_info()["used_bytes"]
        made = treefold.all_reduce([torch.ones(1 << 18, dtype=dtype) for _ in range(2)])
        nbytes = made[0].nbytes
        assert all(tensor.data_ptr() % 64 == 0 for tensor in made)
        assert treefold.host_memory_info()["used_bytes"] == before + 2 * nbytes
        row = made[0].view(2, -1)[1]  # PyTorch's own view keeps the memory
        del made
        assert treefold.host_memory_info()["used_bytes"] == before + nbytes
        assert (row == 2).all()
        del row
        assert treefold.host_memory_info()["used_bytes"] == before

    def test_of_results_is_nobody_elses(self):
        value = torch.ones(3)
        [alone] = treefold.all_reduce([value])
        one, two = treefold.all_reduce([value, value])
        assert len({t.untyped_storage().data_ptr() for t in (value, alone, one, two)}) == 4

    def test_of_nothing_may_lie_anywhere(self):
        empty = torch.zeros(0, 3, 3)[..., 1]
        assert empty.storage_offset() > 0
        assert [made.shape for made in treefold.all_reduce([empty, empty])] == [empty.shape] * 2


LAYOUTS = {
    "transposed": lambda t: t.transpose(1, 3),
    "channels-last": lambda t: t.to(memory_format=torch.channels_last),
    "every other": lambda t: t.repeat_interleave(2, 3)[..., ::2],
    "with an offset": lambda t: torch.cat([torch.zeros(1), t.reshape(-1)])[1:].view(t.shape),
}


class TestLayouts:
    @pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)
    def test_do_not_matter(self, lay):
        contents = [torch.arange(120.0).reshape(2, 3, 4, 5) * 2**r for r in range(3)]
        value = PerReplica([lay(tensor) for tensor in contents])
        expected = lay(sum(contents))
        for _ in range(2):
            assert all(torch.equal(made, expected) for made in OPS.reduce("sum", value, value))
        strides = [tensor.stride() for tensor in value]
        OPS.reduce("sum", value, value, out=value)
        assert all(torch.equal(tensor, expected) for tensor in value)
        assert [tensor.stride() for tensor in value] == strides

    def test_may_differ(self):
        plain = torch.arange(6.0).reshape(2, 3)
        value = [plain, plain.t().contiguous().t(), torch.zeros(1).expand(2, 3)]
        assert all(torch.equal(made, 2 * plain) for made in treefold.all_reduce(value))

    def test_of_expanded_tensors_are_for_reading(self):
        value = PerReplica([torch.tensor([2.0**r]).expand(4) for r in range(3)])
        for _ in range(2):
            assert torch.equal(OPS.reduce("sum", value, value)[2], torch.full((4,), 7.0))
            with pytest.raises(
                OutputError, match=r"^Replica 0 has an array whose elements share memory\. To take the result"
            ):
                OPS.reduce("sum", value, value, out=value)

    def test_that_overlap_themselves_are_for_reading(self):
        windows = torch.arange(6.0).unfold(0, 3, 1)
        with pytest.raises(OutputError, match="whose elements share memory"):
            treefold.all_reduce([windows], out=[windows])

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
    def test_may_be_small(self, shape):
        for _ in range(2):
            value = PerReplica(tensors(3, shape))
            for made in (*OPS.reduce("mean", value, value), *OPS.reduce("mean", value, value, out=value)):
                assert torch.equal(made, torch.full(shape, 7 / 3))

    def test_lazily_conjugated_or_negated_are_read_as_what_they_mean(self):
        """PyTorch marks them and changes no memory."""
        value = torch.complex(torch.ones(3), torch.full((3,), 2.0))
        for _ in range(2):
            assert torch.equal(treefold.all_reduce([value.conj(), value])[0], torch.full((3,), 2 + 0j))
            assert torch.equal(treefold.all_reduce([value.conj().imag, value.imag])[0], torch.zeros(3))
        with pytest.raises(OutputError, match="cannot be written"):
            treefold.all_reduce([value.conj()], out=[value.conj()])


def _a_leaf(owner, where=""):
    return (
        rf"^{owner} has a leaf that requires gradients{where}\. While gradients are recorded, nothing may be written "
        r"into it: call treefold under torch\.no_grad\(\), or pass tensor\.detach\(\)\. Nothing was written\.$"
    )


class TestAutograd:
    def test_leaves_are_taken_and_results_carry_no_gradients(self):
        for _ in range(2):
            [made, _] = treefold.all_reduce([torch.nn.Parameter(torch.ones(3)), torch.ones(3).requires_grad_()])
            assert torch.equal(made, torch.full((3,), 2.0))
            assert type(made) is torch.Tensor
            assert not made.requires_grad

    @pytest.mark.parametrize("ops", [OPS, ReductionToOneDevice()])
    def test_what_is_being_recorded_is_refused(self, ops):
        """While gradients are recorded, a result without them would be a silent end of the graph."""
        leaf = torch.ones(3).requires_grad_()
        value = PerReplica([{"w": torch.ones(3)}, {"w": 2 * leaf}])
        sentence = (
            r"^Replica 1 has a tensor with grad_fn at \['w'\]\. Results carry no gradients: pass tensor\.detach\(\), "
            r"or call treefold under torch\.no_grad\(\)\.$"
        )
        for _ in range(2):
            with pytest.raises(ValueError, match=sentence):
                ops.reduce("sum", value, "cpu:0")
            with torch.no_grad():
                assert torch.equal(ops.reduce("sum", value, "cpu:0")[0]["w"], torch.full((3,), 3.0))

    def test_broadcast_and_gather_refuse_it_too(self):
        made = 2 * torch.ones(3).requires_grad_()
        with pytest.raises(ValueError, match=r"^The value has a tensor with grad_fn"):
            treefold.broadcast(made, "cpu:1")
        with pytest.raises(ValueError, match=r"^Replica 0 has a tensor with grad_fn"):
            OPS.gather(PerReplica([made]), "cpu:0", 0)
        with pytest.raises(OutputError, match=r"^Component 0 of out has a tensor with grad_fn"):
            treefold.all_reduce([torch.ones(3)], out=[made])

    @pytest.mark.parametrize("calls", [1, 2, 3])
    def test_sees_what_is_written_in_place(self, calls):
        """A backward pass that needs the old values raises, and does not compute with the new ones."""
        leaves = [torch.ones(3).requires_grad_(), torch.ones(3)]
        loss = (leaves[0] ** 2).sum()
        with torch.no_grad():
            for _ in range(calls):
                treefold.all_reduce(leaves, out=leaves)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    @pytest.mark.parametrize("ops", [OPS, ReductionToOneDevice()])
    @pytest.mark.parametrize("kind", [torch.nn.Parameter, lambda data: data.requires_grad_()])
    def test_leaves_are_written_where_nothing_is_recorded_only(self, ops, kind):
        """PyTorch refuses that, too: the leaf would have another value than the graph begins with."""
        given = PerReplica([{"w": torch.full((3,), 2.0**r)} for r in range(2)])
        out = PerReplica([{"w": torch.zeros(3)}, {"w": kind(torch.zeros(3))}])
        for _ in range(2):
            with pytest.raises(OutputError, match=_a_leaf(r"Component 1 of out", r" at \['w'\]")):
                ops.reduce("sum", given, given, out=out)
            assert [component["w"].tolist() for component in out] == [[0.0] * 3] * 2
            for block in (torch.no_grad, torch.inference_mode):
                with block():
                    ops.reduce("sum", given, given, out=out)
                assert [component["w"].tolist() for component in out] == [[3.0] * 3] * 2
                with torch.no_grad():
                    out[0]["w"].zero_()
                    out[1]["w"].zero_()

    def test_leaves_in_place_are_refused_though_the_call_is_known(self):
        leaves = [torch.ones(3).requires_grad_(), torch.ones(3)]
        plain = [torch.ones(3), torch.ones(3)]
        for _ in range(3):
            treefold.all_reduce(plain, out=plain)
        for _ in range(2):
            with pytest.raises(OutputError, match=_a_leaf("Replica 0")):
                treefold.all_reduce(leaves, out=leaves)
        assert [leaf.tolist() for leaf in leaves] == [[1.0] * 3] * 2

    def test_inference_tensors_are_taken(self):
        with torch.inference_mode():
            value = [torch.ones(3), torch.ones(3)]
        for _ in range(3):
            treefold.all_reduce(value, out=value)
        assert torch.equal(value[1], torch.full((3,), 8.0))


class TestStructures:
    def test_of_state_dicts_come_back(self):
        models = [torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)) for _ in range(3)]
        value = PerReplica([model.state_dict() for model in models])
        for _ in range(2):
            mean = OPS.reduce("mean", value, value)[1]
            assert list(mean) == ["0.weight", "0.bias", "1.weight", "1.bias"]
            assert type(mean) is type(value[0])
            wide = sum(model[0].weight.detach().double() for model in models) / 3
            assert torch.equal(mean["0.weight"], wide.float())

    def test_may_be_nested(self):
        value = PerReplica(
            [
                {
                    "w": [torch.full((2,), 2.0**r), None],
                    "e": IndexedSlices(torch.full((1, 2), 2.0**r), torch.tensor([r])),
                }
                for r in range(3)
            ]
        )
        total = OPS.reduce("sum", value, "cpu:0")[0]
        assert torch.equal(total["w"][0], torch.full((2,), 7.0))
        assert total["w"][1] is None
        assert torch.equal(total["e"].values, torch.tensor([[1.0, 1], [2, 2], [4, 4]]))
        assert torch.equal(total["e"].indices, torch.arange(3))


class TestCallbacks:
    def test_cannot_spoil_the_inputs(self):
        ops = ReductionToOneDevice(accumulation_fn=lambda parts: parts[0].add_(parts[1]))
        value = PerReplica([torch.ones(3), torch.full((3,), 2.0)])
        assert torch.equal(ops.reduce("mean", value, "cpu:0")[0], torch.full((3,), 1.5))
        assert torch.equal(value[0], torch.ones(3))

    def test_must_return_a_plain_tensor(self):
        ops = ReductionToOneDevice(accumulation_fn=lambda parts: parts[0].to_sparse())
        with pytest.raises(
            ValueError, match=r"^accumulation_fn returned a tensor of layout torch\.sparse_coo\. It must"
        ):
            ops.reduce("sum", PerReplica([torch.ones(3)]), "cpu:0")
