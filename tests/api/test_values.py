import collections
import dataclasses
import pickle
import typing

import numpy as np
import pytest

from treefold import DistributedValues, HierarchicalCopyAllReduce, IndexedSlices, Mirrored, PerReplica, all_reduce
from treefold.errors import TreefoldError


@dataclasses.dataclass
class Layer:
    kernel: object
    bias: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Layer
    scale: float = dataclasses.field(default=0.0)


class Pair(typing.NamedTuple):
    left: object
    right: object


class TestDistributedValues:
    def test_hold_components_in_order(self):
        value = PerReplica([1.0, 2.0, 4.0])
        assert (len(value), list(value), value[2], value.values) == (3, [1.0, 2.0, 4.0], 4.0, (1.0, 2.0, 4.0))

    def test_without_devices_host_values_stand_for_logical_cpus(self):
        assert PerReplica([np.zeros(1), np.zeros(1)]).devices == ("cpu:0", "cpu:1")

    def test_with_devices_names_are_made_short(self):
        assert PerReplica([1.0, 2.0], ["/device:CPU:3", "cpu:1"]).devices == ("cpu:3", "cpu:1")

    def test_show_each_component_beside_its_device(self):
        assert repr(Mirrored([1.0, 1.0])) == "Mirrored:{\n  0 cpu:0: 1.0\n  1 cpu:1: 1.0\n}"

    @pytest.mark.parametrize(
        ("value", "index", "kind", "sentence"),
        [
            (
                Mirrored([1.0, 1.0]),
                5,
                IndexError,
                "Mirrored has no component 5: it has 2 components. Give a whole number from -2 to 1.",
            ),
            (
                PerReplica([1.0]),
                -2,
                IndexError,
                "PerReplica has no component -2: it has 1 component. Give a whole number from -1 to 0.",
            ),
            (
                Mirrored([1.0, 1.0]),
                "gpu:0",
                TypeError,
                "Mirrored got the index 'gpu:0'. Components have numbers, 0 to 1, and mirrored.on('gpu:0') returns "
                "that of a device.",
            ),
            (
                Mirrored([1.0]),
                None,
                TypeError,
                "Mirrored got the index None. Components have numbers, 0 to 0, and devices tells where each is.",
            ),
            (
                PerReplica([1.0, 1.0]),
                "gpu:0",
                TypeError,
                "PerReplica got the index 'gpu:0'. Components have numbers, 0 to 1, and devices tells where each is.",
            ),
        ],
    )
    def test_say_which_components_there_are(self, value, index, kind, sentence):
        with pytest.raises(kind) as caught:
            value[index]
        assert isinstance(caught.value, TreefoldError)
        assert str(caught.value) == sentence

    def test_do_not_copy(self):
        array = np.zeros(3)
        assert PerReplica([array])[0] is array

    def test_mirrored_is_found_by_device(self):
        assert Mirrored([1.0, 2.0], ["cpu:3", "cpu:1"]).on("/device:CPU:1") == 2.0

    def test_both_kinds_are_distributed_values(self):
        assert issubclass(PerReplica, DistributedValues)
        assert issubclass(Mirrored, DistributedValues)

    @pytest.mark.parametrize("kind", [DistributedValues, PerReplica, Mirrored])
    def test_say_what_a_component_is(self, kind):
        """``PerReplica[np.ndarray]`` is for type checkers: it makes the same objects, pickled or not."""
        made = kind[np.ndarray]([np.ones(2), np.ones(2)], ["cpu:1", "cpu:0"])
        assert type(made) is kind
        back = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
        assert (type(back), back.devices) == (kind, ("cpu:1", "cpu:0"))
        assert isinstance(back, DistributedValues)
        assert typing.get_args(kind[np.ndarray]) == (np.ndarray,)


def contribution(replica):
    """Return a structure of every kind with 2**replica in all leaves."""
    value = 2.0**replica
    return {
        "z": [value, (np.full((2, 2), value), None)],
        "a": Frozen(Layer(np.full(3, value), value), value),
        "pair": Pair(value, {}),
        "ordered": collections.OrderedDict(b=value, a=value),
    }


class TestStructures:
    def test_come_back_as_they_were(self):
        total = all_reduce([contribution(0), contribution(1), contribution(2)])[1]
        assert list(total) == ["z", "a", "pair", "ordered"]
        assert total["z"][0] == 7
        assert np.array_equal(total["z"][1][0], np.full((2, 2), 7))
        assert total["z"][1][1] is None
        assert isinstance(total["a"], Frozen)
        assert isinstance(total["a"].inner, Layer)
        assert np.array_equal(total["a"].inner.kernel, np.full(3, 7))
        assert (total["a"].inner.bias, total["a"].scale) == (7, 7)
        assert isinstance(total["pair"], Pair)
        assert (total["pair"].left, total["pair"].right) == (7, {})
        assert list(total["ordered"]) == ["b", "a"]

    def test_errors_name_the_path_of_the_leaf(self):
        good, bad = contribution(0), contribution(1)
        bad["a"].inner.kernel = np.zeros(4)
        with pytest.raises(
            ValueError, match=r"^Replica 1 has float64 \(4,\) at \['a'\]\.inner\.kernel where replica 0"
        ):
            all_reduce([good, bad])

    def test_numbers_are_arrays_without_axes(self):
        total = all_reduce([1, 2])[0]
        assert (total.shape, total.dtype, int(total)) == ((), np.int64, 3)

    def test_sparse_rows_are_leaves(self):
        rows = [{"e": IndexedSlices(np.full((1, 2), 2.0**r), np.array([r]), (9, 2))} for r in range(2)]
        mean = HierarchicalCopyAllReduce().reduce("mean", PerReplica(rows), "cpu:0")[0]["e"]
        assert np.array_equal(mean.values, [[0.5, 0.5], [1, 1]])
        assert np.array_equal(mean.indices, [0, 1])
        assert mean.dense_shape == (9, 2)
