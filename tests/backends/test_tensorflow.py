"""TensorFlow tensors through the suite that every backend passes, and what is theirs alone."""

import os
import warnings

import ml_dtypes
import numpy as np
import pytest
from wide_reference import fold_block

import treefold
from treefold import ReduceOp
from treefold.backends import backend_of
from treefold.errors import ArgumentError, DeviceError, MismatchError, OutputError
from treefold.fold import Fold
from treefold.testing import CONFORMANCE, Adapter, assert_same_bits

# As in tests/tensorflow_frontend/conftest.py: read when TensorFlow is imported, and said once in a process.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica as TensorflowPerReplica

from treefold.backends.tensorflow_fold import add_rows, fold_tensors

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = ("float32", "bfloat16", "int8", "int64", "complex64")


def make(array, device):
    with tf.device(device):
        return tf.constant(array)


def per_replica(arrays):
    return treefold.PerReplica([make(array, f"cpu:{index}") for index, array in enumerate(arrays)])


class TestConformance:
    @pytest.mark.parametrize("case", CONFORMANCE, ids=lambda case: case.name)
    def test_holds(self, case):
        backend = backend_of(tf.constant(1.0))
        devices = tuple(f"cpu:{index}" for index in range(8))
        assert case.run(Adapter(backend, devices, make, lambda tensor: tensor.numpy(), DTYPES)) is None


class TestBits:
    @pytest.mark.parametrize("dtype", ["float16", BFLOAT16, "float32", "float64", "int32", "complex128"], ids=str)
    @pytest.mark.parametrize("op", ["sum", "mean", "product"])
    def test_are_numpys(self, op, dtype):
        arrays = list(np.random.default_rng(1).normal(scale=9, size=(5, 7, 300)).astype(dtype))
        ops = treefold.HierarchicalCopyAllReduce(num_packs=3)
        expected = ops.reduce(op, treefold.PerReplica(arrays), "cpu:0")[0]
        for _ in range(2):  # the second call takes the fast path
            found = ops.reduce(op, per_replica(arrays), "cpu:0")[0].numpy()
            assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())

    def test_denormals_survive(self):
        """TensorFlow's own ops flush them."""
        value = per_replica([np.full(8, 1e-45, "float32")] * 3)
        assert (
            treefold.ReductionToOneDevice().reduce("sum", value, "cpu:0")[0].numpy().tolist()
            == [float(np.float32(4e-45))] * 8
        )


FORMATS = {"float16": (-14, 15), "bfloat16": (-126, 127), "float32": (-126, 127), "float64": (-1022, 1023)}
PARTS = {"complex64": "float32", "complex128": "float64"}


def values_of_every_size(rng, dtype, count):
    """Return arrays with parts of any exponent of normal numbers, some infinite, some 0."""
    smallest, largest = FORMATS[PARTS.get(dtype, dtype)]

    def drawn():
        exponents = rng.integers(smallest, largest, (count, 600))
        exponents[:, :200] //= 3
        exponents[rng.random(count) < 0.5] *= -1
        values = np.ldexp(rng.uniform(1, 1.9, (count, 600)), np.clip(exponents, smallest, largest - 1))
        values *= rng.choice([-1, 1], values.shape)
        values[rng.random(values.shape) < 0.01] = 0
        values[rng.random(values.shape) < 0.01] = np.inf
        return values

    made = np.empty((count, 600), np.complex128 if dtype in PARTS else np.float64)
    made.real = drawn()
    if dtype in PARTS:
        made.imag = drawn()
    with np.errstate(over="ignore"):
        return list(made.astype(BFLOAT16 if dtype == "bfloat16" else dtype))


class TestArithmeticAsOps:
    """TensorFlow's ops give the reference's bits in graphs, and its numbers in XLA; denormals are their own affair."""

    @pytest.mark.parametrize("is_compiled", [False, True], ids=["traced", "XLA"])
    @pytest.mark.parametrize("dtype", [*FORMATS, *PARTS])
    @pytest.mark.parametrize(
        "fold",
        [
            Fold(ReduceOp.SUM),
            Fold(ReduceOp.MEAN),
            Fold(ReduceOp.MEAN, weights=(10**300, 1, 3 * 10**299, 0, 5 * 10**299)),
            Fold(ReduceOp.PRODUCT),
        ],
        ids=["SUM", "MEAN", "weighted", "PRODUCT"],
    )
    def test_does_not_overflow_or_underflow_on_the_way(self, fold, dtype, is_compiled):
        arrays = values_of_every_size(np.random.default_rng(3), dtype, 5)
        kinds = {"dtype": dtype, "divisor": 5, "result": dtype}
        folded = tf.function(lambda *parts: fold_tensors(parts, fold, **kinds), jit_compile=is_compiled)
        found, expected = folded(*map(tf.constant, arrays)).numpy(), fold_block(arrays, fold, **kinds)
        if dtype in PARTS:
            found, expected = found.view(PARTS[dtype]), expected.view(PARTS[dtype])
        form = ml_dtypes.finfo(found.dtype)
        is_normal = (np.abs(expected) >= float(form.tiny)) | (expected == 0)
        assert (np.abs(found[~is_normal & np.isfinite(expected)]) <= float(form.tiny)).all()
        found, expected = found[is_normal], expected[is_normal]
        if is_compiled:  # XLA multiplies with reciprocals
            wide = found.astype("float64"), expected.astype("float64")
            np.testing.assert_allclose(*wide, rtol=2 * float(form.eps))
        else:
            assert_same_bits(found, expected)
        assert np.isfinite(expected.astype("float64")).sum() > 100

    @pytest.mark.parametrize("dtype", ["bfloat16", "float64", "complex128"])
    def test_infinities_decide_among_rows_of_one_index(self, dtype):
        """As in a sum: the largest numbers beside it overflow only in intermediate results."""
        most = ml_dtypes.finfo(PARTS.get(dtype, dtype)).max
        rows = tf.constant(np.array([-most, -most, np.inf, 1, most, most, -most], dtype))
        added = tf.function(lambda rows: add_rows(rows, tf.constant([1, 1, 1, 0, 2, 2, 2]), 3, dtype))
        assert np.array_equal(added(rows).numpy(), np.array([1, np.inf, most], dtype))


