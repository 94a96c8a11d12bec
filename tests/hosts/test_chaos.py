"""Anything happens to the ranks of a group over hosts, on the fake network.

``TREEFOLD_CASES=full`` plays ten times as many scenes.
"""

import os

import pytest
import random_scenes
from fake_network import Stop

_PARTS = 40
SEEDS = 100_000 if os.environ.get("TREEFOLD_CASES") == "full" else 10_000


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


def waits_of(network, rank):
    """Return which of a rank's calls of its channel were waits, counted from 1 as faults count them, and when."""
    made = [(at, call) for at, other, call in network.log if other == rank]
    return [(number, at) for number, (at, call) in enumerate(made, 1) if call == "wait"]


class TestScene:
    @pytest.mark.parametrize("seed", [6213, 8746, 5015240])
    def test_that_once_went_wrong(self, seed):
        """A rank named a third one: it came back late, or what another had sent was lost when all others had left."""
        scene = random_scenes.Scene(seed)
        scene.busy_s = [0.0] * scene.size
        _, outcomes = random_scenes.run(scene, is_prompt=True)
        random_scenes.check(scene, outcomes, is_prompt=True)

    def test_in_which_a_rank_comes_back_at_its_own_deadline(self):
        """It had come to the call later than the others: they have given it up, and it learns that it is out."""
        told_so = 0
        for seed in range(200):
            scene = random_scenes.Scene(seed)
            scene.size, scene.trouble, scene.faults = 2 + seed % 3, "none", ()
            scene.who = late = seed % scene.size
            scene.calls = [random_scenes.Call("new", 60, None, 0)] * 3
            scene.busy_s = [0.3 * (rank == late) for rank in range(scene.size)]
            network, _ = random_scenes.run(scene, is_prompt=True)
            waits = waits_of(network, late)
            scene.trouble = "pause"
            scene.faults = (Stop(late, waits[seed % len(waits)][0], random_scenes.TIMEOUT_S + seed % 20 * 1e-3),)
            _, outcomes = random_scenes.run(scene, is_prompt=True)
            errors = [told.error for told in outcomes if told.error]
            assert {error.ranks for error in errors} <= {(late,)}, (scene, errors)
            told_so += outcomes[late].error is not None
        assert told_so > 50

    @pytest.mark.parametrize(("others_at", "until"), [(3.0, 11.0), (9.6, 10.03)], ids=["for long", "briefly"])
    def test_in_which_a_rank_is_stopped_beyond_its_own_deadline_and_not_theirs(self, others_at, until):
        """The others have come to the call later than it, and first hear from itself that it was away."""
        assert others_at < random_scenes.TIMEOUT_S < until
        told_so = 0
        for seed in range(200):
            scene = random_scenes.Scene(seed)
            scene.size, scene.trouble, scene.faults = 3 + seed % 3, "none", ()
            scene.who = early = seed % scene.size
            scene.calls = [random_scenes.Call("new", (60, 9000)[seed % 2], None, 0)]
            scene.busy_s = [others_at * (rank != early) for rank in range(scene.size)]
            network, _ = random_scenes.run(scene, is_prompt=True)
            scene.trouble = "pause"
            call, at = [(call, at) for call, at in waits_of(network, early) if at < others_at - 0.1][-1 - seed // 2 % 4]
            scene.faults = (Stop(early, call, until - at),)
            _, outcomes = random_scenes.run(scene, is_prompt=True)
            errors = [told.error for told in outcomes if told.error]
            assert {error.ranks for error in errors} <= {(early,)}, (scene, errors)
            told_so += outcomes[early].error is not None
        assert told_so > 50


class TestPlans:
    def test_follow_numbers_of_replicas_back_and_forth(self):
        """A rank that brings as many replicas as ever has a plan of another time, when others bring others again."""
        scene = random_scenes.Scene(0)
        scene.size, scene.trouble, scene.faults = 2, "none", ()
        scene.calls = [random_scenes.Call(method, 60, None, 0) for method in ("new", "replicas", "new", "replicas")]
        _, outcomes = random_scenes.run(scene, is_prompt=True)
        assert [(told.done, told.error) for told in outcomes] == [(5, None)] * 2
