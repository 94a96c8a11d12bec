"""Ops classes with a group: the destinations of each rank, batches, and errors, which are equal on all ranks."""

import numpy as np
import pytest
from rank_processes import World, told

import treefold
from treefold import IndexedSlices, PerReplica
from treefold.errors import TreefoldError
from treefold.testing import owned, owned_sum

_LARGE = 200_001


def is_usable(me):
    return float(me.group.all_reduce(np.float32(2**me.rank))) == 2**me.size - 1


def replicas(me, counts, length, dtype="float32"):
    """Return this rank's replicas of one value, of which ``counts`` are on each rank, and their sum over all ranks."""
    first = sum(counts[: me.rank])
    return PerReplica([owned(first + i, (length,), dtype) for i in range(counts[me.rank])]), owned_sum(
        sum(counts), (length,), dtype
    )


def reduce_a_batch(me, *, length):
    """Reduce values of which ranks have different numbers of replicas: again, in place, and with other numbers."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    found = []
    for turn in range(3):
        counts = (1, 2, 3) if turn < 2 else (3, 1, 2)
        values, sums = zip(*(replicas(me, counts, length + i) for i in range(2)), strict=True)
        made = ops.batch_reduce("sum", [(value, "cpu:0") for value in values])
        found += [bool((one[0] == total).all()) for one, total in zip(made, sums, strict=True)]
        outs = [PerReplica([value[0], np.zeros_like(value[0])]) for value in values]
        made = ops.batch_reduce("sum", [(value, ["cpu:0", "cpu:1"]) for value in values], out=outs)
        for one, value, total in zip(made, values, sums, strict=True):
            found += [one[0] is value[0], bool((value[0] == total).all()), bool((one[1] == total).all())]
        found.append(made[0].plan.digest)
    return found


def reduce_a_mixed_mean(me, *, length):
    """Take the MEAN of dense and sparse values over replicas of which ranks have different numbers."""
    ops = treefold.ReductionToOneDevice(group=me.group)
    dense, _ = replicas(me, (1, 3), length, "float64")
    count = 1 if me.rank == 0 else 3
    rows = [IndexedSlices(np.full((1, 2), 2.0 ** (2 * me.rank + i)), np.array([i]), (4, 2)) for i in range(count)]
    made = ops.batch_reduce("mean", [(dense, "cpu:0"), (PerReplica(rows), "cpu:0")])
    sparse = made[1][0]
    return made[0][0].tolist() == (owned_sum(4, (length,), "float64") / 4).tolist(), sparse.values.tolist()


def reduce_a_batch_wrongly(me, *, what):
    """One rank's batch is wrong in itself: a shape, the number of weights, or values with other numbers of replicas."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    one, two = np.ones(3, np.float32), np.ones((3 if what != "shape" or me.rank else 4,), np.float32)
    first = one if what == "replicas" and not me.rank else PerReplica([one, one])
    pairs = [(first, "cpu:0"), (PerReplica([one, two]), "cpu:0")]
    weights = [1.0, 2.0, 3.0] if what == "weights" else None
    return told(ops.batch_reduce, "mean", pairs, weights=weights), is_usable(me), told(ops.plan, pairs)


class TestBatches:
    @pytest.mark.parametrize("length", [0, 5, _LARGE])
    def test_of_ranks_with_other_numbers_of_replicas(self, ranks, length):
        """As in one process, each value is that of its own replicas, on all ranks, by one plan."""
        ended = ranks.run(World(reduce_a_batch, 3, {"length": length}))
        assert all(one.error is None for one in ended), ended
        assert ended[0].value == ended[1].value == ended[2].value
        assert all(found is not False for one in ended for found in one.value), ended

    def test_means_divide_by_the_replicas_of_all_ranks(self, ranks):
        for one in ranks.run(World(reduce_a_mixed_mean, 2, {"length": 9})):
            assert one.value == (True, [[1 / 4] * 2, [1.0] * 2, [2.0] * 2, [4.0] * 2])

    @pytest.mark.parametrize(("what", "says"), [("shape", "Replica 1 has float32 (4,)"), ("weights", "weights")])
    def test_wrong_on_one_rank_are_refused_on_all(self, ranks, what, says):
        ended = ranks.run(World(reduce_a_batch_wrongly, 2, {"what": what}))
        assert all(one.error is None for one in ended), ended
        assert all(says in one.value[0][1] and one.value[1] for one in ended), ended

    def test_of_values_with_other_numbers_of_replicas_are_refused_on_all(self, ranks):
        """One rank has them; the other hears its sentence. Its plan is refused, too, on that rank alone."""
        sentence = (
            "The values of this batch have 1, 2 replicas on this rank. All values that a group reduces in one batch "
            "have as many on a rank; reduce the others in another call."
        )
        first, second = (one.value for one in ranks.run(World(reduce_a_batch_wrongly, 2, {"what": "replicas"})))
        assert first == (("ArgumentError", sentence), True, ("ArgumentError", sentence))
        assert second[0][0] == "CallMismatchError"
        assert sentence in second[0][1]
        assert second[1:] == (True, "done")


