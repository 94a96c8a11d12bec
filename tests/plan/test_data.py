"""Plans, and what they are made from, are data: nobody can change them, and there is no place for a misspelt name."""

import dataclasses
import importlib
import pkgutil

import pytest

ROOMS = ("cost", "packing", "plan", "planners", "values")
#: What is worked on while a plan is made or checked.
CHANGING = {"Piece", "Race"}
#: What keeps what it has computed, or is made a few times in a plan.
WITH_PLACE = {"Setting", "_Run", "Column", "Priced", "Start", "Solution", "_Spans", "_Pool", "Shift", "Race"}


def dataclasses_of(room):
    """Return the dataclasses that a room defines."""
    package = importlib.import_module(f"treefold.{room}")
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [
        found
        for name in names
        for found in vars(importlib.import_module(name)).values()
        if isinstance(found, type) and dataclasses.is_dataclass(found) and found.__module__ == name
    ]


ALL = [importlib.import_module("treefold.fold").Fold, *(found for room in ROOMS for found in dataclasses_of(room))]
by_name = {"ids": lambda kind: kind.__name__}


class TestData:
    @pytest.mark.parametrize("kind", [kind for kind in ALL if kind.__name__ not in CHANGING], **by_name)
    def test_is_frozen(self, kind):
        """No field of it can be set."""
        assert kind.__dataclass_params__.frozen

    @pytest.mark.parametrize("kind", [kind for kind in ALL if kind.__name__ not in WITH_PLACE], **by_name)
    def test_has_slots(self, kind):
        """It holds its fields and nothing else: a plan has tens of thousands of some of them."""
        assert "__slots__" in vars(kind)

    def test_is_found(self):
        """These lists name what there is."""
        assert {kind.__name__ for kind in ALL} >= CHANGING | WITH_PLACE | {"Plan", "Pack", "Route"}
