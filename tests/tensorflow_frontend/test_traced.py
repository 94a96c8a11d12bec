"""Reductions inside ``tf.function`` on CPU devices: the bits of NumPy, and what they cost the graph."""

import gc
import itertools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from treefold import CommunicationOptions
from treefold.backends.numpy_fold import fold_block
from treefold.errors import ArgumentError, CallError, DeviceError
from treefold.execution import tensorflow_graphs as operation
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.tensorflow import HierarchicalCopyAllReduce, ReductionToOneDevice, traced

FLOATS = ("float16", np.dtype(ml_dtypes.bfloat16), "float32", "float64")
OTHERS = ("int8", "uint16", "int32", "int64", "uint64", "complex64", "complex128")
COMPLEX = ("complex64", "complex128")
OPS = [
    (op, dtype)
    for op, dtype in itertools.product(("sum", "mean", "min", "max", "product"), (*FLOATS, *OTHERS))
    if not (op in {"min", "max"} and dtype in COMPLEX)
]
LARGE = 1 << 17  # elements: more than travel in a pack


def usual(dtype, count, length):
    """Return numbers that sums and means neither lose bits of nor overflow, and both zeros."""
    random = np.random.default_rng(length + count)
    numbers = random.normal(scale=50, size=(count, length))
    numbers[:, 0], numbers[:, 1], numbers[:, 2] = 0.0, -0.0, 2.0 ** np.arange(count)
    if np.dtype(dtype).kind == "u":
        numbers = np.abs(numbers)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * random.normal(scale=50, size=(count, length))
    return list(numbers.astype(dtype))


def special(dtype, count):
    """Return each special number of a dtype in each replica beside each of the others in the next one."""
    info = ml_dtypes.finfo(dtype)
    tiny, small, huge = float(info.smallest_subnormal), float(info.tiny), float(info.max)
    numbers = [0.0, -0.0, 1.0, -1.0, tiny, -tiny, 3 * tiny, small, -small, 1.5 * small, huge, -huge, huge / 2]
    numbers += [float("inf"), float("-inf"), float("nan")]
    pairs = np.array(list(itertools.product(numbers, numbers))).astype(dtype)
    return [pairs[:, replica % 2] if replica < 2 else np.roll(pairs[:, 0], replica) for replica in range(count)]


def reference(op, arrays):
    fold, dtype = Fold(ReduceOp.parse(op)), arrays[0].dtype.name
    return fold_block(arrays, fold, dtype=dtype, divisor=len(arrays), result=fold.result_dtype(dtype))


def without_signs_of_nans(array):
    """Return an array with equal NaNs, which promise nothing but to be NaN."""
    if array.dtype.kind not in "fcV":
        return array
    parts = array.view({"c8": "float32", "c16": "float64"}.get(array.dtype.str[1:], array.dtype)).copy()
    parts[np.isnan(parts)] = np.nan
    return parts


def assert_same_bits(found, expected):
    array = np.asarray(found.numpy())
    assert array.dtype == expected.dtype
    assert without_signs_of_nans(array).tobytes() == without_signs_of_nans(expected).tobytes()


def traced_total(op, value, destination="cpu:0"):
    return tf.function(lambda value: HierarchicalCopyAllReduce().reduce(op, value, destination))(value)


def hostile(dtype):
    """Return a strategy for the bits of floats: any, and those around every threshold of sums and means."""
    info = ml_dtypes.finfo(dtype)
    width, mantissa = f"uint{info.bits}", info.nmant
    infinity = int(np.array(np.inf, dtype).view(width))
    exponents = st.one_of(
        st.integers(0, mantissa + 12), st.integers(0, 12).map(lambda less: (infinity >> mantissa) - less)
    )
    near = st.builds(lambda exponent, ulps: max(0, (exponent << mantissa) + ulps), exponents, st.integers(-2, 2))
    magnitudes = st.one_of(st.just(0), near, st.integers(0, infinity))
    signed = st.builds(lambda bits, sign: bits | sign << (info.bits - 1), magnitudes, st.integers(0, 1))
    return st.lists(signed, min_size=24, max_size=24).map(lambda bits: np.array(bits, width).view(dtype))


#: Traced once for each op, dtype and number of replicas, however many examples there are.
REDUCTIONS = {
    op: tf.function(lambda value, op=op: HierarchicalCopyAllReduce().reduce(op, value, "cpu:0"))
    for op in ("sum", "mean", "min", "max", "product")
}


