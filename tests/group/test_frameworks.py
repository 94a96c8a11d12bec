"""Groups with the arrays of every framework: the same calls, the same bits, results of the framework's own kind."""

import os
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from rank_processes import RankProcesses, World, told

import treefold
import treefold.tensorflow
from treefold import IndexedSlices, PerReplica
from treefold.testing import owned, owned_sum

_SMALL, _LARGE = 12, 40_008  # elements: one meeting, and staged; 2 and 3 ranks divide both
_DTYPES = ("float32", "bfloat16", "int64")
#: Frameworks keep their threads.
_MAY_LEAVE = ("threads", "Python", "descriptors")
_MAKE = {
    "numpy": lambda array: array,
    "torch": lambda array: (
        torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
        if array.dtype == "bfloat16"
        else torch.from_numpy(array.copy())
    ),
    "jax": jnp.asarray,
    "tensorflow": tf.constant,
}
_KIND = {"numpy": np.ndarray, "torch": torch.Tensor, "jax": jax.Array, "tensorflow": tf.Tensor}

if is_wide := os.environ.get(
    "JAX_ENABLE_X64"
):  # in the parent of ranks, which had imported JAX before it heard of this
    jax.config.update("jax_enable_x64", is_wide == "1")


@pytest.fixture(scope="module")
def framework_ranks(programs):
    processes = RankProcesses({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_X64": "1", "OMP_NUM_THREADS": "1"}, programs)
    yield processes
    processes.close()


def run(processes, body, size, **arguments):
    """Run a body on this many ranks; return their results."""
    ended = processes.run(World(body, size, arguments, seconds=45, may_leave=_MAY_LEAVE))
    assert all(one.error is None for one in ended), ended
    return [one.value for one in ended]


def to_numpy(array):
    """Return an array of any framework as NumPy's, bfloat16 as float32."""
    if isinstance(array, torch.Tensor):
        array = array.float() if array.dtype == torch.bfloat16 else array
        return array.numpy()
    made = np.asarray(array)
    return made.astype(np.float32) if made.dtype.name == "bfloat16" else made


def is_same(kind, array, expected):
    return isinstance(array, _KIND[kind]) and np.array_equal(to_numpy(array), to_numpy(expected))


def call_everything(me, *, kind):
    """Make every call of a group with small and large values of several dtypes; return the calls with wrong results."""
    return [
        (name, dtype, length)
        for dtype in _DTYPES
        for length in (_SMALL, _LARGE)
        for name in wrong_calls(me, kind=kind, length=length, dtype=dtype)
    ]


def wrong_calls(me, *, kind, length, dtype):
    """Make every call of a group; return the names of the calls with wrong results."""
    group, size, make = me.group, me.size, _MAKE[kind]
    mine = make(owned(me.rank, (length,), dtype))
    total = owned_sum(size, (length,), dtype)
    matrix = make(owned(me.rank, (6, length // 6), dtype))
    whole = [owned(rank, (6, length // 6), dtype) for rank in range(size)]
    part = slice(6 // size * me.rank, 6 // size * (me.rank + 1))
    to_root, gathered = group.reduce(mine, root=1), group.gather(matrix, root=0)
    found = {
        "all_reduce": is_same(kind, group.all_reduce(mine), total),
        "again": is_same(kind, group.all_reduce(mine), total),
        "tree": is_same(kind, group.all_reduce({"a": [mine], "b": matrix})["a"][0], total),
        "replicas": is_same(kind, group.all_reduce(PerReplica([mine, mine])), 2 * total),
        "reduce": to_root is None if me.rank != 1 else is_same(kind, to_root, total),
        "reduce_scatter": is_same(kind, group.reduce_scatter(matrix), owned_sum(size, (6, length // 6), dtype)[part]),
        "broadcast": is_same(kind, group.broadcast(mine, root=1), owned(1, (length,), dtype)),
        "all_gather": is_same(kind, group.all_gather(matrix), np.concatenate(whole)),
        "all_gather along 1": is_same(kind, group.all_gather(matrix, axis=1), np.concatenate(whole, 1)),
        "gather": gathered is None if me.rank else is_same(kind, gathered, np.concatenate(whole)),
        "max": is_same(kind, group.all_reduce(mine, "max"), owned(size - 1, (length,), dtype)),
    }
    ops = treefold.HierarchicalCopyAllReduce(group=group)
    made = ops.batch_reduce("sum", [(mine, "cpu:0"), (PerReplica([matrix]), "cpu:0")])
    found["ops"] = is_same(kind, made[0][0], total) and is_same(kind, made[1][0], sum(whole[1:], whole[0]))
    return [name for name, is_right in found.items() if not is_right]


def weigh(me, *, kind):
    """Take a mean in which rank 0 has no weight, and one in which no rank has any."""
    mine = _MAKE[kind](np.full(5, np.nan if me.rank == 0 else 2.0**me.rank))
    mean = me.group.all_reduce(mine, "mean", weights=[0.0, 1.0, 3.0][me.rank])
    return to_numpy(mean).tolist(), told(lambda: me.group.all_reduce(mine, "mean", weights=0))


def rows_of(kind, rank, count):
    make = _MAKE[kind]
    values = np.full((count, 2), 2.0**rank, np.float32)
    return IndexedSlices(make(values), make(np.arange(count, dtype=np.int64)), (8, 2))


def reduce_rows(me, *, kind, counts):
    """Reduce sparse rows, of which each rank has another number, by the group and by ops; then dense against sparse."""
    value = rows_of(kind, me.rank, counts[me.rank])
    ops = treefold.ReductionToOneDevice(group=me.group)
    made = [
        me.group.all_reduce(value),
        me.group.all_reduce(value, "mean"),
        me.group.all_reduce([value, value.values])[0] if len(set(counts)) == 1 else value,
        ops.reduce("sum", value, "cpu:0")[0],
    ]
    found = [(to_numpy(one.values)[:, 0].tolist(), to_numpy(one.indices).tolist(), one.dense_shape) for one in made]
    mismatch = told(lambda: me.group.all_reduce(value if me.rank else _MAKE[kind](np.zeros((8, 2), np.float32))))
    nothing = me.group.all_reduce(_MAKE[kind](np.zeros((0, 3), np.float32)))
    return found[:2] + found[3:], mismatch, tuple(nothing.shape), told(me.group.barrier)


def weigh_beside_midpoints(me, *, has_numpy):
    """Take means of integers that lie beside midpoints of float32, nearer than float64 tells."""
    jax.config.update("jax_enable_x64", False)  # noqa: FBT003 - JAX's own
    last = me.rank == me.group.size - 1
    make = np.asarray if has_numpy and me.rank == 0 else jnp.asarray
    # The middles of [2**24, 2**24 + 2] and [2**24 + 2, 2**24 + 4]; the last rank lies on one side, with little weight.
    mine = {
        "up": make(np.int32(2**24 + 1 + last)),
        "down": make(np.full((2, 3), 2**24 + 3 - last, np.int32)),
        "float": make(np.float32([2**me.rank])),
        "none": make(np.zeros((0, 2), np.int32)),
    }
    weight = 1 if last else 2**40

    def mean(value):
        return me.group.all_reduce(value, "mean", weights=weight)

    made = [mean(mine), mean(mine) if has_numpy else jax.jit(mean)(mine)]
    found = [{name: (str(array.dtype), to_numpy(array).tolist()) for name, array in one.items()} for one in made]
    wrong = told(lambda: mean(jnp.full((2, 3) if last else (3, 2), 7, jnp.int32)))
    return found, wrong, told(lambda: mean(jnp.full(3, 7, jnp.int32)))


def average_beside_midpoints(me, *, has_numpy):
    """Take means of 64-bit integers above a midpoint of float32, nearer than float64 tells, by every call."""
    jax.config.update("jax_enable_x64", False)  # noqa: FBT003 - JAX's own
    number, group = np.int64(2**60 + 2**36 + (me.rank == 0)), me.group
    is_numpy = has_numpy and me.rank == 0

    def make(array):
        with jax.enable_x64(not is_numpy):
            return array if is_numpy else jnp.asarray(array)

    tree = {"mean": make(np.full(_SMALL, number)), "float": make(np.float32([2**me.rank]))}
    large, whole = make(np.full(_LARGE, number)), make(np.full(6, number))
    replicas = PerReplica([make(np.full(3, number)) for _ in range(2)])

    def in_jit(array):
        mean = lambda array: group.all_reduce(array, "mean")  # noqa: E731
        return mean(array) if is_numpy else jax.jit(mean)(array)

    calls = {
        "all_reduce": lambda: group.all_reduce(tree, "mean")["mean"],
        "again": lambda: group.all_reduce(tree, "mean")["mean"],
        "large": lambda: group.all_reduce(large, "mean"),
        "several": lambda: group.all_reduce(replicas, "mean"),
        "reduce": lambda: group.reduce(large, "mean", root=me.size - 1),
        "reduce_scatter": lambda: group.reduce_scatter(whole, "mean"),
        "in jit": lambda: in_jit(whole),
    }
    made = {name: call() for name, call in calls.items()}
    return {name: (str(one.dtype), set(to_numpy(one).tolist())) for name, one in made.items() if one is not None}


class TestEveryFramework:
    @pytest.mark.parametrize("kind", _MAKE)
    @pytest.mark.parametrize("size", [2, 3])
    def test_every_call(self, framework_ranks, kind, size):
        assert run(framework_ranks, call_everything, size, kind=kind) == [[]] * size

    @pytest.mark.parametrize("kind", _MAKE)
    def test_a_weight_of_zero_leaves_a_rank_out(self, framework_ranks, kind):
        for mean, (error, sentence) in run(framework_ranks, weigh, 3, kind=kind):
            assert mean == [3.5] * 5
            assert error == "ArgumentError"
            assert "weights" in sentence

    @pytest.mark.parametrize("counts", [(2, 2), (3, 1), (0, 2), (0, 0)])
    @pytest.mark.parametrize("kind", _MAKE)
    def test_sparse_rows(self, framework_ranks, kind, counts):
        values = [1.0] * counts[0] + [2.0] * counts[1]
        indices = [*range(counts[0]), *range(counts[1])]
        for found, mismatch, shape, story in run(framework_ranks, reduce_rows, 2, kind=kind, counts=counts):
            halves = [value / 2 for value in values]
            assert found == [(one, indices, (8, 2)) for one in (values, halves, values)]
            assert (mismatch[0], shape, story) == ("CallMismatchError", (0, 3), "done")


def call_in_jit(me, *, turns):
    """Make calls of several kinds in a compiled program, in a loop of it, and in a branch."""
    group = me.group

    @jax.jit
    def step(base):
        # Shapes differ, so that two calls in another order are a mismatch.
        made = [group.all_reduce(base * jnp.ones(length))[0] for length in range(1, 7)]
        made.append(group.broadcast(base * jnp.ones(9), root=1)[0])
        root = group.reduce(base * jnp.ones(11), root=0)
        made.append(jnp.float32(0) if root is None else root[0])

        def turn(index, total):
            return total + group.all_reduce({"w": base * index})["w"]

        made.append(jax.lax.fori_loop(0, 3, turn, jnp.float32(0)))
        made.append(jax.lax.cond(base > 0, lambda: group.all_reduce(base, "max"), lambda: group.all_reduce(-base)))
        whole = group.all_reduce(jnp.full(2, me.rank, jnp.int32), "mean")
        halves = group.all_reduce(jnp.full(3, base, jnp.bfloat16), "mean", weights=1 + me.rank)
        return [*made, whole[0], halves[0].astype(jnp.float32)]

    base = jnp.float32(2**me.rank)
    found = [[float(one) for one in step(base)] for _ in range(turns)]
    return found, str(step(base)[10].dtype), told(group.barrier)


def gather_in_jit(me):
    """Ask for lengths that no trace knows; then reduce what does not agree, and what does."""
    story = told(lambda: jax.jit(me.group.all_gather)(jnp.ones(3)))
    try:
        wrong = str(jax.jit(me.group.all_reduce)(jnp.ones(2 + me.rank, jnp.float32)))
    except jax.errors.JaxRuntimeError as error:
        wrong = str(error)
    return story, wrong, float(jax.jit(me.group.all_reduce)(jnp.float32(2**me.rank)))


class TestJax:
    @pytest.mark.parametrize("size", [2, 3])
    def test_calls_in_jit_are_made_in_the_order_of_the_program(self, framework_ranks, size):
        total, top, weight = 2.0**size - 1, 2.0 ** (size - 1), size * (size + 1) / 2
        mean = sum((1 + r) * 2**r for r in range(size)) / weight
        for rank, (found, dtype, story) in enumerate(run(framework_ranks, call_in_jit, size, turns=5)):
            root = total if rank == 0 else 0.0
            row = [*[total] * 6, 2.0, root, 3 * total, top, (size - 1) / 2, float(jnp.bfloat16(mean))]
            assert found == [row] * 5
            assert (dtype, story) == ("float64", "done")

    @pytest.mark.parametrize("has_numpy", [False, True])
    @pytest.mark.parametrize("size", [2, 3])
    def test_weighted_means_of_integers_are_rounded_once(self, framework_ranks, size, has_numpy):
        """To float32, which JAX gives without x64; NumPy's ranks of the same call get float64."""
        total = (size - 1) * 2**40 + 1
        owners = [(2**40 if rank < size - 1 else 1) * Fraction(2**rank, total) for rank in range(size)]
        floats = ("float32", [float(np.float32(float(sum(owners))))])
        narrow = {
            "up": ("float32", 2.0**24 + 2),
            "down": ("float32", [[2.0**24 + 2] * 3] * 2),
            "float": floats,
            "none": ("float32", []),
        }
        wide = {
            "up": ("float64", float(2**24 + 1 + Fraction(1, total))),
            "down": ("float64", [[float(2**24 + 3 - Fraction(1, total))] * 3] * 2),
            "float": floats,
            "none": ("float64", []),
        }
        ended = run(framework_ranks, weigh_beside_midpoints, size, has_numpy=has_numpy)
        for rank, (found, wrong, story) in enumerate(ended):
            assert found == [wide if has_numpy and rank == 0 else narrow] * 2
            assert (wrong[0], story) == ("CallMismatchError", "done")
            assert "int32 (2, 3)" in wrong[1]

    @pytest.mark.parametrize("has_numpy", [False, True])
    @pytest.mark.parametrize("size", [2, 3])
    def test_means_of_64_bit_integers_are_rounded_once(self, framework_ranks, size, has_numpy):
        """To float32 without x64, whichever call it is; NumPy's ranks of the same call get float64."""
        for rank, found in enumerate(run(framework_ranks, average_beside_midpoints, size, has_numpy=has_numpy)):
            # The next number of float32 above 2**60; float64 holds the middle below that, and no more.
            mean = ("float64", {2.0**60 + 2.0**36}) if has_numpy and rank == 0 else ("float32", {2.0**60 + 2.0**37})
            assert found == dict.fromkeys(found, mean)
            assert ("reduce" in found) == (rank == size - 1)
            assert len(found) == 6 + (rank == size - 1)

    def test_lengths_of_other_ranks_are_refused(self, framework_ranks):
        for (kind, sentence), wrong, total in run(framework_ranks, gather_in_jit, 2):
            assert kind == "ArgumentError"
            assert sentence.startswith("A gather, a scatter or sparse rows have lengths that other ranks decide")
            assert "CallMismatchError: Rank 1 calls all_reduce, SUM, of float32 (3,), while rank 0" in wrong
            assert total == 3


def write_leaves(me):
    """Take results into plain tensors, so that the call is known, then into one that requires gradients."""
    mine, leaf, plain = torch.full((3,), 2.0**me.rank), torch.zeros(3, requires_grad=True), torch.zeros(3)
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    value, out = PerReplica([mine]), PerReplica([plain, leaf])
    calls = (
        lambda end: me.group.all_reduce(mine, out=end),
        lambda end: ops.reduce("sum", value, ["cpu:0", "cpu:1"], out=PerReplica([plain, end])),
    )
    for call in calls:
        for _ in range(2):
            call(torch.zeros(3))
    stories = [told(lambda call=call: call(leaf)) for call in calls for _ in range(2)]
    untouched = leaf.tolist()
    with torch.no_grad():
        for call in calls:
            call(leaf)
    return stories, untouched, [end.tolist() for end in out]


class TestTorch:
    def test_leaves_are_written_where_nothing_is_recorded_only(self, framework_ranks):
        refusal = (
            "{} has a leaf that requires gradients. While gradients are recorded, nothing may be written into it: call "
            "treefold under torch.no_grad(), or pass tensor.detach(). Nothing was written."
        )
        for stories, untouched, ends in run(framework_ranks, write_leaves, 2):
            assert [kind for kind, _ in stories] == ["OutputError"] * 4
            owners = ["Component 0 of out"] * 2 + ["Component 1 of out"] * 2
            assert [sentence for _, sentence in stories] == [refusal.format(owner) for owner in owners]
            assert untouched == [0.0] * 3
            assert ends == [[3.0] * 3] * 2


def trace_many(me, *, turns):
    """Make many calls in one traced function, none of which needs another's result, again and again."""
    group, ops = me.group, treefold.tensorflow.CrossDeviceOps(treefold.HierarchicalCopyAllReduce(group=me.group))
    seen = tf.Variable(0.0)

    @tf.function
    def inner(value):
        return group.all_reduce(value, "max")

    @tf.function
    def step(base, rows):
        # Shapes differ, so that two calls in another order are a mismatch.
        made = [tf.reduce_max(group.all_reduce(base * tf.ones([length]))) for length in range(1, 7)]
        made.append(tf.reduce_max(inner(base * tf.ones([9]))))
        if tf.reduce_max(base) > 0:
            chosen = tf.reduce_max(group.broadcast(base * tf.ones([11]), root=1))
        else:
            chosen = tf.reduce_max(group.all_reduce(base))
        made.append(chosen)
        total = tf.zeros([])
        for turn in tf.range(3):
            total += group.all_reduce(base * tf.cast(turn, tf.float32))[0]
            seen.assign_add(1.0)
        made.append(total)
        made.append(tf.reduce_max(group.all_gather(base * tf.ones([me.rank + 1]))))
        made.append(tf.reduce_max(group.reduce_scatter(base * tf.ones([4]))))
        root = group.reduce(base * tf.ones([13]), root=0)
        made.append(tf.zeros([]) if root is None else tf.reduce_max(root))
        made.append(tf.reduce_max(ops.reduce("mean", base, "cpu:0")))
        made.append(
            tf.cast(
                tf.size(ops.reduce("sum", tf.IndexedSlices(rows, tf.range(tf.size(rows))), "cpu:0").values), tf.float32
            )
        )
        first, second = ops.batch_reduce("sum", [(base, "cpu:0"), (2 * base, "cpu:0")])
        return [*made, first[0], second[0]]

    rows = tf.ones([me.rank])
    found = [[float(one) for one in step(tf.fill([1], 2.0**me.rank), rows)] for _ in range(turns)]
    return found, float(seen), told(group.barrier)


def trace_a_mismatch(me):
    """Call something else on rank 1 in a traced function; then the same."""

    @tf.function
    def step(value):
        return me.group.all_reduce(value)

    try:
        step(tf.ones([2 + me.rank]))
    except tf.errors.OpError as error:
        story = str(error)
    return story, step(tf.fill([2], 2.0**me.rank)).numpy().tolist()


def trace_with_unknown_shapes(me):
    """Reduce tensors of shapes that are unknown while tracing, and check what is known of the results."""
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32)])
    def step(value):
        made = me.group.all_reduce(value), me.group.all_reduce(value, "mean"), me.group.all_gather(value)
        shapes.extend((one.shape.as_list(), one.dtype.name) for one in made)
        with tf.GradientTape() as tape:
            tape.watch(value)
            sums = me.group.all_reduce(tf.cast(value, tf.float32))
        assert tape.gradient(sums, value) is None
        return made

    values = [step(tf.fill([rows, 4], 2**me.rank))[0][0, 0].numpy().item() for rows in (1, 3)]
    return shapes, values


def bring_composites(me):
    """Reduce and move what TensorFlow makes of several tensors, alone and beside a tensor, eagerly and traced."""
    slices, sparse = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0])), tf.sparse.from_dense([[1.0]])
    group, replica = me.group, PerReplica([sparse])
    ops = treefold.HierarchicalCopyAllReduce(group=group)
    calls = [
        lambda: group.all_reduce(slices),
        lambda: group.reduce(sparse, root=0),
        lambda: group.reduce_scatter(sparse),
        lambda: group.all_gather(sparse),
        lambda: group.broadcast(slices),
        lambda: ops.reduce("mean", replica, replica),
        lambda: group.all_reduce({"a": tf.ones(1), "b": sparse}, "mean"),
    ]
    return [told(call) for call in calls], [told(tf.function(call, autograph=False)) for call in calls]


class TestTensorflowComposites:
    def test_are_named_with_what_to_pass(self, framework_ranks):
        slices = "an IndexedSlices of TensorFlow. Pass treefold.IndexedSlices(x.values, x.indices), or use the ops of"
        sparse = "a SparseTensor of TensorFlow{}. Pass tf.sparse.to_dense(x)."
        whole = [slices, *[sparse.format("")] * 3, slices, sparse.format(" at [0]")]
        for eager, traced in run(framework_ranks, bring_composites, 2):
            for told_, words in zip(eager, [*whole, sparse.format(" at ['b']")], strict=True):
                assert told_[0] == "ArgumentError"
                assert words in told_[1]
            for told_, words in zip(traced, [*whole, sparse.format("")], strict=True):
                assert told_[0] == "ArgumentError"
                assert words in told_[1]


def trace_subnormal_rows(me, *, runner):
    """Return the bits of the MEAN of rows of 2**-140, made on TensorFlow's threads, which flush subnormals."""
    rows, places = tf.bitcast(tf.constant([512], tf.int32), tf.float32)[:, None], tf.constant([me.rank])

    def step(rows, places):
        return tf.bitcast(me.group.all_reduce(IndexedSlices(rows, places, (2, 1)), "mean").values, tf.int32)

    @tf.function
    def traced(rows, places):
        if runner == "py_function":
            return tf.py_function(step, [rows, places], tf.int32)
        return step(rows, places)

    return traced(rows, places).numpy().ravel().tolist()


class TestTensorflowGraphs:
    @pytest.mark.parametrize("runner", ["function", "py_function"])
    def test_subnormal_rows_keep_their_bits(self, framework_ranks, runner):
        assert run(framework_ranks, trace_subnormal_rows, 2, runner=runner) == [[256, 256]] * 2

    @pytest.mark.parametrize("size", [2, 4])
    def test_calls_are_made_in_the_order_of_the_program(self, framework_ranks, size):
        turns = 25
        total, top = 2.0**size - 1, 2.0 ** (size - 1)
        for rank, (found, seen, story) in enumerate(run(framework_ranks, trace_many, size, turns=turns)):
            sparse = sum(range(size))
            root = total if rank == 0 else 0.0
            row = [*[total] * 6, top, 2.0, 3 * total, top, total, root, total / size, sparse, total, 2 * total]
            assert found == [row] * turns
            assert (seen, story) == (3.0 * turns, "done")

    def test_a_mismatch_is_told_and_the_graph_goes_on(self, framework_ranks):
        for story, values in run(framework_ranks, trace_a_mismatch, 2):
            assert "CallMismatchError: Rank 1 calls all_reduce, SUM, of float32 (3,), while rank 0" in story
            assert values == [3.0, 3.0]

    def test_shapes_may_be_unknown(self, framework_ranks):
        for shapes, values in run(framework_ranks, trace_with_unknown_shapes, 2):
            assert shapes == [([None, 4], "int32"), ([None, 4], "float64"), ([None, 4], "int32")]
            assert values == [3, 3]