def reduce_to(me, *, names, out_of=None):
    """Reduce to these destinations, by rank if there are several lists; return the devices and the sums."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    mine = names[me.rank] if isinstance(names, dict) else names
    value, sums = replicas(me, (1,) * me.size, 4)
    out = np.zeros(4, np.float32) if out_of and out_of[me.rank] else None
    try:
        made = ops.reduce("sum", value, mine, out=out)
    except TreefoldError as error:
        return type(error).__name__, str(error), is_usable(me)
    return made.devices, all((one == sums).all() for one in made), is_usable(me)


class TestDestinations:
    def test_without_ranks_are_each_ranks_own(self, ranks):
        names = {0: ["cpu:0", "cpu:1"], 1: "cpu:2", 2: ["cpu:0"]}
        ended = ranks.run(World(reduce_to, 3, {"names": names}))
        assert [one.value for one in ended] == [
            (("cpu:0", "cpu:1"), True, True),
            (("cpu:2",), True, True),
            (("cpu:0",), True, True),
        ]

    def test_with_ranks_are_the_same_list_on_all(self, ranks):
        ended = ranks.run(World(reduce_to, 3, {"names": ["2/cpu:0", "0/cpu:1", "2/cpu:1"]}))
        assert [one.value for one in ended] == [
            (("cpu:1",), True, True),
            ((), True, True),
            (("cpu:0", "cpu:1"), True, True),
        ]

    def test_with_ranks_in_tensorflows_words(self, ranks):
        ended = ranks.run(World(reduce_to, 2, {"names": "/job:worker/replica:0/task:1/device:CPU:0"}))
        assert [one.value for one in ended] == [((), True, True), (("cpu:0",), True, True)]

    @pytest.mark.parametrize("out_of", [(1, 0), (0, 1)])
    def test_with_ranks_take_results_into_out_where_they_are(self, ranks, out_of):
        names = f"{out_of.index(1)}/cpu:0"
        ended = ranks.run(World(reduce_to, 2, {"names": names, "out_of": out_of}))
        assert [one.value for one in ended] == [(("cpu:0",) * count, True, True) for count in out_of]

    def test_some_with_and_some_without_ranks_are_refused(self, ranks):
        for one in ranks.run(World(reduce_to, 2, {"names": ["0/cpu:0", "cpu:0"]})):
            kind, sentence, works = one.value
            assert (kind, works) == ("DeviceError", True)
            assert sentence.startswith("'cpu:0' names no rank, in a group of ranks 0 to 1.")

    def test_of_ranks_that_there_are_not_are_refused(self, ranks):
        for one in ranks.run(World(reduce_to, 2, {"names": "2/cpu:0"})):
            assert (one.value[0], one.value[2]) == ("DeviceError", True)
            assert one.value[1].startswith("'2/cpu:0' is a device of rank 2, in a group of ranks 0 to 1.")

    @pytest.mark.parametrize("other", ["0/cpu:0", ["1/cpu:0", "0/cpu:0"], "cpu:0"])
    def test_that_differ_between_ranks_are_a_mismatch(self, ranks, other):
        names = {0: ["0/cpu:0", "1/cpu:0"], 1: ["0/cpu:0", "1/cpu:0"], 2: other}
        ended = ranks.run(World(reduce_to, 3, {"names": names}))
        assert {one.value[0] for one in ended} == {"CallMismatchError"}, ended
        assert {one.value[2] for one in ended} == {True}
        assert len({one.value[1] for one in ended}) == 1
        assert "while rank 0 calls all_reduce, SUM, to 0/cpu:0, 1/cpu:0 of " in ended[0].value[1]

    def test_that_there_are_not_are_refused_before_the_call(self, ranks):
        ended = ranks.run(World(reduce_to, 2, {"names": {0: "cpu:0", 1: "gpu:0"}}))
        assert [one.value[0] for one in ended] == ["CallMismatchError", "DeviceError"], ended
        assert all(one.value[2] for one in ended)


def reduce_some_elsewhere(me):
    """Reduce a batch of which each rank is a destination of one value, into arrays of its own."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    values, sums = zip(*(replicas(me, (1,) * me.size, 4 + i) for i in range(me.size)), strict=True)
    kept = np.zeros_like(values[me.rank][0])
    out = [kept if i == me.rank else None for i in range(me.size)]
    made = ops.batch_reduce("sum", [(value, f"{i}/cpu:0") for i, value in enumerate(values)], out=out)
    return [len(one.values) for one in made], bool((kept == sums[me.rank]).all())


