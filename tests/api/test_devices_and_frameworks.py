import re

import numpy as np
import pytest

import treefold
from treefold import HierarchicalCopyAllReduce, NcclAllReduce, PerReplica
from treefold.backends import additional_backend
from treefold.errors import DeviceError, MismatchError
from treefold.ops import cross_device_ops
from treefold.testing import FakeBackend

OPS = HierarchicalCopyAllReduce()


@pytest.fixture
def fake():
    """Return a framework with four devices, gpu:0 to gpu:3, that is loaded for the test."""
    with additional_backend(FakeBackend(4)) as backend:
        yield backend


class TestFrameworks:
    def test_may_not_be_mixed_in_a_leaf(self, fake):
        value = PerReplica([{"w": np.zeros(3)}, {"w": fake.array(np.zeros(3), "gpu:0")}])
        sentence = (
            r"^Replica 1 has a fake array at \['w'\] where replica 0 has a NumPy array\. "
            r"Every replica must bring the same kind of value; convert one of them\.$"
        )
        with pytest.raises(MismatchError, match=sentence):
            OPS.reduce("sum", value, "cpu:0")

    def test_may_stand_side_by_side(self, fake):
        with additional_backend(FakeBackend(4)) as other:
            other.name = "another"
            value = PerReplica(
                [
                    {"a": fake.array(np.full(2, 2.0**r), f"gpu:{r}"), "b": other.array(np.full(3, 2.0**r), f"gpu:{r}")}
                    for r in range(3)
                ]
            )
            total = OPS.reduce("sum", value, value)[2]
            assert fake.owns(total["a"])
            assert other.owns(total["b"])


class TestDevices:
    def test_of_arrays_are_their_own(self, fake):
        value = PerReplica([fake.array(np.full(2, 2.0**r), f"gpu:{3 - r}") for r in range(4)])
        assert value.devices == ("gpu:3", "gpu:2", "gpu:1", "gpu:0")
        assert OPS.reduce("sum", value, ["gpu:1", "gpu:3"]).devices == ("gpu:1", "gpu:3")

    def test_may_not_be_contradicted(self, fake):
        value = PerReplica([fake.array(np.zeros(3), "gpu:0")], devices=["gpu:1"])
        sentence = (
            r"^Replica 0 is said to be on gpu:1, but its array is on gpu:0\. "
            r"Leave devices out to take each array's own, or move the array first\.$"
        )
        with pytest.raises(DeviceError, match=sentence):
            OPS.reduce("sum", value, value)

    def test_of_one_replica_are_one(self, fake):
        value = PerReplica([[fake.array(np.zeros(3), "gpu:0"), fake.array(np.zeros(3), "gpu:1")]])
        sentence = r"^Replica 0 has arrays on gpu:0 and gpu:1\. The arrays of one replica must be on one device"
        with pytest.raises(DeviceError, match=sentence):
            OPS.reduce("sum", value, "gpu:0")

    def test_must_exist(self, fake):
        value = PerReplica([fake.array(np.zeros(3), "gpu:0")])
        with pytest.raises(DeviceError, match=r"^fake has no device gpu:9 here\."):
            OPS.reduce("sum", value, "gpu:9")

    @pytest.mark.usefixtures("fake")
    @pytest.mark.parametrize(
        ("devices", "ops", "why"),
        [
            (["gpu:0", "gpu:1"], "ReductionToOneDevice", r"^2 of a kind"),
            (["gpu:0", "gpu:1", "gpu:2"], "HierarchicalCopyAllReduce", r"^3 of a kind whose links are not known"),
            (["cpu:0", "gpu:1"], "ReductionToOneDevice", r"^cpu and gpu are mixed"),
        ],
    )
    def test_are_given_ops_and_a_reason(self, devices, ops, why):
        choice = treefold.choose_cross_device_ops(devices)
        assert type(choice.ops).__name__ == ops
        assert re.match(why, choice.why)


class TestNcclFallback:
    def test_warns_once_where_values_are_on_gpus(self, fake):
        """One warning for the process; the plan of every call says it."""
        cross_device_ops._warn_without_nccl.cache_clear()
        value = PerReplica([fake.array(np.full(2, 2.0**r), f"gpu:{r}") for r in range(2)])
        with pytest.warns(RuntimeWarning, match=r"^NCCL is not used, because .+: each pack is reduced") as caught:
            results = [NcclAllReduce().reduce("sum", value, value) for _ in range(3)]
        assert len(caught) == 1
        assert all(result.plan.notes for result in results)
