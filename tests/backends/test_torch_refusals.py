import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.backends import read_device
from treefold.errors import ArgumentError, DeviceError, OutputError

OPS = HierarchicalCopyAllReduce()
TAKE = "To take the result it needs a writable PyTorch array of float32 (4,). Nothing was written."


class Liar(torch.Tensor):
    """A tensor that lies about where and what it is, and about its memory."""

    device = property(lambda _: torch.device("cuda:3"))
    dtype = property(lambda _: torch.float32)
    shape = property(lambda _: torch.Size([4]))
    requires_grad = property(lambda _: False)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return 5

    def stride(self):
        return (1,)


class Plain(torch.Tensor):
    """A subclass without malice."""


def quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def freed():
    """Return a tensor with freed storage, as sharded training leaves parameters."""
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(8)
    return tensor


def fake():
    """Return a tensor of a compiler's, which has a shape and says it is on the CPU."""
    with FakeTensorMode():
        return torch.ones(4)


SUBCLASS = "A subclass may mean something else; pass tensor.as_subclass(torch.Tensor), or the plain tensors inside."
NO_MEMORY = "Its storage was freed, or a transform of torch.func stands for it; call treefold where it has memory."
REFUSED = {
    "lying": (
        lambda: torch.arange(6).as_subclass(Liar),
        f"a Liar, a subclass of torch.Tensor. {SUBCLASS}",
    ),
    "subclass": (lambda: torch.ones(4).as_subclass(Plain), f"a Plain, a subclass of torch.Tensor. {SUBCLASS}"),
    "fake": (fake, f"a FakeTensor, a subclass of torch.Tensor. {SUBCLASS}"),
    "sparse": (
        lambda: torch.ones(4).to_sparse(),
        "a tensor of layout torch.sparse_coo. "
        "Pass treefold.IndexedSlices(values, indices, shape) for sparse rows, or call to_dense().",
    ),
    "nested": (nested, "a nested tensor. Pass the tensors that it consists of, in a list."),
    "quantised": (
        quantised,
        "a tensor of dtype torch.qint8. "
        "Convert it to a plain dtype first: dequantize() for a quantised tensor, to(torch.float32) for others.",
    ),
    "meta": (
        lambda: torch.ones(4, device="meta"),
        "a meta tensor. Only ops.plan takes tensors without contents; put it on a device first.",
    ),
    "freed": (freed, f"a tensor without memory of its own. {NO_MEMORY}"),
    "shrunk": (shrunk, f"a tensor without memory of its own. {NO_MEMORY}"),
}


def said_by(call, *args):
    with pytest.raises(ArgumentError) as caught:
        call(*args)
    return str(caught.value)


@pytest.fixture
def seen():
    """Return ops that have reduced two tensors of four floats before, into new ones and in place."""
    ops = HierarchicalCopyAllReduce()
    for _ in range(2):
        value = PerReplica([torch.ones(4), torch.ones(4)])
        ops.reduce("sum", value, value)
        ops.reduce("sum", value, value, out=value)
    return ops


@pytest.mark.parametrize(("make", "sentence"), REFUSED.values(), ids=REFUSED)
class TestRefusals:
    """Tensors that cannot be read as they are get an error, never a wrong number."""

    def test_name_the_replica(self, make, sentence, seen):
        """In the first call, and in a call after an equal one went well, wherever the tensor stands."""
        for ops in (HierarchicalCopyAllReduce(), seen):
            for first in (True, False):
                value = PerReplica([make(), torch.ones(4)] if first else [torch.ones(4), make()])
                expected = f"Replica {0 if first else 1} has {sentence}"
                assert said_by(ops.reduce, "sum", value, ("cpu:0", "cpu:1")) == expected
                assert said_by(ops.gather, value, "cpu:0", 0) == expected

    def test_hold_for_broadcasts(self, make, sentence, seen):
        assert said_by(seen.broadcast, make(), "cpu:1") == f"The value has {sentence}"

    def test_hold_for_out(self, make, sentence, seen):
        good = torch.zeros(4)
        value = PerReplica([torch.ones(4), torch.ones(4)])
        with pytest.raises(OutputError) as caught:
            seen.reduce("sum", value, value, out=PerReplica([good, make()], value.devices))
        assert str(caught.value) == f"Component 1 of out has {sentence.partition('. ')[0]}. {TAKE}"
        assert (good == 0).all()