def _spec(index):
    return tf.DeviceSpec(device_type="CPU", device_index=index)


class TestDevices:
    def test_are_the_tensors_own(self):
        ops = treefold.HierarchicalCopyAllReduce()
        for places in ((0, 1, 2), (0, 1, 2), (5, 3, 1)):
            value = treefold.PerReplica([make(np.float32(2**r), f"cpu:{place}") for r, place in enumerate(places)])
            result = ops.reduce("sum", value, value)
            assert result.devices == tuple(f"cpu:{place}" for place in places)
            assert [tensor.device.lower().rpartition("device:")[2] for tensor in result] == list(result.devices)
            assert [float(tensor) for tensor in result] == [7.0] * 3

    def test_contradicted_ones_are_refused(self):
        value = treefold.PerReplica([make(np.ones(3), "cpu:0"), make(np.ones(3), "cpu:1")], ["cpu:0", "cpu:2"])
        with pytest.raises(DeviceError, match="cpu:2"):
            treefold.HierarchicalCopyAllReduce().reduce("sum", value, value)

    def test_that_do_not_exist_are_refused(self):
        sentence = (
            r"^TensorFlow has no device /CPU:8 here\. It has cpu:0, cpu:1, cpu:2, cpu:3, cpu:4 … \(8 devices\)\. Name "
            r"one of these; nothing is placed elsewhere for you\.$"
        )
        with pytest.raises(DeviceError, match=sentence):
            treefold.broadcast(tf.constant(1.0), ["/CPU:8"])

    @pytest.mark.parametrize("make", [lambda index: tf.config.list_logical_devices("CPU")[index], _spec])
    def test_may_be_given_as_tensorflow_has_them(self, make):
        value = treefold.PerReplica([tf.constant(1.0), tf.constant(2.0)])
        ops = treefold.ReductionToOneDevice()
        assert ops.reduce("sum", value, make(5)).devices == ("cpu:5",)
        assert ops.reduce("sum", value, [make(1), "cpu:3"]).devices == ("cpu:1", "cpu:3")


class TestValues:
    def test_pytrees_keep_their_form(self):
        values = [{"kernel": make(np.full((2, 2), 2.0**r), f"cpu:{r}"), "step": None} for r in range(3)]
        for mean in treefold.all_reduce(values, "mean"):
            assert np.array_equal(mean["kernel"].numpy(), np.full((2, 2), 7 / 3))
            assert mean["step"] is None

    def test_variables_count_by_their_value(self):
        variables = [tf.Variable(2.0**r) for r in range(3)]
        assert [float(total) for total in treefold.all_reduce(variables)] == [7.0] * 3
        assert [float(variable) for variable in variables] == [1.0, 2.0, 4.0]

    def test_cannot_take_results(self):
        value = per_replica([np.ones(4), np.ones(4)])
        ops = treefold.HierarchicalCopyAllReduce()
        for _ in range(2):
            ops.reduce("sum", value, value)
            with pytest.raises(OutputError, match="an array that cannot be written"):
                ops.reduce("sum", value, value, out=value)
        assert [tensor.numpy().tolist() for tensor in value] == [[1.0] * 4] * 2

    def test_mixed_with_other_frameworks_are_refused(self):
        with pytest.raises(MismatchError, match=r"^Replica 1 has a NumPy array where replica 0 has a TensorFlow array"):
            treefold.all_reduce([tf.constant([1.0]), np.ones(1, "float32")])

    def test_traced_tensors_run_the_plan_as_ops(self):
        total = tf.function(lambda *parts: treefold.all_reduce(parts)[0], autograph=False, jit_compile=True)
        assert total(*[tf.constant([2.0**r]) for r in range(5)]).numpy().tolist() == [31.0]

    def test_traced_tensors_of_unknown_shape_are_refused(self):
        function = tf.function(lambda x: treefold.all_reduce([x, x])[0], autograph=False)
        with pytest.raises(
            ArgumentError, match=r"a tensor of shape \(None,\).* Set its shape with tf.ensure_shape, or"
        ):
            function.get_concrete_function(tf.TensorSpec([None], tf.float32))

    def test_strings_are_copied_and_not_reduced(self):
        copies = treefold.broadcast(tf.constant(["a", "b"]), ["cpu:0", "cpu:3"])
        assert [copy.numpy().tolist() for copy in copies] == [[b"a", b"b"]] * 2
        with pytest.raises(ValueError, match=r"^string cannot be reduced"):
            treefold.all_reduce([tf.constant("a"), tf.constant("b")])


