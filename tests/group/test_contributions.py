"""The text of a call's structure, which ranks compare."""

import optree
import pytest

from treefold.group.contributions import structure_of


class Layer:
    """A node of a pytree with static data."""

    def __init__(self, array, tags):
        self.array, self.tags = array, tags


optree.register_pytree_node(
    Layer, lambda one: ((one.array,), one.tags), lambda tags, arrays: Layer(arrays[0], tags), namespace="contributions"
)


def text_of(tags):
    return structure_of(optree.tree_structure(Layer(1, tags), namespace="contributions"))


class TestStructures:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({("a", "b"), ("c", "d")}, {("a", "d"), ("c", "b")}),
            ({"weights": (1, 2), "bias": (3, 4)}, {"weights": (1, 4), "bias": (3, 2)}),
            (["a", "b"], ["b", "a"]),
            ({1, 2}, [1, 2]),
            ("it's {", "it's ("),
        ],
        ids=["sets of pairs", "dicts of pairs", "lists", "a set and a list", "text"],
    )
    def test_that_differ_are_told_apart(self, one, other):
        assert text_of(one) != text_of(other)
        assert text_of(one) == text_of(one)
