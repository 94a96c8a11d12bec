import re

import numpy as np
import pytest

import treefold
from treefold import (
    AllReduceCrossDeviceOps,
    CommunicationOptions,
    HierarchicalCopyAllReduce,
    IndexedSlices,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
    choose_cross_device_ops,
)
from treefold.errors import ArgumentError, ParseError

OPS = ReductionToOneDevice()
PAIR = np.ones(2, np.float32)
RECORDS = np.zeros(2, "i4,f4")
HUGE = 10**5000


class Shaped:
    """Something with a shape and a dtype, for planning."""

    def __init__(self, shape):
        self.shape, self.dtype = shape, np.float32


def plan_of(shape):
    return OPS.plan(PerReplica([Shaped(shape)]), "cpu:0")


def sum_of_rows(dense_shape):
    rows = IndexedSlices(np.ones((2, 2), np.float32), np.array([0, 1]), dense_shape)
    return OPS.reduce("sum", PerReplica([rows, rows]), "cpu:0")


SHAPES = [(None, 2), 3, (-1, 2), (2**62, 2**62), (2.5, 2), "ab"]


class TestWords:
    @pytest.mark.parametrize("value", [PAIR, RECORDS, [], {}, -HUGE, b"wide", object()], ids=lambda v: type(v).__name__)
    @pytest.mark.parametrize(
        ("call", "begin"),
        [
            (HierarchicalCopyAllReduce, "HierarchicalCopyAllReduce got num_packs="),
            (lambda value: ReductionToOneDevice(accumulate=value), "accumulate is "),
            (AllReduceCrossDeviceOps, "all_reduce_alg is "),
            (lambda value: OPS.reduce(value, PerReplica([1.0]), "cpu:0"), "The reduce op is "),
            (lambda value: CommunicationOptions(implementation=value), "implementation is "),
        ],
    )
    def test_are_words(self, call, begin, value):
        with pytest.raises(ArgumentError, match=f"^{begin}"):
            call(value)


class TestNumbers:
    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (lambda: NcclAllReduce(-HUGE), "NcclAllReduce got num_packs=an int. It takes 0"),
            (lambda: CommunicationOptions(bytes_per_pack=-HUGE), "bytes_per_pack is an int. It takes a whole number"),
            (lambda: CommunicationOptions(timeout_seconds=-HUGE), "timeout_seconds is an int. It takes a number of"),
            (lambda: OPS.gather(PerReplica([PAIR]), "cpu:0", HUGE), "gather got axis=an int. It takes -1 to 0"),
            (lambda: treefold.set_num_threads(-HUGE), "The number of threads is an int. It takes a whole number"),
            (
                lambda: OPS.reduce("sum", PerReplica([PAIR]), "cpu:0", CommunicationOptions(timeout_seconds=HUGE)),
                "timeout_seconds=an int cannot be honoured by the host executor",
            ),
        ],
    )
    def test_of_thousands_of_digits_are_not_written_out(self, call, sentence):
        with pytest.raises(ArgumentError, match=f"^{re.escape(sentence)}"):
            call()


class TestShapes:
    @pytest.mark.parametrize(
        ("make", "shape"), [(plan_of, None), *((make, shape) for make in (plan_of, sum_of_rows) for shape in SHAPES)]
    )
    def test_that_no_array_has_are_refused(self, make, shape):
        sentence = r"^A shape is .+\. It takes a tuple of whole numbers, 0 or more, one for each axis\.$"
        with pytest.raises(ArgumentError, match=sentence):
            make(shape)

    def test_may_be_of_any_whole_numbers(self):
        assert plan_of(np.array([2, 3])) == plan_of((2, 3))
        assert sum_of_rows(np.array([4, 2]))[0].values.shape == (4, 2)


class TestLists:
    @pytest.mark.parametrize(
        "pairs", [np.array(1.0), PAIR, {(1.0, "cpu:0")}, {1: "cpu:0"}, 3, "ab"], ids=lambda v: type(v).__name__
    )
    def test_of_pairs_are_in_an_order(self, pairs):
        with pytest.raises(ArgumentError, match=r"^value_destination_pairs is .+\. It takes a sequence of"):
            OPS.batch_reduce("sum", pairs)

    @pytest.mark.parametrize("devices", [3, None, object(), len], ids=lambda v: type(v).__name__)
    def test_of_devices_to_choose_for_are_names(self, devices):
        with pytest.raises(ArgumentError, match=r"^The destination is .+\. It takes a device \(a name, "):
            choose_cross_device_ops(devices)


class TestPaths:
    def test_that_no_file_can_have_are_refused(self):
        with pytest.raises(ParseError, match=r"^There is no file "):
            treefold.load_topology("\ud800")


class TestBareValues:
    def test_count_as_one_replica(self):
        assert OPS.reduce("sum", 3.0, "cpu:0")[0] == 3.0
        assert OPS.reduce("sum", PAIR, "cpu:1")[0].tolist() == [1.0, 1.0]
        assert OPS.plan(Shaped((4,)), "cpu:0").leaves == OPS.plan(np.ones(4, np.float32), "cpu:0").leaves


class TestPlan:
    def test_of_two_pairs_says_which_leaf_is_whose(self):
        value = PerReplica([PAIR, PAIR])
        assert OPS.plan([(value, value)]).paths == ("",)
        assert OPS.plan([(value, value)] * 2).paths == ("[0]", "[1]")

    @pytest.mark.parametrize("missing", ["shape", "dtype"])
    def test_of_what_has_no_shape_or_no_dtype_is_refused(self, missing):
        value = Shaped((2,))
        delattr(value, missing)
        for given in (value, PerReplica([value, value])):
            with pytest.raises(ArgumentError, match="is a Shaped, which is no array of a loaded framework"):
                OPS.plan(given, "cpu:0")
