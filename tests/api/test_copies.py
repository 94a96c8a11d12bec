import copy
import pickle

import numpy as np
import pytest

import treefold
from treefold import (
    AllReduceCrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    PerReplica,
    ReductionToOneDevice,
)
from treefold.backends import additional_backend
from treefold.testing import FakeBackend

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda ops: pickle.loads(pickle.dumps(ops)),  # noqa: S301 - our own
}
OPS = [
    ReductionToOneDevice("cpu:1", accumulate="native"),
    ReductionToOneDevice(accumulation_fn=sum),
    AllReduceCrossDeviceOps("hierarchical_copy", 2),
    HierarchicalCopyAllReduce("auto"),
    HierarchicalCopyAllReduce("auto", topology="dgx1_v100"),
    NcclAllReduce(3),
]


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("ops", OPS, ids=repr)
class TestOps:
    def test_reduce_like_what_they_were_copied_from(self, ops, make):
        value = PerReplica([np.full(4, 2.0**r) for r in range(3)])
        pairs = [] if "topology" in repr(ops) else [(value, value)]
        for _ in range(3):
            again = make(ops)
            assert repr(again) == repr(ops)
            for one in (ops, again):
                assert [result[2].tolist() for result in one.batch_reduce("sum", pairs)] == [[7.0] * 4] * len(pairs)


class TestDeepCopies:
    def test_leave_the_caches_behind(self):
        ops = HierarchicalCopyAllReduce()
        value = PerReplica([np.ones(4)] * 2)
        ops.reduce("sum", value, value)
        again = copy.deepcopy(ops)
        assert (len(ops._calls), len(again._calls)) == (1, 0)
        assert len(pickle.dumps(ops)) == len(pickle.dumps(HierarchicalCopyAllReduce()))

    def test_of_what_ops_take_and_give_are_equal_to_it(self):
        machine = treefold.known_topology("dgx1_v100")
        assert len(machine.capacities) > 0
        choice = treefold.choose_cross_device_ops(machine.devices, topology=machine)
        for value in (treefold.CommunicationOptions(bytes_per_pack=8), machine):
            assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own
        assert copy.deepcopy(choice).predicted == choice.predicted
        with additional_backend(FakeBackend(2)) as fake:
            value = PerReplica([fake.array(np.ones(4), device) for device in fake.devices])
            timeline = treefold.simulate(
                HierarchicalCopyAllReduce().plan(value, value), treefold.known_topology("mesh:2"), 32
            )
        assert len(timeline.links) > 0
        assert copy.deepcopy(timeline) == timeline
