"""Hosts with many replicas send exact partial sums: the bits of all replicas at once, and few bytes that travel."""

import itertools
import os
import weakref

import bit_cases
import fake_groups
import numpy as np
import pytest
import random_scenes
from exact_partial_cases import REALS, hostile
from torch_ranks import Raised, hosts, run

import treefold
from treefold.dtypes import numpy_dtype
from treefold.execution.program_walk import _State

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
#: Replicas of each host, a rank each; the same twelve in all of them.
LAYOUTS = ((12,), (6, 6), (1, 11), (4, 2, 6), *(((10, 2), (4, 4, 4), (6, 1, 5)) if IS_FULL else ()))
SCENES = 100 if IS_FULL else 30


def reduced(group, own, op):
    return bit_cases.folded_bits_of(group.all_reduce(treefold.PerReplica(own), op))


class TestBits:
    @pytest.mark.parametrize("dtype", REALS)
    def test_are_one_sha_however_replicas_lie_on_hosts(self, dtype):
        everyone = [hostile(replica, dtype) for replica in range(12)]
        expected = [bit_cases.folded_bits_of(treefold.all_reduce(everyone, op)[0]) for op in ("sum", "mean")]
        for counts in LAYOUTS:
            ends = [0, *itertools.accumulate(counts)]

            def call(group, ends=ends):
                own = everyone[ends[group.rank] : ends[group.rank + 1]]
                return [reduced(group, own, op) for op in ("sum", "mean")]

            _, outcomes = fake_groups.run(len(counts), call)
            assert outcomes == [expected] * len(counts), counts

    @pytest.mark.parametrize("hosts", [1, 2, 3])
    @pytest.mark.parametrize("ranks", [1, 2, 4, 6])
    def test_are_those_of_one_process(self, hosts, ranks):
        """Of several dtypes at once, for any number of hosts and ranks; also weighted."""
        length, count = 5003 * hosts, hosts * ranks
        everyone = [{dtype: hostile(replica, dtype, length) for dtype in REALS} for replica in range(count)]
        weights = [
            [1 + replica % 5 for replica in range(count)],
            [0] * ranks + [replica / 3 for replica in range(1, count)],
        ]
        weights[1] = [*weights[1][: count - 1], 1.0]

        def calls(reduce, chosen):
            yield from (reduce(op) for op in ("sum", "mean"))
            yield from (reduce("mean", weights=some[chosen]) for some in weights)

        def call(group):
            own = slice(group.rank * ranks, (group.rank + 1) * ranks)
            value = treefold.PerReplica(everyone[own])
            made = calls(lambda *args, **kwargs: group.all_reduce(value, *args, **kwargs), own)
            return [bit_cases.folded_bits_of(one) for one in made]

        made = calls(lambda *args, **kwargs: treefold.all_reduce(everyone, *args, **kwargs)[0], slice(None))
        expected = [bit_cases.folded_bits_of(one) for one in made]
        assert fake_groups.run(hosts, call)[1] == [expected] * hosts

    @pytest.mark.parametrize("layout", [((0, 1, 2), (3, 4, 5)), ((0, 1, 2, 3), (4,)), ((0, 2, 4, 6), (1, 3), (5,))])
    def test_are_those_of_one_process_over_gloo(self, layout):
        """Ranks that share hosts by their memory; all kinds of calls, parts of a reduce-scatter among them."""
        size = sum(map(len, layout))
        environment = {"GLOO_SOCKET_IFNAME": "lo"}
        done = run(hosts.differing_sums, size, layout, backend="gloo", environment=environment)
        assert not (failures := [answer.text for answer in done if isinstance(answer, Raised)]), failures[0]
        assert done == [[]] * size


class TestBytes:
    """What travels, of the least: each slice once to its owner, and its result once back."""

    @staticmethod
    def times(replicas, dtype, hosts=2, own=1 << 15):
        length = hosts * own

        def call(group):
            rng = np.random.default_rng(group.rank)
            rows = [rng.normal(size=length).astype(numpy_dtype(dtype)) for _ in range(replicas)]
            group.all_reduce(treefold.PerReplica(rows))

        network, _ = fake_groups.run(hosts, call, chunk_bytes=own)
        moved = sum(one.nbytes for one in network.sends if one.tag > 1)
        return moved / (2 * (hosts - 1) * length * numpy_dtype(dtype).itemsize)

    @pytest.mark.parametrize("replicas", [3, 4, 8])
    @pytest.mark.parametrize(
        ("dtype", "most"), [("float16", 1.6), ("bfloat16", 1.51), ("float32", 1.51), ("float64", 1.55)]
    )
    def test_are_few(self, dtype, most, replicas):
        assert 1.5 <= self.times(replicas, dtype) <= most

    @pytest.mark.parametrize(
        ("dtype", "most"), [("float16", 2.52), ("bfloat16", 1.51), ("float32", 1.51), ("float64", 1.55)]
    )
    def test_are_few_of_many_replicas(self, dtype, most):
        # A few of 4,096 blocks of bfloat16 do not fit the message; one of 512 would be more than the bound allows.
        assert 1.5 <= self.times(16, dtype, own=1 << 18) <= most

    def test_two_replicas_travel_as_they_are(self):
        assert self.times(2, "float32") == 1.5


class TestRails:
    @pytest.mark.parametrize("rails", [2, 3])
    def test_carry_what_follows_messages(self, rails):
        """No block fits its message, and each chunk's replicas come over all rails."""
        everyone = [np.roll(np.tile(np.float32([1e30, 1, -1e30, 1e-20]), 1 << 12), replica) for replica in range(8)]
        expected = bit_cases.folded_bits_of(treefold.all_reduce(everyone, "sum")[0])

        def call(group):
            return reduced(group, everyone[4 * group.rank : 4 * group.rank + 4], "sum")

        _, outcomes = fake_groups.run(2, call, rails=rails)
        assert outcomes == [expected] * 2


class TestMemory:
    def test_holds_few_chunks_of_replicas_that_follow_messages(self, monkeypatch):
        """Of 64 chunks in which no block fits the message, each host keeps those alone that it has not folded yet."""
        replicas, alive, most = 4, [], 0
        ask = _State._expect_rest

        def expect_rest(self, position, peer):
            nonlocal most
            ask(self, position, peer)
            alive.extend(weakref.ref(one) for one in self._rests[position])
            most = max(most, sum(one() is not None for one in alive))

        def call(group):
            row = np.tile(np.float32([1e30, 1, -1e30, 1e-20]), 1 << 16)
            rows = [np.roll(row, replica) for replica in range(replicas)]
            group.all_reduce(treefold.PerReplica(rows))

        monkeypatch.setattr(_State, "_expect_rest", expect_rest)
        fake_groups.run(2, call, chunk_bytes=1 << 13)
        assert len(alive) == 2 * 64 * replicas
        assert most <= 2 * 4 * replicas


class TestFaults:
    @pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "wild"])
    def test_end_as_those_of_other_calls(self, is_prompt):
        """Ranks are killed, stopped or cut off, also between the two messages of a chunk."""
        for seed in range(SCENES):
            scene = random_scenes.Scene(seed)
            scene.calls = [random_scenes.Call("exact", call.length + 1500, None, call.who) for call in scene.calls]
            _, outcomes = random_scenes.run(scene, is_prompt=is_prompt)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise AssertionError(scene) from outcome  # noqa: TRY004 - it is this test's
            random_scenes.check(scene, outcomes, is_prompt=is_prompt)