class Coordinates(tf.experimental.ExtensionType):
    """Two tensors."""

    x: tf.Tensor
    y: tf.Tensor


_TAKEN = "or use the ops of treefold.tensorflow, which take it."
#: What TensorFlow makes of several tensors, and what is said of it; for "{}" its path.
COMPOSITES = {
    "IndexedSlices": (
        lambda: tf.IndexedSlices(tf.ones([2, 1]), tf.constant([0, 1]), tf.constant([4, 1])),
        f"an IndexedSlices of TensorFlow{{}}. Pass treefold.IndexedSlices(x.values, x.indices), {_TAKEN}",
    ),
    "SparseTensor": (
        lambda: tf.sparse.from_dense([[1.0, 0.0]]),
        "a SparseTensor of TensorFlow{}. Pass tf.sparse.to_dense(x).",
    ),
    "RaggedTensor": (
        lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "a RaggedTensor of TensorFlow{}. Pass x.to_tensor(), or x.flat_values if all replicas have rows of the same "
        "lengths.",
    ),
    "ExtensionType": (
        lambda: Coordinates(tf.ones(1), tf.ones(1)),
        "a Coordinates of TensorFlow{}. It is made of several tensors: pass those, for instance as a dict.",
    ),
    "DistributedValues": (
        lambda: TensorflowPerReplica([tf.ones(1), tf.ones(1)]),
        f"a PerReplica of TensorFlow{{}}. Pass treefold.PerReplica(x.values), {_TAKEN}",
    ),
}


@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("kind", COMPOSITES)
class TestComposites:
    """Are named, with what to pass in their place."""

    def told(self, call, kind, is_traced):
        """Make a call with a composite; return the words of the error."""
        make, _ = COMPOSITES[kind]

        def called():
            call(make())
            return 0

        with pytest.raises(ArgumentError) as caught:
            (tf.function(called, autograph=False) if is_traced else called)()
        return str(caught.value)

    @pytest.mark.parametrize(
        "call",
        [
            lambda one: treefold.all_reduce([one, one]),
            lambda one: treefold.reduce([one, one]),
            lambda one: treefold.HierarchicalCopyAllReduce().reduce("sum", one, "cpu:0"),
            lambda one: treefold.ReductionToOneDevice().gather(treefold.PerReplica([one]), "cpu:0", axis=0),
            lambda one: treefold.ReductionToOneDevice().plan(treefold.PerReplica([one]), "cpu:0"),
        ],
        ids=["all_reduce", "reduce", "bare", "gather", "plan"],
    )
    def test_as_values(self, call, kind, is_traced):
        assert self.told(call, kind, is_traced) == "Replica 0 has " + COMPOSITES[kind][1].format("")

    def test_within_a_pytree(self, kind, is_traced):
        words = self.told(lambda one: treefold.all_reduce([{"a": tf.ones(1), "b": one}]), kind, is_traced)
        assert words == "Replica 0 has " + COMPOSITES[kind][1].format(" at ['b']")

    def test_that_are_broadcast(self, kind, is_traced):
        words = self.told(lambda one: treefold.broadcast(one, ["cpu:0"]), kind, is_traced)
        assert words == "The value has " + COMPOSITES[kind][1].format("")


class TestSpecs:
    def test_are_planned(self):
        value = treefold.PerReplica([tf.TensorSpec([3], tf.bfloat16)] * 2)
        assert treefold.ReductionToOneDevice().plan(value, "cpu:0").leaves[0].dtype == "bfloat16"
        with pytest.raises(
            ArgumentError, match=r"^Replica 0 is a TensorSpec, which is no array of a loaded framework\."
        ):
            treefold.ReductionToOneDevice().reduce("sum", value, "cpu:0")


class TestMemory:
    def test_is_read_where_it_lies(self):
        tensor = make(np.arange(1000.0), "cpu:3")
        backend = backend_of(tensor)
        addresses = {backend.host_view(tensor).__array_interface__["data"][0] for _ in range(3)}
        assert addresses == {tensor._numpy().__array_interface__["data"][0]}
        assert not backend.host_view(tensor).flags.writeable

    def test_of_large_results_is_adopted(self):
        """No copy out: the tensor is the memory that the kernel wrote, on every device."""
        value = per_replica([np.full(1 << 16, 2.0**r) for r in range(3)])
        result = treefold.HierarchicalCopyAllReduce().reduce("sum", value, value)
        assert len({tensor._numpy().__array_interface__["data"][0] for tensor in result}) == 1
        assert treefold.host_memory_info()["used_bytes"] >= 1 << 19