@pytest.fixture
def calls(monkeypatch):
    """Return a list that grows by the number of values of each call from a graph into the kernel."""
    made = []

    def counted(jobs, fold):
        made.append(len(jobs))
        return fold_batch(jobs, fold)

    fold_batch = traced.fold_batch
    monkeypatch.setattr(traced, "fold_batch", counted)
    return made


@pytest.fixture
def operations():
    """Return a function that lists the operations, constants aside, which a function adds to a graph."""

    def count(function, value):
        added = []

        def counted(value):
            graph = tf.compat.v1.get_default_graph()
            before = len(graph.get_operations())
            result = function(value)
            added.extend(operation.type for operation in graph.get_operations()[before:])
            return result

        tf.function(counted).get_concrete_function(value)
        return [kind for kind in added if kind not in {"Const", "Placeholder"}]

    return count


@pytest.fixture(params=["by an operation", "by a call"])
def either_way(request, monkeypatch):
    """Run a test with the operation, and as where TensorFlow's library has no interface for kernels; return which."""
    if request.param == "by a call":
        monkeypatch.setattr(operation, "ensure_registered", lambda: False)
    return request.param


class TestBits:
    @pytest.mark.parametrize(("count", "length"), [(1, 37), (3, 37), (4, 37), (5, LARGE)])
    @pytest.mark.parametrize(("op", "dtype"), OPS, ids=str)
    def test_are_numpys(self, op, dtype, count, length, either_way, calls, on_devices):
        """And with the operation, no graph calls into Python."""
        arrays = usual(dtype, count, length)
        assert_same_bits(traced_total(op, on_devices(arrays)), reference(op, arrays))
        assert calls == [] or either_way == "by a call"

    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_the_largest_values_are_numpys(self, op, on_devices):
        arrays = usual("float32", 3, 1 << 21)
        assert_same_bits(traced_total(op, on_devices(arrays)), reference(op, arrays))

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4), (1, 1)], ids=str)
    def test_of_any_shape_are_numpys(self, shape, on_devices):
        arrays = [np.full(shape, 2.0**replica, "float32") for replica in range(3)]
        value = on_devices(arrays)
        reduce = tf.function(lambda value: HierarchicalCopyAllReduce().reduce("sum", value, "cpu:0"))
        assert reduce.get_concrete_function(value).output_shapes == tf.TensorShape(shape)
        assert_same_bits(reduce(value), np.full(shape, 7, "float32"))

    @pytest.mark.parametrize("count", [2, 3, 5])
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_special_values_are_numpys(self, op, dtype, count, on_devices):
        arrays = special(dtype, count)
        assert_same_bits(traced_total(op, on_devices(arrays)), reference(op, arrays))

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("op", REDUCTIONS)
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_of_hostile_values_are_those_of_the_eager_call(self, op, dtype, data, on_devices):
        numbers = data.draw(hostile(np.dtype(dtype)))
        length, count = data.draw(st.sampled_from([(1, 2), (1, 4), (2, 3), (4, 6)]))
        value = on_devices([numbers[length * replica : length * (replica + 1)] for replica in range(count)])
        expected = HierarchicalCopyAllReduce().reduce(op, value, "cpu:0")
        assert_same_bits(REDUCTIONS[op](value), np.asarray(expected.numpy()))

    @pytest.mark.parametrize("exponent", range(-140, -85, 3))
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_small_numbers_are_numpys(self, op, exponent, on_devices):
        """Around the magnitudes at which means of normal numbers become denormal ones."""
        numbers = np.random.default_rng(7).uniform(-4, 4, (5, 64)) * 2.0**exponent
        arrays = list(numbers.astype("float32"))
        assert_same_bits(traced_total(op, on_devices(arrays)), reference(op, arrays))

    @pytest.mark.parametrize("count", [2, 3, 5])
    @pytest.mark.parametrize("exponent", range(-106, -96))
    def test_of_neighbouring_numbers_are_numpys(self, exponent, count, on_devices):
        """Their difference is the last bit of either, and the mean of such bits may be a denormal number."""
        arrays = [np.float32([2.0**exponent * factor]) for factor in (1, -1 - 2.0**-23, 0, 0, 0)[:count]]
        assert_same_bits(traced_total("mean", on_devices(arrays)), reference("mean", arrays))

    @pytest.mark.parametrize("exponent", range(121, 128))
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_large_numbers_are_numpys(self, op, exponent, on_devices):
        """Around the magnitudes at which sums of bfloat16 leave float32, in which they are added."""
        numbers = np.random.default_rng(7).uniform(0.5, 1.99, (5, 64)) * 2.0**exponent
        arrays = list(numbers.astype(ml_dtypes.bfloat16))
        assert_same_bits(traced_total(op, on_devices(arrays)), reference(op, arrays))

    def test_of_one_tensor_in_all_replicas_are_numpys(self, on_devices):
        """TensorFlow's optimizer would add equal tensors by multiplying."""
        array = np.random.default_rng(7).normal(size=64)

        def reduce(value):
            same = type(value)([value.values[0]] * 7)
            return ReductionToOneDevice().reduce("sum", same, "cpu:0")

        assert_same_bits(tf.function(reduce)(on_devices([array])), reference("sum", [array] * 7))

    def test_of_a_mixed_batch_are_numpys(self, on_devices):
        batch = [usual(dtype, 3, length) for dtype in ("float32", "int64", "float16") for length in (5, 8, LARGE)]
        shapes = [(5,), (2, 4), (2, LARGE // 2)] * 3
        values = [on_devices([a.reshape(shape) for a in arrays]) for arrays, shape in zip(batch, shapes, strict=True)]

        def reduce(values):
            pairs = [(value, ["cpu:1", "cpu:0"] if index % 2 else value) for index, value in enumerate(values)]
            return [total.values for total in HierarchicalCopyAllReduce().batch_reduce("mean", pairs)]

        results = tf.function(reduce)(values)
        for index, (components, arrays, shape) in enumerate(zip(results, batch, shapes, strict=True)):
            assert len(components) == (2 if index % 2 else 3)
            for component in components:
                assert_same_bits(component, reference("mean", arrays).reshape(shape))

    @pytest.mark.parametrize("dtype", ["float32", "int64"])
    def test_of_empty_values_are_empty(self, dtype, on_devices):
        arrays = [[np.zeros((0, 3), dtype)] * 2, [np.array([2**replica], dtype) for replica in range(2)]]
        values = [on_devices(pair) for pair in arrays]

        def reduce(values):
            return HierarchicalCopyAllReduce().batch_reduce("sum", [(value, "cpu:0") for value in values])

        assert [part.numpy().tolist() for part in tf.function(reduce)(values)] == [[], [3]]
        assert [part.shape for part in tf.function(reduce)(values[:1])] == [(0, 3)]

    def test_of_a_batch_with_rows_and_unknown_shapes_are_numpys(self, on_devices):
        rows = [
            tf.IndexedSlices(tf.fill((1, 2), 2.0**replica), tf.constant([replica]), tf.constant([4, 2]))
            for replica in range(3)
        ]
        dense = usual("float32", 3, 9)
        sparse_value, value = on_devices(rows), on_devices(dense)

        @tf.function(input_signature=[[tf.TensorSpec([None])] * 3])
        def reduce(unknown):
            values = [sparse_value, type(value)(unknown), value]
            return HierarchicalCopyAllReduce().batch_reduce("mean", [(value, "cpu:0") for value in values])

        sparse, unknown, known = reduce(list(value.values))
        thirds = [np.float32(2.0**replica / 3) for replica in range(3)]
        assert tf.convert_to_tensor(sparse).numpy().tolist() == [[third] * 2 for third in thirds] + [[0, 0]]
        assert_same_bits(unknown, reference("mean", dense))
        assert_same_bits(known, reference("mean", dense))


class TestCalls:
    """From the graph into Python."""

    @pytest.mark.usefixtures("either_way")
    def test_are_made_when_the_ops_are_gone(self, on_devices):
        reduce = tf.function(lambda value: HierarchicalCopyAllReduce().reduce("sum", value, "cpu:0"))
        value = on_devices([np.float32([2.0 ** (replica - 140)]) for replica in range(3)])
        traced = reduce.get_concrete_function(value)
        gc.collect()
        assert_same_bits(traced(value), np.float32([7 * 2.0**-140]))

    def test_without_the_operation_one_serves_the_whole_batch(self, calls, on_devices, monkeypatch):
        monkeypatch.setattr(operation, "ensure_registered", lambda: False)
        values = [on_devices(usual("float32", 3, length)) for length in (5, LARGE, 8, 7, LARGE)]
        reduce = tf.function(
            lambda values: HierarchicalCopyAllReduce().batch_reduce("sum", [(value, "cpu:0") for value in values])
        )
        reduce(values)
        assert calls == [3]

    def test_one_replica_makes_none(self, calls, on_devices):
        for op, dtype in (("sum", "float32"), ("max", "int64"), ("mean", "complex64")):
            [array] = usual(dtype, 1, LARGE)
            assert np.array_equal(traced_total(op, on_devices([array])).numpy(), array)
        assert calls == []

    def test_inside_a_loop(self, calls, on_devices):
        value = on_devices([np.float32([2.0**replica]) for replica in range(3)])

        @tf.function
        def train(value):
            total = tf.zeros([1])
            for step in tf.range(3):
                scale = tf.where(step == 1, 2.0**-120, 1.0)
                scaled = type(value)([part * scale for part in value.values])
                total += HierarchicalCopyAllReduce().reduce("sum", scaled, "cpu:0")
            return total

        assert train(value).numpy().tolist() == [14.0]
        assert calls == []


class TestOperations:
    def test_of_60_small_gradients_are_few(self, operations, on_devices):
        """One concatenation and one split on each of 4 devices, and the fold of one value; TensorFlow's are 300."""
        values = [on_devices(usual("float32", 4, 8)) for _ in range(60)]

        def reduce(ops):
            return lambda values: ops.batch_reduce(ReduceOp.SUM.name, [(value, value) for value in values])

        ours = operations(reduce(HierarchicalCopyAllReduce()), values)
        assert (ours.count("ConcatV2"), ours.count("SplitV")) == (4, 4)
        assert len(ours) == 9
        theirs = tf.distribute.ReductionToOneDevice()
        added = operations(
            lambda values: theirs.batch_reduce(tf.distribute.ReduceOp.SUM, [(value, value) for value in values]), values
        )
        assert len(added) == 300

    def test_other_shapes_are_flattened_and_shaped(self, operations, on_devices):
        values = [on_devices([array.reshape(2, 4) for array in usual("float32", 2, 8)]) for _ in range(3)]
        added = operations(
            lambda values: HierarchicalCopyAllReduce().batch_reduce("sum", [(value, value) for value in values]), values
        )
        assert added.count("Reshape") == 12

    def test_none_call_python_in_xla(self, on_devices):
        values = [on_devices(usual("float32", 3, length)) for length in (4, 8)]

        @tf.function(jit_compile=True)
        def reduce(values):
            return HierarchicalCopyAllReduce().batch_reduce("mean", [(value, "cpu:0") for value in values])

        for result, value in zip(reduce(values), values, strict=True):
            assert_same_bits(result, reference("mean", [part.numpy() for part in value.values]))


class TestRefusals:
    """Errors that are known while tracing are raised while tracing."""

    @pytest.mark.parametrize("length", [4, LARGE], ids=["in the graph", "by a call"])
    def test_gradients_through_a_reduction(self, length, on_devices):
        @tf.function
        def gradient(value):
            with tf.GradientTape() as tape:
                tape.watch(value.values[0])
                total = HierarchicalCopyAllReduce().reduce("sum", value, "cpu:0")
            return tape.gradient(total, value.values[0])

        with pytest.raises(CallError, match=r"treefold's reductions have no gradient\."):
            gradient(on_devices(usual("float32", 2, length)))

    def test_options_that_host_memory_cannot_honour(self, on_devices):
        ops, value = HierarchicalCopyAllReduce(), on_devices(usual("float32", 2, 4))
        options = CommunicationOptions(implementation="NCCL")
        reduce = tf.function(lambda value: ops.reduce("sum", value, "cpu:0", options))
        with pytest.raises(ArgumentError, match="NCCL"):
            reduce.get_concrete_function(value)

    def test_devices_of_the_ops_that_are_not_there(self, on_devices):
        ops, value = ReductionToOneDevice("cpu:77"), on_devices(usual("float32", 2, 4))
        reduce = tf.function(lambda value: ops.reduce("sum", value, "cpu:0"))
        with pytest.raises(DeviceError, match="cpu:77"):
            reduce.get_concrete_function(value)
