"""Any call of any group gives the bits of one process that holds all replicas.

``TREEFOLD_CASES=full`` makes 25 times as many calls.
"""

import hashlib
import itertools
import os
from collections import Counter

import cases_of_bits
import numpy as np
import pytest
from rank_processes import World

import treefold
from treefold import PerReplica, _native
from treefold.errors import TreefoldError
from treefold.group import Ticket
from treefold.testing import assert_same_bits, fold_arrays

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
CASES = 50_000 if IS_FULL else 1_500
_RANKS = 8
_SHOWN = 5
_SEED = 11
#: Results of more elements are not computed in Python's numbers.
_MOST_EXACT = 70


def bits_of_all(arrays):
    """Return one hash of flat arrays."""
    return hashlib.blake2b(b"".join(bits(np.reshape(array, -1)) for array in arrays), digest_size=8).digest()


def bits(array):
    """Return a hash of an array's dtype, shape and bytes, with every NaN as one and the same."""
    array = np.ascontiguousarray(array)
    real = array.view({"complex64": "float32", "complex128": "float64"}.get(array.dtype.name, array.dtype))
    if real.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):  # random bits may be a signalling NaN
            real = np.where(np.isnan(real), np.array(np.nan, real.dtype), real)
    return hashlib.blake2b(repr((array.dtype.name, array.shape)).encode() + real.tobytes(), digest_size=8).digest()


def laid_out(values, layout):
    """Return an array of these values that lies in memory in some other manner; a matrix if it is transposed."""
    if layout == "strided":
        wide = np.zeros(2 * len(values), values.dtype)
        wide[::2] = values
        return wide[::2]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    if layout == "unaligned":
        memory = np.zeros(values.nbytes + 1, np.uint8)
        array = memory[1:].view(values.dtype)
        array[:] = values
        return array
    array = values.copy()
    if layout == "transposed":
        columns = next(count for count in (7, 4, 3, 2, 1) if len(values) % count == 0)
        return values.reshape(-1, columns).T.copy().T
    array.flags.writeable = layout != "read-only"
    return array


def shared(group, values):
    """Return an array of these values in memory that all ranks see."""
    array = group.empty(values.shape, values.dtype)
    array[...] = values
    return array


def nested(leaves, shape):
    """Return leaves in a structure."""
    if shape == "array":
        return leaves[0]
    if shape == "dict of dicts":
        return {"a": {"x": leaves[0]}, "b": (leaves[1], {"y": leaves[2]})}
    return list(leaves)


def flat(value):
    """Return the leaves of what ``nested`` has made."""
    if isinstance(value, dict):
        return [value["a"]["x"], value["b"][0], value["b"][1]["y"]]
    return value if isinstance(value, list) else [value]


class Caller:
    """A rank of a group, which makes the calls of cases."""

    def __init__(self, group):
        """Make the ops objects that last as long as the group."""
        self.group = group
        make = treefold.HierarchicalCopyAllReduce
        self.ops = {mode: make(group=group, accumulate=mode) for mode in ("exact", "native")}

    def values(self, case):
        """Return this rank's replicas, each a list of arrays."""
        made = []
        for replica in case.of_rank(self.group.rank):
            if case.layout == "aliased" and made:
                made.append(made[0])
            elif case.is_shared:
                made.append([shared(self.group, leaf) for leaf in case.contribution(replica)])
            else:
                made.append([laid_out(leaf, case.layout) for leaf in case.contribution(replica)])
        return made

    def call(self, case, values):
        """Make the call; return its results and those arrays of the values that it may have written."""
        group, trees = self.group, [nested(leaves, case.shape) for leaves in values]
        value = trees[0] if len(trees) == 1 and case.number % 2 else PerReplica(trees)
        own = [case.weights[replica] for replica in case.of_rank(group.rank)] if case.weights else None
        if case.path == "scatter":
            parts = [group.reduce_scatter(leaf, case.op) for leaf in values[0]]
            return [group.all_gather(part) for part in parts], []
        if case.path.startswith("ops"):
            return self._by_ops(case, values, own)
        if case.path == "root":
            result = group.reduce(value, case.op, root=case.number % case.size)
            return ([] if result is None else flat(result)), []
        if case.path == "new":
            return flat(group.all_reduce(value, case.op, weights=own)), []
        out = self._out(case, trees[0], values[0])
        return flat(group.all_reduce(value, case.op, out=out, weights=own)), flat(out)

    def _by_ops(self, case, values, own):
        """Reduce by an ops object, one value or a batch, to two devices."""
        places = ["cpu:0", "cpu:1"]
        ops, leaves = self.ops[case.accumulate], list(zip(*values, strict=True))
        in_place = case.path == "ops in place" and can_take(case, values[0])
        outs = [PerReplica([column[0], np.empty_like(column[0])]) for column in leaves] if in_place else None
        pairs = [(PerReplica(list(column)), places) for column in leaves]
        if case.shape == "array":
            made = [ops.reduce(case.op, *pairs[0], out=outs and outs[0], weights=own)]
        else:
            made = ops.batch_reduce(case.op, pairs, out=outs, weights=own)
        assert all(bits(one.values[0]) == bits(one.values[1]) for one in made)
        return [one.values[0] for one in made], values[0] if in_place else []

    def _out(self, case, tree, leaves):
        """Return what takes the result: the first replica itself where it can, else new memory."""
        if case.path == "in place" and can_take(case, leaves):
            return tree
        dtype = treefold.fold.Fold(treefold.ReduceOp.parse(case.op)).result_dtype(case.dtype)
        layout = "strided" if case.path == "strided out" else "contiguous"
        made = [laid_out(np.zeros(leaf.size, dtype), layout) for leaf in leaves]
        if case.layout == "transposed":
            made = [np.zeros(leaf.shape, dtype) for leaf in leaves]
        return nested(made, case.shape)


