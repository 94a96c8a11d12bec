"""What is taken apart, and what is a leaf."""

from dataclasses import dataclass

import pytest

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
    def test_takes_dataclasses_apart(self):
        """By their fields, in order."""
        assert flatten(Pair(1.0, Pair(2.0, 3.0)))[0] == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize("leaf", [Shaped((3,)), Shapeless(1.0)], ids=["its own", "its class's"])
    def test_leaves_whole_what_has_a_shape(self, leaf):
        """Arrays of some frameworks are dataclasses: a shape, of the object or of its class, makes a leaf."""
        assert flatten([leaf, 1.0])[0] == [leaf, 1.0]
