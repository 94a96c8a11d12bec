"""The bits of a group over hosts are those of one process. ``TREEFOLD_CASES=full`` makes 25 times as many calls."""

import os

import pytest
from torch_ranks import Raised, hosts, run

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
CALLS = 1500 if IS_FULL else 60
#: Ranks of each host: in blocks, round robin, unequal.
HOSTS = (
    ((0,), (1,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1, 2), (3,)),
    ((0,), (1, 2), (3, 4, 5)),
    ((0, 3, 6), (1, 4), (2, 5)),
    ((0,), (1,), (2,), (3,), (4,)),
    ((0, 4), (1, 5), (2,), (3,)),
    ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)),
)
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


class TestGroup:
    @pytest.mark.parametrize("layout", HOSTS, ids=str)
    def test_gives_the_bits_of_one_process(self, layout):
        """Whatever is reduced, scattered, broadcast or gathered, over gloo, with ranks that share hosts."""
        size, first = sum(map(len, layout)), HOSTS.index(layout) * 100_000
        seeds = range(first, first + CALLS)
        done = run(hosts.bits, size, layout, seeds, (256, 4096), backend="gloo", environment=ON_LOOPBACK)
        assert not (failures := [answer.text for answer in done if isinstance(answer, Raised)]), failures[0]
        assert [len(alike) for alike in done] == [CALLS] * size
        assert len(set(map(tuple, done))) == 1
