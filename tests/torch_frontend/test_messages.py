"""Messages between single ranks of the backend "treefold", which go by gloo."""

import pytest
from torch_ranks import Died, mail, run


class TestSendRecv:
    def test_both_ways_at_once(self):
        assert run(mail.ring, 2, 1 << 20) == [[2], [1]]

    def test_around_a_ring(self):
        assert run(mail.ring, 3, 5) == [[4], [1], [2]]

    def test_blocking(self):
        assert run(mail.blocking, 3) == [None, (0, [11, 11]), (0, [12, 12])]

    def test_from_any_rank(self):
        assert run(mail.any_source, 3)[0] == {1: 2, 2: 4}

    def test_from_any_rank_though_one_has_no_message(self):
        assert run(mail.from_any_but_a_silent_rank, 3) == [(2, 4), (None, 2), (None, 4)]

    def test_by_tag(self):
        assert run(mail.by_tag, 2)[1] == [[8], [8], [7]]

    def test_in_order_though_the_receiver_comes_late(self):
        assert run(mail.many_before_the_receiver_listens, 2, 50) == [True, True]

    def test_thousands_at_once(self):
        assert run(mail.thousands, 2, 2000) == [True, True]

    def test_beside_collectives(self):
        assert run(mail.beside_collectives, 2, 1 << 20) == [([1], [3, 3, 3])] * 2

    def test_beside_a_collective_of_another_thread(self):
        """The collective waits for a rank that waits for the message."""
        assert run(mail.from_a_thread, 2) == [([1], [3]), ([1], [3])]

    def test_between_some_ranks_of_a_group(self):
        """They are not collective: the others have no part in them, and no collective has connected the group."""
        assert run(mail.without_the_others, 3) == [[1, 1], [2, 2], [2, 2]]

    def test_on_one_host_listen_there_only(self):
        assert run(mail.listening, 2) == [["0100007F"]] * 2


class TestErrors:
    def test_nobody_sends(self):
        (said, first), second = run(mail.never_sent, 2)
        assert "Timed out" in said
        assert (first, second) == (3, (None, 3))

    def test_the_sender_is_killed(self):
        first, second = run(mail.sender_killed, 2)
        assert (first.kind, second) == ("RuntimeError", Died(-9))

    def test_in_a_forked_child(self):
        for rank, (said, *taken) in enumerate(run(mail.forked, 2)):
            assert said.startswith(f"This process was forked from rank {rank} and is no rank itself.")
            assert taken == [[2.0 ** (1 - rank)]] * 2


@pytest.mark.parametrize("elements", [0, 1])
def test_of_few_elements(elements):
    assert run(mail.ring, 2, elements) == [[2][:elements], [1][:elements]]
