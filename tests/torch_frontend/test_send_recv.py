"""Messages between single ranks on PyTorch's backend "treefold"."""

from torch_ranks import Died, Raised, mail, run


class TestSendRecv:
    def test_both_ways_at_once(self):
        """64 MiB each, more than any mailbox holds."""
        assert run(mail.ring, 2, 1 << 24) == [[2], [1]]

    def test_around_a_ring(self):
        """Small messages of three ranks."""
        assert run(mail.ring, 3, 5) == [[4], [1], [2]]

    def test_blocking(self):
        """The receiver is told who has sent."""
        assert run(mail.blocking, 3) == [None, (0, [11, 11]), (0, [12, 12])]

    def test_from_any_rank(self):
        """In whatever order they come."""
        assert run(mail.any_source, 3)[0] == {1: 2, 2: 4}

    def test_by_tag(self):
        """Messages of one tag come in order, and others do not block them."""
        assert run(mail.by_tag, 2)[1] == [[8], [8], [7]]

    def test_of_any_form(self):
        """Strided, empty, of a dtype that NumPy does not have."""
        assert run(mail.strided, 2)[1] == ([[0, -1, 2, -1], [4, -1, 6, -1]], [1, 1])

    def test_beside_collectives(self):
        """A message that waits to be received goes on while its sender is in a collective."""
        assert run(mail.beside_collectives, 2, 1 << 20) == [([1], [3, 3, 3], True)] * 2

    def test_to_itself(self):
        """As PyTorch's isend allows."""
        assert run(mail.to_itself, 2) == [[1, 1], [2, 2]]


class TestErrors:
    def test_another_size(self):
        """Both ends are told."""
        sender, receiver = run(mail.of_another_size, 2)
        assert (sender.kind, receiver.kind) == ("CallMismatchError", "CallMismatchError")
        assert receiver.text == (
            "Rank 0 sends a tensor of 16 bytes to rank 1, whose tensor has 8 bytes. Both need one size and dtype; "
            "nothing was sent."
        )

    def test_nobody_sends(self):
        """The deadline is the group's timeout."""
        sentence = (
            "Rank 1 has not sent or received what this rank waits for, by the deadline. Every send needs a receive "
            "with the same tag; give the group a longer timeout if the other rank is only slow."
        )
        assert run(mail.never_sent, 2)[0] == Raised("DeadlineError", sentence)

    def test_the_sender_is_killed(self):
        """The receiver names it at once."""
        answer, killed = run(mail.sender_killed, 2)
        assert killed == Died(-9)
        assert answer.kind == "PeerLostError"
        assert answer.text.startswith("Rank 1 has ended or left the group while a message between it and this rank was")
