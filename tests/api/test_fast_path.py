"""Which calls are recognised, and how often a call looks at its arrays."""

import collections
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica, ReduceOp, ReductionToOneDevice
from treefold.backends import interface, loaded_backends

COUNT = 8
FRAMEWORKS = {"numpy": np.array, "torch": torch.from_numpy, "jax": jnp.asarray}
MUTABLE = ["numpy", "torch"]


def replicas(make, dtype="float32", length=6):
    """Return one array per replica; replica r brings 2**r."""
    return [make(np.full(length, 2**r, dtype)) for r in range(COUNT)]


def total(arrays):
    return sum(np.asarray(array).astype("float64") for array in arrays)


@pytest.fixture
def slow_calls(monkeypatch):
    """Return the list of calls that took the slow path."""
    slow = []
    base = sys.modules["treefold.ops.base"]
    read = base._read_entries
    monkeypatch.setattr(base, "_read_entries", lambda *args, **kinds: slow.append(1) or read(*args, **kinds))
    return slow


@pytest.fixture
def asked(monkeypatch):
    """Return how often each question was asked of an array, by the question and the array's identity."""
    counts = collections.Counter()

    def counted(question, answer):
        def ask(*args):
            counts[question, id(args[-1])] += 1
            return answer(*args)

        return ask

    reader = sys.modules["treefold.calls.reader"]
    for name in ("backend_of", "flatten"):
        for module in ("calls.reader", "calls.entry", "calls.arguments", "values.distributed"):
            owner = sys.modules[f"treefold.{module}"]
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, counted(name, getattr(reader, name)))
    for backend in loaded_backends():
        for name in ("refusal", "shape_dtype", "device_of", "host_view"):
            kind = next(kind for kind in type(backend).__mro__ if name in vars(kind))
            if kind is not interface.ArrayBackend and not hasattr(vars(kind)[name], "is_counted"):
                method = counted(name, vars(kind)[name])
                method.is_counted = True
                monkeypatch.setattr(kind, name, method)
    return counts


class TestTheFirstCall:
    """A call of a kind that nobody made before is validated and planned; its arrays are read once."""

    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_asks_each_array_once(self, framework, asked):
        arrays = replicas(FRAMEWORKS[framework])
        value = PerReplica(arrays)
        HierarchicalCopyAllReduce().reduce("sum", value, value)
        own = {
            (question, index): asked[question, id(array)] for index, array in enumerate(arrays) for question in KINDS
        }
        if framework == "jax":  # JAX's device_of asks refusal itself
            own = {key: count for key, count in own.items() if key[0] != "refusal"}
        assert max(own.values()) == 1
        assert not [question for question, _ in asked if question in {"backend_of", "flatten"}]

    def test_asks_each_array_once_in_place(self, asked):
        arrays = replicas(np.array)
        value = PerReplica(arrays)
        HierarchicalCopyAllReduce().reduce("sum", value, value, out=value)
        assert max(asked.values()) == 1

    def test_flattens_each_component_once(self, asked):
        arrays = replicas(np.array)
        trees = [{"a": array, "b": [array[:2].copy()]} for array in arrays]
        value = PerReplica(trees)
        HierarchicalCopyAllReduce().reduce("sum", value, value, out=value)
        assert [asked["flatten", id(tree)] for tree in trees] == [1] * COUNT
        assert max(asked.values()) == 1

    def test_asks_strided_arrays_once(self, asked):
        arrays = [np.repeat(array, 2)[::2] for array in replicas(np.array)]
        value = PerReplica(arrays)
        assert (HierarchicalCopyAllReduce().reduce("sum", value, value)[0] == 255).all()
        assert [asked["backend_of", id(array)] for array in arrays] == [1] * COUNT
        assert max(asked.values()) == 1


KINDS = ("backend_of", "flatten", "refusal", "shape_dtype", "device_of", "host_view")


