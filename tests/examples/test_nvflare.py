"""The helper for NVFlare: by NVFlare where it is installed, and always by what stands for it here."""

import itertools
import re
import runpy
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import treefold

HELPER = Path(__file__).parents[2] / "examples" / "callbacks" / "nvflare_mean.py"
MODULE = "nvflare.app_common.aggregators.weighted_aggregation_helper"
SITES = [(np.random.default_rng(site).normal(size=100).astype(np.float32), 100.0 + 37 * site) for site in range(4)]


class PretendedHelper:
    """The part of NVFlare's own class that is used: a lock, a pattern, and the state of a round."""

    def __init__(self, exclude_vars=None):
        self.lock = threading.Lock()
        self.exclude_vars = re.compile(exclude_vars) if exclude_vars else None
        self.reset_stats()

    def reset_stats(self):
        self.total, self.history, self.skipped_keys, self.key_contribution_counts = {}, [], set(), {}

    def _compute_aggregation_stats(self):
        return {"accepted_contributions": len(self.history)}


def pretended(monkeypatch):
    """Put a module in the place of NVFlare's."""
    parts = MODULE.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[MODULE].WeightedAggregationHelper = PretendedHelper


def real(_):
    pytest.importorskip(MODULE, reason="NVFlare is not installed: `make test-recipes` has it")


@pytest.fixture(params=[pretended, real])
def helper_class(request, monkeypatch):
    request.param(monkeypatch)
    return runpy.run_path(str(HELPER))["ExactAggregationHelper"]


class TestExactAggregationHelper:
    def test_makes_the_exact_mean_of_contributions_in_any_order(self, helper_class):
        arrays, weights = zip(*SITES, strict=True)
        expected = treefold.average(arrays, weights=weights).tobytes()
        for order in itertools.permutations(SITES):
            helper = helper_class()
            for array, weight in order:
                helper.add({"w": array}, weight, "site", 0)
            assert len(helper.history) == 4
            assert helper.get_result()["w"].tobytes() == expected

    def test_begins_again_after_a_result(self, helper_class):
        helper = helper_class()
        for value in (2.0, 4.0):
            helper.add({"w": np.float32([value])}, 1.0, "site", 0)
            assert helper.get_result()["w"] == value
        assert helper.history == []

    def test_leaves_out_what_it_is_told(self, helper_class):
        helper = helper_class(exclude_vars="^bn")
        helper.add({"w": np.ones(2), "bn.mean": np.ones(2)}, 1.0, "site", 0)
        assert list(helper.get_result()) == ["w"]
