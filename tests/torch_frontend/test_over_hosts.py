"""The backend "treefold" over hosts: ranks of one machine that pretend to be on several, between which gloo carries."""

import functools
import itertools

import pytest
from torch_ranks import collectives, defaults, mail, on_hosts, run, training

LAYOUTS = [(0, 1), (0, 0, 1), (0, 1, 0), (0, 1, 2), (0, 0, 1, 1)]


@functools.cache
def answers(*hosts):
    return run(defaults.called, 2, environment=on_hosts(*hosts))


class TestCollectives:
    @pytest.mark.parametrize("call", defaults.CALLS)
    def test_give_what_they_give_on_one_host(self, call):
        assert [rank[call] for rank in answers(0, 1)] == [rank[call] for rank in answers(0, 0)]

    @pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
    def test_sum_every_rank_once(self, hosts):
        size = len(hosts)
        assert run(collectives.all_reduce_large, size, 50_000, environment=on_hosts(*hosts)) == [True] * size

    def test_have_one_sha_where_hosts_send_exact_partial_sums(self):
        """Hosts of more than two ranks send these in place of their ranks' values."""
        expected = run(collectives.exact_sums, 6)
        assert len({*expected}) == 1
        for hosts in [(0, 0, 0, 1, 1, 1), (0, 1, 0, 1, 0, 1), (0, 0, 0, 0, 1, 2)]:
            assert run(collectives.exact_sums, 6, environment=on_hosts(*hosts)) == expected

    def test_go_in_parts_where_memory_is_small(self):
        """As on one host, what is written overlaps what is read."""
        environment = {"TREEFOLD_GROUP_BYTES": "8192"}
        for hosts, elements in itertools.product([(0, 1, 2), (0, 0, 1)], [5, 3000]):
            answers = run(collectives.overlapping_parts, 3, elements, environment=environment | on_hosts(*hosts))
            assert answers == [[True] * 4] * 3

    def test_of_groups_that_overlap(self):
        expected = [[(0, 3)], [(1, 3), (0, 6)], [(1, 6)]]
        assert run(collectives.overlapping_groups, 3, environment=on_hosts(0, 0, 1)) == expected

    def test_of_a_mesh(self):
        assert run(collectives.mesh_sums, 4, environment=on_hosts(0, 0, 1, 1)) == [[5, 3], [10, 3], [5, 12], [10, 12]]

    def test_of_several_groups_in_another_order_on_each_rank(self):
        assert run(collectives.in_another_order, 2, environment=on_hosts(0, 1)) == [[[3], [30]]] * 2

    def test_may_be_interrupted(self):
        first, second = run(collectives.interrupted, 2, collectives.raise_timeout, environment=on_hosts(0, 1))
        assert (first[0], second[0]) == ("TimeoutError", "PeerLostError")
        assert second[1].startswith("Rank 0 has left the group with an error")


class TestMessages:
    def test_go_between_hosts(self):
        assert run(mail.ring, 3, 5, environment=on_hosts(0, 0, 1)) == [[4], [1], [2]]


class TestTraining:
    @pytest.mark.parametrize("hook", [None, "mean_hook", "shared_mean_hook"])
    def test_under_ddp_gives_the_bits_of_one_host(self, hook):
        learnt = run(training.train, 3, {}, hook)
        assert run(training.train, 3, {}, hook, environment=on_hosts(0, 0, 1)) == learnt

    def test_under_fsdp_gives_the_bits_of_one_host(self):
        assert run(training.shard, 2, environment=on_hosts(0, 1)) == run(training.shard, 2)