class TestTheSecondCall:
    """The second call of a kind is recognised."""

    @pytest.mark.parametrize("framework", FRAMEWORKS)
    @pytest.mark.parametrize("op", ["sum", "mean", ReduceOp.MAX])
    def test_into_new_results(self, framework, op, slow_calls):
        ops = HierarchicalCopyAllReduce()
        for _ in range(2):
            value = PerReplica(replicas(FRAMEWORKS[framework]))
            results = ops.reduce(op, value, value)
        assert len(slow_calls) == 1
        expected = {"sum": 255.0, "mean": 255 / 8, ReduceOp.MAX: 128.0}[op]
        assert all((np.asarray(array) == expected).all() for array in results)

    @pytest.mark.parametrize("framework", MUTABLE)
    def test_in_place(self, framework, slow_calls):
        ops = HierarchicalCopyAllReduce()
        for other in (False, True):
            slow_calls.clear()
            for _ in range(2):
                arrays = replicas(FRAMEWORKS[framework])
                value = PerReplica(arrays)
                result = ops.reduce("sum", value, value, out=PerReplica(arrays) if other else value)
                assert all(array is one for array, one in zip(result, arrays, strict=True))
                assert all((np.asarray(array) == 255).all() for array in arrays)
            assert len(slow_calls) == 1

    @pytest.mark.parametrize("framework", MUTABLE)
    def test_into_given_arrays(self, framework, slow_calls):
        ops, make = HierarchicalCopyAllReduce(), FRAMEWORKS[framework]
        for _ in range(2):
            value, out = PerReplica(replicas(make)), PerReplica(replicas(make))
            ops.reduce("sum", value, value, out=out)
            assert all((np.asarray(array) == 255).all() for array in out)
            assert [int(array[0]) for array in value] == [2**r for r in range(COUNT)]
        assert len(slow_calls) == 1

    @pytest.mark.parametrize("destinations", ["cpu:3", ("cpu:0", "cpu:1"), ["cpu:1", "cpu:0"]])
    def test_with_named_destinations(self, destinations, slow_calls):
        ops = ReductionToOneDevice()
        for _ in range(2):
            result = ops.reduce("sum", PerReplica(replicas(np.array)), destinations)
        assert len(slow_calls) == 1
        assert result.devices == ((destinations,) if isinstance(destinations, str) else tuple(destinations))

    def test_by_the_short_form(self, slow_calls):
        for _ in range(3):
            made = treefold.all_reduce(replicas(np.array, "float32", 1237))
        assert len(slow_calls) <= 1
        assert all((array == 255).all() for array in made)

    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_of_a_batch(self, framework, slow_calls):
        ops, make = HierarchicalCopyAllReduce(), FRAMEWORKS[framework]
        for _ in range(2):
            flat = PerReplica(replicas(make))
            trees = PerReplica([{"a": array, "b": (array,)} for array in replicas(make, "int32", 3)])
            one, tree = ops.batch_reduce("sum", [(flat, flat), (trees, "cpu:0")])
        assert len(slow_calls) == 1
        assert (np.asarray(one[7]) == 255).all()
        assert (np.asarray(tree[0]["b"][0]) == 255).all()

    def test_of_contributions_that_are_one_array(self, slow_calls):
        ops, array = HierarchicalCopyAllReduce(), np.full(5, 3.0)
        for _ in range(2):
            assert (ops.reduce("sum", PerReplica([array, array]), "cpu:0")[0] == 6).all()
        assert len(slow_calls) == 1

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "complex64", "bool"])
    def test_of_tensors_of_any_dtype(self, dtype, slow_calls):
        kind, ops = getattr(torch, dtype), HierarchicalCopyAllReduce()
        for _ in range(2):
            tensors = [torch.tensor([1, 0, 1]).to(kind) for _ in range(3)]
            value = PerReplica(tensors)
            ops.reduce("max" if dtype == "bool" else "sum", value, value, out=value)
            expected = torch.tensor([1, 0, 1]).to(kind) if dtype == "bool" else torch.tensor([3, 0, 3]).to(kind)
            assert all(torch.equal(tensor, expected) for tensor in tensors)
        assert len(slow_calls) == 1


def overlapping():
    memory = torch.ones(10)
    return [memory[:6], memory[4:]]


def resized():
    tensors = [torch.ones(6), torch.ones(6)]
    tensors[1].untyped_storage().resize_(8)
    return tensors


def recorded():
    """Return a tensor that autograd has recorded, and one that it has not."""
    return [torch.ones(6).requires_grad_() * 2, torch.ones(6)]


def locked():
    arrays = [np.ones(6, "float32"), np.ones(6, "float32")]
    arrays[1].flags.writeable = False
    return arrays


def twice():
    array = np.ones(6, "float32")
    return [array, array]


class Subclass(torch.Tensor):
    """May mean something else."""


REFUSED = {
    "overlapping tensors": overlapping,
    "storage too small": resized,
    "recorded by autograd": recorded,
    "a read-only array": locked,
    "an array twice": twice,
    "a conjugate": lambda: [torch.ones(6, dtype=torch.complex64).conj(), torch.ones(6, dtype=torch.complex64)],
    "a negative": lambda: [torch._neg_view(torch.ones(6)), torch.ones(6)],
    "sparse": lambda: [torch.ones(6).to_sparse(), torch.ones(6).to_sparse()],
    "meta": lambda: [torch.ones(6, device="meta"), torch.ones(6)],
    "a subclass": lambda: [torch.ones(6), torch.ones(6).as_subclass(Subclass)],
    "another shape": lambda: [np.ones(6, "float32"), np.ones((6, 1), "float32")],
    "another dtype": lambda: [np.ones(6, "float32"), np.ones(6, "float64")],
    "another framework": lambda: [np.ones(6, "float32"), torch.ones(6)],
    "expanded": lambda: [torch.ones(1).expand(6), torch.ones(6)],
    "immutable": lambda: [jnp.ones(6), jnp.ones(6)],
    "numbers": lambda: [1.0, 2.0],
}


