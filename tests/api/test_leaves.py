"""Which values are flattened, and which are leaves."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from treefold import PerReplica, ReductionToOneDevice
from treefold.errors import ArgumentError
from treefold.values import flatten


@dataclass
class Pair:
    first: object
    second: object


@dataclass
class Shaped:
    shape: tuple


@dataclass
class Shapeless:
    value: object

    @property
    def shape(self):
        """Have none: the class says there is one, the object does not tell."""
        raise AttributeError


class TestFlatten:
    def test_flattens_dataclasses(self):
        assert flatten(Pair(1.0, Pair(2.0, 3.0)))[0] == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize("leaf", [Shaped((3,)), Shapeless(1.0)], ids=["its own", "its class's"])
    def test_leaves_whole_what_has_a_shape(self, leaf):
        """Arrays of some frameworks are dataclasses: a shape, of the object or of its class, makes a leaf."""
        assert flatten([leaf, 1.0])[0] == [leaf, 1.0]


class TestShapesAlone:
    def test_of_many_elements_are_planned(self):
        """A plan needs no memory: up to 2**63 elements, as many as an array can have."""
        large = SimpleNamespace(shape=(1 << 40, 3), dtype="float32")
        plan = ReductionToOneDevice().plan(PerReplica([large, large]), "cpu:0")
        assert {buffer.length for buffer in plan.buffers} == {3 << 40}

    def test_of_more_elements_than_an_array_can_have_are_refused(self):
        huge = SimpleNamespace(shape=(1 << 62, 2), dtype="float32")
        with pytest.raises(ArgumentError):
            ReductionToOneDevice().plan(PerReplica([huge, huge]), "cpu:0")
