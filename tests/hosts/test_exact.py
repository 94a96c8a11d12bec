"""``treefold.exact`` with ranks on several hosts: the bits of one process that has everything."""

import fake_groups
import pytest
from exact_cases import digest_of
from torch_ranks import Raised, hosts, run


class TestGroup:
    @pytest.mark.parametrize("size", [2, 3])
    def test_gives_the_bits_of_one_process_whatever_is_late(self, size):
        _, outcomes = fake_groups.run(size, lambda group: digest_of(group.rank, size, group))
        assert outcomes == [digest_of(0, 1)] * size

    @pytest.mark.parametrize("layout", [((0, 2), (1,)), ((0, 1), (2, 3)), ((0, 3), (1, 4), (2, 5))], ids=str)
    def test_gives_them_over_gloo(self, layout):
        size = sum(map(len, layout))
        answers = run(hosts.exact_sums, size, layout, backend="gloo", environment={"GLOO_SOCKET_IFNAME": "lo"})
        assert not (failures := [answer.text for answer in answers if isinstance(answer, Raised)]), failures[0]
        assert answers == [digest_of(0, 1)] * size
