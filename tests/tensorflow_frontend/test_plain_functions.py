"""treefold's own functions and ops, called with tensors inside a plain ``tf.function``: the bits of the eager call."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import treefold
from treefold import HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice
from treefold.execution import tensorflow_graphs as operation

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Per dtype, what three replicas bring: subnormals; a sum that is decided by its last bit; a cancellation; one that
#: overflows on the way; a subnormal beside 1; negative zeros. Of integers, what float64 cannot hold.
HOSTILE = {
    "float16": [[2.0**-24] * 3, [1, 2**-11, 2**-24], [6e4, 2**-24, -6e4], [65504, 65504, -65504], [1, 1, 2**-24]],
    BFLOAT16: [[2.0**-130] * 3, [1, 2**-8, 2**-40], [3e38, 2**-130, -3e38], [3e38, 3e38, -3e38], [1, 1, 2**-133]],
    "float32": [[2.0**-140] * 3, [1, 2**-24, 2**-60], [1e38, 2**-60, -1e38], [3e38, 3e38, -3e38], [1, 1, 2**-149]],
    "float64": [
        [2.0**-1060] * 3,
        [1, 2**-53, 2**-120],
        [1e300, 2**-60, -1e300],
        [1e308, 1e308, -1e308],
        [1, 1, 5e-324],
    ],
    "int64": [
        [2**62] * 3,
        [2**53 + 1, 2**53 + 1, 2**53 + 3],
        [-(2**63), -1, 1],
        [2**63 - 1] * 3,
        [7, 8, 8],
        [-7, -8, 0],
    ],
}
CASES = [(dtype, row) for dtype, rows in HOSTILE.items() for row in rows if dtype == "int64"]
CASES += [(dtype, row) for dtype, rows in HOSTILE.items() for row in [*rows, [-0.0] * 3] if dtype != "int64"]


def bits(tensors):
    arrays = [np.asarray(tensor) for tensor in tf.nest.flatten(tensors)]
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def assert_traced_alike(function, *tensors):
    assert bits(tf.function(function, autograph=False)(*tensors)) == bits(function(*tensors))


@pytest.fixture(params=["by an operation", "by a call"], autouse=True)
def either_way(request, monkeypatch):
    """Run all tests with the operation, and as where TensorFlow's library has no interface for kernels."""
    if request.param == "by a call":
        monkeypatch.setattr(operation, "ensure_registered", lambda: False)


class TestBits:
    """Of a traced call are those of the eager call."""

    @pytest.mark.parametrize("op", ["sum", "mean", "product"])
    @pytest.mark.parametrize(("dtype", "row"), CASES, ids=str)
    def test_of_hostile_values(self, op, dtype, row):
        parts = [tf.constant(np.array([number], dtype)) for number in row]
        assert_traced_alike(lambda parts: treefold.all_reduce(parts, op), parts)

    def test_are_the_exact_value_rounded_once(self):
        traced = tf.function(lambda parts: treefold.reduce(parts, "sum"), autograph=False)
        total = traced([tf.constant([number, 2.0**-140]) for number in (1.0, 2.0**-24, 2.0**-60)])
        assert total.numpy().tolist() == [1.0 + 2.0**-23, 3 * 2.0**-140]

    @pytest.mark.parametrize("accumulate", ["exact", "native"])
    def test_of_ops_on_several_devices(self, accumulate):
        ops = HierarchicalCopyAllReduce(num_packs=2, accumulate=accumulate)

        def reduced(first, second):
            values = []
            for parts in (first, second):
                placed = []
                for index, part in enumerate(parts):
                    with tf.device(f"cpu:{index}"):
                        placed.append(tf.identity(part))
                values.append((PerReplica(placed), ["cpu:2", "cpu:0"]))
            return [result.values for result in ops.batch_reduce("mean", values)]

        first = [tf.constant([2.0**replica, 2.0**-24]) for replica in range(3)]
        assert_traced_alike(reduced, first, [tf.fill([2, 2], 2.0 ** (replica - 140)) for replica in range(3)])

    def test_of_weighted_means(self):
        parts = [tf.constant([2.0**replica, 2.0 ** (replica - 140)]) for replica in range(3)]
        assert_traced_alike(lambda parts: treefold.all_reduce(parts, "mean", weights=[1, 2, 3]), parts)

    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_of_sparse_rows(self, op):
        def reduced(rows, dense):
            sparse = [IndexedSlices(rows * scale, tf.constant([0, 2]), (3, 1)) for scale in (1.0, 2.0)]
            [alone, _] = treefold.all_reduce(sparse, op)
            return alone.values, alone.indices, treefold.all_reduce([sparse[0], dense], op)

        assert_traced_alike(reduced, tf.constant([[1.0], [0.1]]), tf.constant([[4.0], [8.0], [2.0**-24]]))

    def test_of_broadcasts_and_gathers(self):
        def moved(left, right):
            gathered = HierarchicalCopyAllReduce().gather(PerReplica([left, right]), "cpu:0", axis=1)
            return treefold.broadcast(left, ["cpu:0", "cpu:1"]), gathered.values

        assert_traced_alike(moved, tf.constant([[1.0, 2.0**-140]]), tf.constant([[2.0]]))

    def test_of_variables_in_a_loop(self):
        variables = [tf.Variable([2.0 ** (replica - 140)]) for replica in range(2)]

        @tf.function
        def step():
            total = tf.zeros([1])
            for _ in tf.range(3):
                total = treefold.reduce([total, *variables])
            return total

        variables[0].assign([2.0**-138])
        assert step().numpy().tolist() == [3 * (2.0**-138 + 2.0**-139)]