class TestHostileArrays:
    """However often calls of their kind went well, they get what the slow path has for them."""

    @pytest.fixture
    def ops(self):
        """Return ops that have reduced two plain arrays of each kind, in place where that can be."""
        made = HierarchicalCopyAllReduce()
        for kind in ("float32", "complex64"):
            for make in FRAMEWORKS.values():
                value = PerReplica([make(np.ones(6, kind)) for _ in range(2)])
                made.reduce("sum", value, value)
                if make is not jnp.asarray:
                    made.reduce("sum", value, value, out=value)
        return made

    @pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
    def test_in_place_are_refused_as_by_a_first_call(self, make, ops):
        sentences = []
        for made in (HierarchicalCopyAllReduce(), ops):
            arrays = make()
            before = [array.clone() if type(array) is torch.Tensor and array.is_cpu else array for array in arrays]
            value = PerReplica(arrays)
            with pytest.raises(ValueError, match=r"[a-z]") as error:
                made.reduce("sum", value, value, out=value)
            sentences.append(str(error.value))
            if make is not resized:
                pairs = zip(arrays, before, strict=True)
                assert all(
                    bool((one == other).all())
                    for one, other in pairs
                    if hasattr(one, "numpy") and one.is_cpu and one.layout is torch.strided
                )
        assert sentences[0] == sentences[1]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: [torch._neg_view(torch.ones(6)), torch.ones(6)],
            lambda: [torch.ones(12)[::2], torch.ones(6)],
            lambda: [torch.ones(1).expand(6), torch.ones(6)],
            overlapping,
            lambda: [np.ones(12, "float32")[::2], np.ones(6, "float32")],
            lambda: [np.ones(6, ">f4"), np.ones(6, "float32")],
            locked,
            twice,
        ],
    )
    def test_into_new_results_are_right(self, make, ops):
        arrays = make()
        result = ops.reduce("sum", PerReplica(arrays), "cpu:0")[0]
        np.testing.assert_array_equal(
            np.asarray(result), total([a.resolve_neg() if hasattr(a, "resolve_neg") else a for a in arrays])
        )

    def test_tensors_of_inference_are_written(self, ops):
        with torch.inference_mode():
            tensors = [torch.ones(6)]
        tensors.append(torch.ones(6))
        value = PerReplica(tensors)
        ops.reduce("sum", value, value, out=value)
        assert [tensor.tolist() for tensor in tensors] == [[2.0] * 6] * 2
        assert tensors[1]._version == 1

    def test_writes_are_counted(self, ops):
        tensors = [torch.ones(6), torch.ones(6)]
        needed = torch.ones(6, requires_grad=True) * tensors[0]
        value = PerReplica(tensors)
        ops.reduce("sum", value, value, out=value)
        assert [tensor._version for tensor in tensors] == [1, 1]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            needed.sum().backward()

    def test_leaves_of_autograd_are_taken(self, ops, slow_calls):
        for _ in range(2):
            value = PerReplica([torch.nn.Parameter(torch.ones(6)), torch.ones(6).requires_grad_()])
            [made, _] = ops.reduce("sum", value, value)
        assert len(slow_calls) == 1  # they may not be written, so they are another kind than plain tensors
        assert not made.requires_grad
        assert made.tolist() == [2.0] * 6

    def test_transforms_are_refused(self, ops):
        """The stand-in for a tensor within a transform has no memory."""
        with pytest.raises(ValueError, match="memory of its own"):
            torch.func.grad(lambda tensor: ops.reduce("sum", PerReplica([tensor, tensor]), "cpu:0")[0].sum())(
                torch.ones(6)
            )

    def test_jax_may_change_its_mind_about_wide_results(self):
        import jax  # noqa: PLC0415

        ops, dtypes = ReductionToOneDevice(), []
        value = PerReplica([jnp.arange(4), jnp.arange(4)])
        for is_wide in (False, True, False, True):
            with jax.enable_x64(is_wide):
                dtypes.append(str(ops.reduce("mean", value, "cpu:0")[0].dtype))
        assert dtypes == ["float32", "float64", "float32", "float64"]
