"""``treefold.exact`` with a group: each rank has a part, and all get the bits of one process that has everything."""

import numpy as np
import pytest
from exact_cases import digest_of
from rank_processes import World, told

from treefold import exact


def sums(me):
    return digest_of(me.rank, me.size, me.group)


def integers(me):
    found = [exact.sum(np.arange(5 + me.rank), group=me.group), exact.mean(np.int8([me.rank]), group=me.group)]
    return [(one.dtype.name, float(one)) for one in found]


def several(me):
    """Calls that fail, on all ranks alike, and after each of them one that does not."""
    own = np.ones(3, np.float32 if me.rank else np.float64)
    calls = [
        (exact.sum, own),
        (exact.sum if me.rank else exact.norm, np.ones(3)),
        (exact.norm, np.ones(3, int if me.rank else float)),
        (exact.mean, np.ones(0)),
    ]
    return [
        (told(call, value, group=me.group), float(exact.sum(own, dtype="float32", group=me.group)))
        for call, value in calls
    ]


class TestGroup:
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
    def test_gives_the_bits_of_one_process(self, ranks, size):
        ended = ranks.run(World(sums, size))
        assert [one.value for one in ended] == [digest_of(0, 1)] * size, ended

    def test_adds_integers_of_all_ranks(self, ranks):
        ended = ranks.run(World(integers, 3))
        assert [one.value for one in ended] == [[("int64", 10 + 15 + 21), ("float32", 1.0)]] * 3

    def test_fails_on_all_ranks_alike_and_goes_on(self, ranks):
        first, second = (one.value for one in ranks.run(World(several, 2)))
        assert [works for _, works in first + second] == [6.0] * 8
        kinds = ["CallMismatchError", "CallMismatchError", "CallMismatchError", "ArgumentError"]
        assert [error[0] for error, _ in first] == kinds
        assert "Rank 1 calls exact.sum as float32, while rank 0 calls exact.sum as float64." in first[0][0][1]
        assert "Rank 1 calls exact.sum as float64, while rank 0 calls exact.norm as float64." in first[1][0][1]
        assert "Rank 1 could not make this call: exact.norm has no meaning for int64." in first[2][0][1]
        assert first[3][0] == second[3][0]
        assert second[2][0][0] == "DtypeError"
