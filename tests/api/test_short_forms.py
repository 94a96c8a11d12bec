"""``all_reduce``, ``reduce`` and ``broadcast``: lists in, lists out."""

import numpy as np
import pytest

import treefold
from treefold import Mirrored, PerReplica
from treefold.backends import additional_backend
from treefold.testing import FakeBackend


class TestShortForms:
    def test_all_reduce_is_a_list_in_and_a_list_out(self):
        arrays = [np.array([1.0, 8.0]), np.array([2.0, 16.0]), np.array([4.0, 32.0])]
        means = treefold.all_reduce(arrays, op="mean")
        assert isinstance(means, list)
        assert all(np.array_equal(mean, [7 / 3, 56 / 3]) for mean in means)

    def test_all_reduce_works_in_place(self):
        arrays = [np.array([1.0]), np.array([2.0])]
        assert treefold.all_reduce(arrays, out=arrays)[1] is arrays[1]
        assert [float(array[0]) for array in arrays] == [3, 3]

    def test_all_reduce_of_distributed_values_carries_its_plan(self):
        value = PerReplica([np.full(3, 2.0**r) for r in range(3)])
        for _ in range(2):
            for out in (None, value):
                result = treefold.all_reduce(PerReplica([np.full(3, 2.0**r) for r in range(3)]), "max", out=out)
                assert isinstance(result, Mirrored)
                assert result.plan.collective == "all_reduce"
                assert [component.tolist() for component in result] == [[4.0] * 3] * 3
                assert out is None or all(one is other for one, other in zip(result, value, strict=True))

    @pytest.mark.parametrize("call", [treefold.all_reduce, treefold.reduce])
    @pytest.mark.parametrize("values", [(np.ones(2), np.ones(2)), (1.0, 2.0), ([1.0], [2.0]), ({"a": 1.0}, {"a": 2.0})])
    def test_values_beside_each_other_are_refused(self, call, values):
        name = call.__name__
        sentence = (
            f"{name} got a value where its reduce op is meant. It takes the values of all replicas in one list: write "
            f"{name}([a, b]), or {name}([a, a]) for one value twice."
        )
        with pytest.raises(TypeError) as caught:
            call(*values)
        assert str(caught.value) == sentence

    def test_reduce_gives_one_value(self):
        assert treefold.reduce([1, 2, 4], to="cpu:0") == 7

    def test_reduce_takes_the_op_where_all_reduce_does(self):
        assert treefold.reduce([1.0, 2.0, 6.0], "mean") == treefold.all_reduce([1.0, 2.0, 6.0], "mean")[2] == 3.0

    def test_reduce_goes_to_the_first_replica_s_device(self):
        with additional_backend(FakeBackend(3)) as fake:
            for first in (2, 1, 2, 1):
                arrays = [fake.array([2.0**r], f"gpu:{device}") for r, device in enumerate((first, 0))]
                total = treefold.reduce(arrays)
                assert (fake.device_of(total), float(total.data[0])) == (f"gpu:{first}", 3.0)

    def test_broadcast_gives_one_copy_per_destination(self):
        assert [int(copy) for copy in treefold.broadcast(5, ["cpu:0", "cpu:1"])] == [5, 5]