class TestPlan:
    """The plan's promises are kept."""

    def plans(self, jit_compile):
        """Return the plan that ran in a graph, and the one that was asked for there."""
        found = []

        def reduced(parts):
            ops, value = HierarchicalCopyAllReduce(), PerReplica(parts)
            result = ops.reduce("sum", value, value)
            found.extend([result.plan, ops.plan(value, value)])
            return result.values

        tf.function(reduced, autograph=False, jit_compile=jit_compile)([tf.constant([2.0**r]) for r in range(3)])
        return found

    def test_is_exact_in_one_pass(self):
        for plan in self.plans(jit_compile=False):
            assert (plan.executor, plan.guarantee, plan.is_one_pass) == ("graph", "exact", True)

    def test_says_that_xla_folds_in_replica_order(self):
        """It compiles TensorFlow's operations, and calls no others."""
        for plan in self.plans(jit_compile=True):
            assert (plan.executor, plan.guarantee) == ("local", "replica_order")

    def test_of_what_is_saved_names_no_operation_of_treefold(self, tmp_path):
        module = tf.Module()
        signature = [tf.TensorSpec([2])]
        module.total = tf.function(lambda one: treefold.reduce([one, one], "mean"), signature, autograph=False)
        own = module.total.get_concrete_function().graph
        tf.saved_model.save(module, str(tmp_path))
        loaded = tf.saved_model.load(str(tmp_path)).total
        saved = loaded.concrete_functions[0].graph
        kinds = [
            {one.type for one in graph.get_operations()} & {"TreefoldFold", "PyFuncStateless"} for graph in (own, saved)
        ]
        assert (len(kinds[0]), kinds[1]) == (1, set())
        assert loaded(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]

    def test_of_an_accumulation_fn_is_a_callbacks(self):
        found = []

        def reduced(parts):
            result = ReductionToOneDevice(accumulation_fn=tf.add_n).reduce("mean", PerReplica(parts), "cpu:0")
            found.append(result.plan)
            return result.values

        assert_traced_alike(reduced, [tf.constant([2.0**replica]) for replica in range(3)])
        assert [plan.executor for plan in found] == ["local", "host"]


class TestRefusals:
    @pytest.mark.parametrize("index", [-1, 3])
    def test_an_index_outside_of_the_whole(self, index):
        @tf.function(autograph=False)
        def reduced(rows, indices, dense):
            return treefold.all_reduce([IndexedSlices(rows, indices, (3, 1)), dense])

        words = rf"An IndexedSlices has index {index}\. Its dense_shape allows 0 to 2\."
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            reduced(tf.ones([1, 1]), tf.constant([index]), tf.ones([3, 1]))
