"""Any call of any group on one host gives the bits of one process that holds all replicas.

``TREEFOLD_CASES=full`` makes 25 times as many calls.
"""

import os

import bit_cases
import numpy as np
import pytest
from rank_processes import World

import treefold
from treefold import _native

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
CALLS = 1_500 if IS_FULL else 60


def make_calls(me, *, first):
    """Make the calls that some seeds draw; return the results that must be equal on all ranks.

    Their lengths are around those at which a call changes its method, or is divided: small values, pages, and the
    memory through which ranks pass parts of larger values.
    """
    treefold.set_num_threads(1)
    ops = bit_cases.ops_of(me.group)
    staging_bytes = min(1 << 20, -(-(4 << 20) // (2 * me.size) // 4096) * 4096)
    around = [4096, 4096, _native.SMALL_BYTES, _native.SMALL_BYTES, staging_bytes]
    return [
        bit_cases.check(bit_cases.Case(seed, me.size, around[seed % len(around)] // me.size), me.group, ops)
        for seed in range(first, first + CALLS)
    ]


class TestAnyCall:
    @pytest.mark.parametrize("size", range(1, 9))
    def test_gives_the_bits_of_one_process(self, ranks, size):
        ended = ranks.run(World(make_calls, size, {"first": size * 1_000_000}, seconds=3_000 if IS_FULL else 300))
        assert [one.error for one in ended] == [None] * size
        assert [len(one.value) for one in ended] == [CALLS] * size
        assert len({tuple(one.value) for one in ended}) == 1


def gather_many(me):
    """Gather more arrays than what ranks say of them in one operation, of other lengths on each rank."""
    values = [np.full(index % 4 * me.rank, 2.0**me.rank + index) for index in range(3000)]
    gathered = me.group.all_gather(values)
    for index, whole in enumerate(gathered):
        assert whole.tolist() == [2.0**rank + index for rank in range(me.size) for _ in range(index % 4 * rank)]
    return len(gathered)


class TestManyArrays:
    def test_are_gathered_whatever_their_number(self, ranks):
        """Their shapes are more than ranks tell each other in one operation."""
        assert [one.value for one in ranks.run(World(gather_many, 3))] == [3000] * 3
