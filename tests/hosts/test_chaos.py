"""Anything happens to the ranks of a group over hosts, on the fake network.

``TREEFOLD_CASES=full`` plays ten times as many scenes.
"""

import os

import chaos
import pytest

_PARTS = 40
SEEDS = 100_000 if os.environ.get("TREEFOLD_CASES") == "full" else 10_000


@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "wild"])
@pytest.mark.parametrize("part", range(_PARTS))
class TestGroups:
    def test_end_in_whole_outputs_and_errors_that_name(self, part, is_prompt):
        """No hang, no wrong number, nothing torn; every survivor raises in time, and where words are prompt names right."""
        for seed in range(part, SEEDS // 2, _PARTS):
            scene = chaos.Scene(seed)
            network, outcomes = chaos.run(scene, is_prompt=is_prompt)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise AssertionError(scene) from outcome
            chaos.check(scene, network, outcomes, is_prompt=is_prompt)