def can_take(case, leaves):
    """Tell whether a replica's arrays can take the result: arrays of the same dtype that can be written once."""
    is_float = case.op != "mean" or "int" not in case.dtype
    return is_float and case.layout not in {"read-only", "unaligned"} and all(leaf.flags.writeable for leaf in leaves)


def expected(case):
    """Return what one process makes of the contributions of all replicas."""
    replicas = [case.contribution(replica) for replica in range(sum(case.replicas))]
    ops = treefold.HierarchicalCopyAllReduce(accumulate=case.accumulate)
    results = []
    for column in zip(*replicas, strict=True):
        value = PerReplica(list(column))
        made = ops.reduce(case.op, value, "cpu:0", weights=case.weights or None).values[0]
        if made.size <= _MOST_EXACT and case.number % 4 == 0:
            exact = fold_arrays(column, case.op, accumulate=case.accumulate, weights=case.weights or None)
            assert_same_bits(made, exact)
        results.append(made)
    return results


def subgroups(me):
    """Return a group for each number of ranks, of which the last ranks are members, in reverse order."""
    made = {}
    for size in range(1, me.size + 1):
        tickets = "\n".join(Ticket.for_ranks(size)) if me.rank == 0 else ""
        said = me.group._link.agree(b"t" * 24, tickets.encode(), description="tickets")[0].decode().split("\n")
        if (rank := me.size - 1 - me.rank) < size:
            made[size] = treefold.connect(said[rank])
    return made


def make_calls(me, *, seed, count):
    """Make calls, each in a group of as many ranks as it needs.

    Return hashes of results, and of what one process makes, by call; and what went wrong.
    """
    treefold.set_num_threads(1)
    groups = subgroups(me)
    callers = {size: Caller(group) for size, group in groups.items()}
    made, whole, wrong = {}, {}, []
    for number in range(count):
        case = cases_of_bits.draw(seed, number)
        if case.size not in callers:
            continue
        caller = callers[case.size]
        try:
            made[number] = one_call(caller, case, wrong)
            if number % case.size == caller.group.rank:
                whole[number] = bits_of_all(expected(case))
        except (TreefoldError, AssertionError) as error:
            wrong.append((case, f"{type(error).__name__}: {error}"[:400]))
    for group in groups.values():
        group.close()
    return made, whole, wrong


def one_call(caller, case, wrong):
    """Make one call; return a hash of its results, None if this rank gets none."""
    values = caller.values(case)
    before = [[bits(leaf) for leaf in leaves] for leaves in values]
    results, written = caller.call(case, values)
    touched = {id(array) for array in written}
    for leaves, then in zip(values, before, strict=True):
        for leaf, old in zip(leaves, then, strict=True):
            if id(leaf) not in touched and bits(leaf) != old:
                wrong.append((case, "an input has changed"))
    return bits_of_all(results) if results else None


@pytest.fixture(scope="module")
def calls(ranks):
    """What eight ranks have found: hashes of results and of what one process makes, by call, and what went wrong."""
    ended = ranks.run(World(make_calls, _RANKS, {"seed": _SEED, "count": CASES}, seconds=3_000 if IS_FULL else 300))
    assert all(one.error is None for one in ended), ended
    return [one.value for one in ended]


class TestAnyCall:
    def test_gives_the_bits_of_one_process(self, calls):
        """On every rank, whatever dtype, op, ranks, replicas, sizes, memory, structure, weights and outputs."""
        wrong = [one for *_, some in calls for one in some]
        assert not wrong, wrong[:_SHOWN]
        expected = {number: found for _, whole, _ in calls for number, found in whole.items()}
        differ = {n for made, *_ in calls for n, found in made.items() if found not in (None, expected[n])}
        assert not differ, [cases_of_bits.draw(_SEED, number) for number in sorted(differ)[:_SHOWN]]

    def test_is_made_by_all_ranks_that_belong_to_it(self, calls):
        """As often as there are ranks in its group."""
        counts = Counter(number for made, *_ in calls for number in made)
        assert counts == {number: cases_of_bits.draw(_SEED, number).size for number in range(CASES)}

    def test_meets_every_choice_with_every_other(self):
        """Each pair of two choices out of ranks, replicas, layouts, structures, paths and values is called."""
        cases = [cases_of_bits.draw(_SEED, number) for number in range(CASES)]
        axes = {
            "path": cases_of_bits.PATHS,
            "size": range(1, _RANKS + 1),
            "layout": cases_of_bits.LAYOUTS,
            "shape": cases_of_bits.SHAPES,
            "values": cases_of_bits.VALUES,
        }
        for first, second in itertools.combinations(axes, 2):
            met = {(getattr(case, first), getattr(case, second)) for case in cases}
            missing = set(itertools.product(axes[first], axes[second])) - met - cases_of_bits.NEVER
            assert not missing, (first, second)


def gather_many(me):
    """Gather more arrays than what ranks say of them in one operation, of other lengths on each rank."""
    values = [np.full(index % 4 * me.rank, 2.0**me.rank + index) for index in range(3000)]
    gathered = me.group.all_gather(values)
    for index, whole in enumerate(gathered):
        assert whole.tolist() == [2.0**rank + index for rank in range(me.size) for _ in range(index % 4 * rank)]
    return len(gathered)


class TestManyArrays:
    def test_are_gathered_whatever_their_number(self, ranks):
        """Their shapes are more than ranks tell each other in one operation."""
        assert [one.value for one in ranks.run(World(gather_many, 3))] == [3000] * 3