def give_a_wrong_second_out(me):
    """Give arrays for two destinations, of which the second cannot take the result on rank 1."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    value, _ = replicas(me, (1,) * me.size, 4)
    before = value[0].copy()
    out = PerReplica([value[0], np.zeros(5 if me.rank == 1 else 4, np.float32)])
    story = told(ops.reduce, "sum", value, ["cpu:0", "cpu:1"], out=out)
    return story[0], bool((value[0] == before).all()), is_usable(me)


def write_anywhere(me, *, nbytes, shifts):
    """Reduce into memory that begins and ends anywhere; return where it is wrong, or wrong beside it."""
    pattern = np.arange(nbytes, dtype=np.uint32).astype(np.uint8) % 7
    wrong = []
    for shift in shifts:
        memory = np.full(nbytes + 256, 99, np.uint8)
        expected = memory.copy()
        expected[shift : shift + nbytes] = (2**me.size - 1) * pattern
        me.group.all_reduce(2**me.rank * pattern, out=memory[shift : shift + nbytes])
        wrong += [] if (memory == expected).all() else [shift]
    return wrong


class TestOut:
    @pytest.mark.parametrize("nbytes", [4 << 20, (4 << 20) + 1, (5 << 20) + 77])
    def test_of_a_large_result_is_written_exactly(self, ranks, nbytes):
        """Those beyond 4 MiB are written around the caches, which needs whole lines: the rest is written as ever."""
        shifts = (0, 1, 4, 15, 16, 63, 64, 127)
        ended = ranks.run(World(write_anywhere, 3, {"nbytes": nbytes, "shifts": shifts}))
        assert [one.value for one in ended] == [[], [], []], ended

    def test_of_a_batch_whose_destinations_are_on_several_ranks(self, ranks):
        ended = ranks.run(World(reduce_some_elsewhere, 2))
        assert [one.value for one in ended] == [([1, 0], True), ([0, 1], True)], ended

    def test_that_cannot_take_a_copy_is_refused_before_the_call(self, ranks):
        ended = ranks.run(World(give_a_wrong_second_out, 2))
        assert [one.value for one in ended] == [("CallMismatchError", True, True), ("OutputError", True, True)]


def use_other_methods(me):
    """Gather, plan, and give a function that folds."""
    ops = treefold.HierarchicalCopyAllReduce(group=me.group)
    value = PerReplica([np.full((me.rank + 1, 2), 2.0 ** (2 * me.rank + i)) for i in range(2)])
    gathered = ops.gather(value, ["cpu:0", "cpu:1"], 0)
    rank_1 = ops.gather(value, "1/cpu:0", 0)
    plan = ops.plan(value, "cpu:0")
    story = told(treefold.ReductionToOneDevice, accumulation_fn=sum, group=me.group)
    return [one[:, 0].tolist() for one in gathered], len(rank_1.values), plan.executor, story, is_usable(me)


class TestMethods:
    def test_gather_and_plan_are_of_the_group(self, ranks):
        expected = [1.0, 2.0, 4.0, 4.0, 8.0, 8.0]
        for rank, one in enumerate(ranks.run(World(use_other_methods, 2))):
            gathered, of_rank_1, executor, (kind, sentence), works = one.value
            assert gathered == [expected, expected]
            assert (of_rank_1, executor, works) == (rank, "shared_memory", True)
            assert kind == "ArgumentError"
            assert sentence.startswith("accumulation_fn does not go with group=.")
