"""Anything happens to the ranks of a group over hosts, on the fake network.

``TREEFOLD_CASES=full`` plays 10,000 scenes; each can be played again by its seed.
"""

import os

import pytest
import random_scenes

_PARTS = 4
SEEDS = 10_000 if os.environ.get("TREEFOLD_CASES") == "full" else 500


@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "wild"])
@pytest.mark.parametrize("part", range(_PARTS))
class TestGroups:
    def test_end_in_whole_outputs_and_errors_that_name(self, part, is_prompt):
        """No hang, no wrong number, nothing torn; survivors raise in time, and name right where words are prompt."""
        for seed in range(part, SEEDS // 2, _PARTS):
            scene = random_scenes.Scene(seed)
            _, outcomes = random_scenes.run(scene, is_prompt=is_prompt)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise AssertionError(scene) from outcome  # noqa: TRY004 - it is this test's
            random_scenes.check(scene, outcomes, is_prompt=is_prompt)


class TestPlans:
    def test_follow_numbers_of_replicas_back_and_forth(self):
        """A rank that brings as many replicas as ever has a plan of another time, when others bring others again."""
        scene = random_scenes.Scene(0)
        scene.size, scene.trouble, scene.faults = 2, "none", ()
        scene.calls = [random_scenes.Call(method, 60, None, 0) for method in ("new", "replicas", "new", "replicas")]
        _, outcomes = random_scenes.run(scene, is_prompt=True)
        assert [(told.done, told.error) for told in outcomes] == [(5, None)] * 2