class TestPlans:
    def test_are_not_made_for_what_has_no_shape(self):
        expected = "The value has a nested tensor. Pass the tensors that it consists of, in a list."
        assert said_by(HierarchicalCopyAllReduce().plan, PerReplica([nested()]), "cpu:0") == expected


class TestDevices:
    def test_of_a_liar_are_its_real_ones(self):
        """As a destination a tensor is asked for its device, which it cannot make up."""
        liar = torch.ones(4).as_subclass(Liar)
        assert liar.device.type == "cuda"
        assert OPS.reduce("sum", PerReplica([torch.ones(4)]), liar).devices == ("cpu:0",)

    def test_of_the_cpu_are_as_many_as_are_named(self):
        value = PerReplica([torch.ones(2), torch.ones(2)], devices=["cpu:7", "cpu:3"])
        assert OPS.reduce("sum", value, ["cpu:5", "cpu:11"]).devices == ("cpu:5", "cpu:11")

    @pytest.mark.parametrize(
        ("device", "built", "count", "said"),
        [
            ("cuda:0", None, 0, "cuda:0 here. This PyTorch is built without CUDA. It has {}."),
            (torch.device("cuda:0"), None, 0, "cuda:0 here. This PyTorch is built without CUDA. It has {}."),
            ("gpu:1", "13.0", 0, "gpu:1 here. PyTorch finds no GPU. It has {}."),
            ("cuda:2", "13.0", 2, "cuda:2 here. It has {}; gpu:0, gpu:1."),
            ("meta:0", None, 0, "meta:0 here. It has {}."),
            ("xpu:0", None, 0, "xpu:0 here. It has {}."),
        ],
    )
    def test_must_exist(self, device, built, count, said, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        with pytest.raises(DeviceError) as caught:
            OPS.reduce("sum", PerReplica([torch.ones(2)]), device)
        there = "cpu:0, cpu:1 and so on, which share the host's memory"
        end = "Name one of these; nothing is placed elsewhere for you."
        assert str(caught.value) == f"PyTorch has no device {said.format(there)} {end}"

    def test_may_be_given_as_pytorch_has_them(self):
        cpu, tensors = torch.device("cpu"), [torch.ones(2), torch.full((2,), 2.0)]
        for destinations in (cpu, [cpu, torch.device("cpu:1")]):
            result = OPS.reduce("sum", PerReplica(tensors, [cpu, "cpu:1"]), destinations)
            assert result.devices == ("cpu:0", "cpu:1")[: len(result)]
            assert result.on(cpu).tolist() == [3.0] * 2
        assert treefold.reduce(tensors, to=cpu).tolist() == [3.0] * 2
        assert len(treefold.broadcast(tensors[0], [cpu, cpu])) == 2
        assert repr(treefold.ReductionToOneDevice(cpu)) == "ReductionToOneDevice(reduce_to_device='cpu:0')"
        assert repr(treefold.choose_cross_device_ops([cpu, "cpu:1"]).ops) == "ReductionToOneDevice()"

    def test_without_an_index_are_the_current_one(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        assert read_device(torch.device("cuda")) == "gpu:1"
        assert read_device(torch.device("cuda:0")) == "gpu:0"


class TestPlan:
    @pytest.mark.parametrize("make", [lambda: torch.ones(4, device="meta"), fake])
    def test_takes_tensors_without_contents(self, make):
        value = PerReplica([torch.ones(4) for _ in range(3)])
        plan = OPS.plan(PerReplica([make() for _ in range(3)]), value)
        assert plan == OPS.plan(value, value)
        assert plan.executor == "host"


class TestTransforms:
    def test_of_torch_func_are_refused(self):
        calls = []

        def reduced(tensor):
            calls.append(said_by(treefold.all_reduce, [tensor]))
            return (tensor * tensor).sum()

        torch.vmap(reduced)(torch.ones(2, 3))
        torch.func.grad(reduced)(torch.ones(3))
        assert len(calls) == 2
        assert all(NO_MEMORY in sentence or "grad_fn" in sentence for sentence in calls)

    @pytest.mark.parametrize("start", [0, 1])
    def test_to_functions_too(self, start):
        """The tensor that it passes on claims memory and has none; also as ``out``, and after an equal call."""
        calls, other = [], torch.ones(4)

        def reduced(tensor):
            stand_in = torch.cat([tensor, tensor])[start : start + 4]
            for _ in range(3):
                treefold.all_reduce([other, other])
                calls.append(said_by(treefold.all_reduce, [stand_in, other]))
                with pytest.raises(OutputError, match="a tensor without memory of its own"):
                    treefold.all_reduce([other, other], out=[other, stand_in])
            return tensor

        torch.func.functionalize(reduced)(torch.ones(4))
        assert calls == [f"Replica 0 has a tensor without memory of its own. {NO_MEMORY}"] * 3


class TestZerosWithoutMemory:
    """Autograd makes zeros for which PyTorch allocates nothing."""

    @pytest.fixture(params=[0, 1])
    def zeros(self, request):
        weight = torch.ones(5, requires_grad=True)
        torch.sgn(weight).sum().backward()
        return weight.grad[request.param :][:4]

    def test_are_read(self, zeros, seen):
        for _ in range(3):
            value = PerReplica([zeros, torch.full((4,), 2.0)])
            assert [one.tolist() for one in seen.reduce("sum", value, value)] == [[2.0] * 4] * 2
        assert [one.tolist() for one in treefold.broadcast(zeros, ["cpu:0", "cpu:1"])] == [[0.0] * 4] * 2

    def test_are_not_written(self, zeros):
        good, value = torch.ones(4), [torch.ones(4), torch.ones(4)]
        with pytest.raises(OutputError, match=r"^Component 1 of out has an array that cannot be written\."):
            treefold.all_reduce(value, out=[good, zeros])
        assert good.tolist() == [1.0] * 4


class TestThreads:
    def test_may_reduce_at_the_same_time(self, seen):
        def work(number):
            right = []
            for _ in range(50):
                value = PerReplica([torch.full((1000,), float(number + 2**r)) for r in range(2)])
                seen.reduce("sum", value, value, out=value)
                right.append(all((tensor == 2 * number + 3).all() for tensor in value))
            return right

        with ThreadPoolExecutor(4) as pool:
            assert all(all(right) for right in pool.map(work, range(4)))


class TestFastPath:
    def test_is_taken_by_plain_tensors(self, seen, monkeypatch):
        leaves = PerReplica([torch.nn.Parameter(torch.ones(4)), torch.ones(4)])
        seen.reduce("sum", leaves, leaves)
        monkeypatch.setattr("treefold.ops.base._read_entries", None)
        value = PerReplica([torch.full((4,), 2.0), torch.ones(4)])
        assert torch.equal(seen.reduce("sum", value, value)[1], torch.full((4,), 3.0))
        assert seen.reduce("sum", value, value, out=value)[0] is value[0]
        assert torch.equal(seen.reduce("sum", leaves, leaves)[1], torch.full((4,), 2.0))

    def test_tells_frameworks_apart(self, seen):
        arrays = PerReplica([torch.ones(4).numpy(), torch.ones(4).numpy()])
        assert type(seen.reduce("sum", arrays, arrays)[0]) is type(arrays[0])
