"""Plans, and what they are made from, are data: nobody can change them, and there is no place for a misspelt name."""

import dataclasses
import functools
import importlib
import pkgutil

import pytest

ROOMS = ("plan", "planners", "planners.packing", "topology.cost", "topology.planning", "values")
#: What is worked on while a plan is chosen or checked.
CHANGING = {"Piece", "Race"}
#: What there is one of while a plan is priced.
FEW = {"RouteChoice", "Setting"}


def dataclasses_of(room):
    """Return the dataclasses that a room defines."""
    package = importlib.import_module(f"treefold.{room}")
    inner = pkgutil.walk_packages(getattr(package, "__path__", ()), f"{package.__name__}.")
    names = [package.__name__, *(module.name for module in inner)]
    return [
        found
        for name in names
        for found in vars(importlib.import_module(name)).values()
        if isinstance(found, type) and dataclasses.is_dataclass(found) and found.__module__ == name
    ]


def keeps_what_it_computed(kind):
    """Tell whether a property is computed once: what it was then has to be put somewhere."""
    return any(isinstance(member, functools.cached_property) for member in vars(kind).values())


FOUND = {room: dataclasses_of(room) for room in ROOMS}
FROZEN = [kind for kinds in FOUND.values() for kind in kinds if kind.__name__ not in CHANGING]
SMALL = [
    kind
    for room in ("planners.packing", "plan", "topology.cost", "values")
    for kind in FOUND[room]
    if not keeps_what_it_computed(kind) and not kind.__name__.startswith("_") and kind.__name__ not in FEW
]
by_name = {"ids": lambda kind: kind.__name__}


class TestData:
    @pytest.mark.parametrize("kind", [importlib.import_module("treefold.fold").Fold, *FROZEN], **by_name)
    def test_is_frozen(self, kind):
        assert kind.__dataclass_params__.frozen

    @pytest.mark.parametrize("kind", SMALL, **by_name)
    def test_has_slots(self, kind):
        assert "__slots__" in vars(kind)

    def test_is_found(self):
        assert {kind.__name__ for kind in FROZEN} >= {"Plan", "Pack", "Route", "SpanningTree", "IndexedSlices"}
