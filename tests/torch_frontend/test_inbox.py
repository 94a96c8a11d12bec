"""What rank 0 hears of messages, without a mailbox around it."""

import math
import socket

import pytest
import torch

from treefold.errors import CallMismatchError, GroupError, PeerLostError
from treefold.torch import inbox
from treefold.torch.inbox import Inbox
from treefold.torch.lines import Line
from treefold.torch.queues import Queues
from treefold.torch.transfers import Transfer


class Post:
    """The inbox of rank 0, and what ranks 1 and 2 tell it."""

    def __init__(self):
        """Begin with a line from each."""
        self.inbox = Inbox(0)
        self.ends = [socket.socketpair() for _ in range(3)]
        self.lines = [Line(one) for one, _ in self.ends]
        for sender in (1, 2):
            self.lines[sender].peer = sender
            self.inbox.expect_news(self.lines[sender])

    def want(self, peer, elements=2):
        """Begin to receive so many float32, 2 of which are offered, with tag 5."""
        tensor = torch.zeros(elements)
        transfer = Transfer(peer, 5, tensor, rank=0, is_sent=False, until=math.inf, given_up=self.inbox.forget)
        self.inbox.want(transfer)
        return transfer

    def tell(self, what, sender, number):
        """Hear of 8 bytes with tag 5."""
        self._say(sender, inbox.NEWS.pack(what, 5, 8, number))

    def bring(self, sender, number):
        """Hear the tensor that a rank was asked for. Each of its elements is the number of the message."""
        self.tell(inbox.TENSOR, sender, number)
        self.bring_rest(sender, number, 8)

    def bring_rest(self, sender, number, nbytes):
        """Hear the last bytes of a tensor."""
        self._say(sender, torch.full((2,), float(number)).numpy().tobytes()[-nbytes:])

    def _say(self, sender, data):
        self.ends[sender][1].sendall(data)
        self.lines[sender].read()

    def give_up(self, transfer):
        """Let a transfer end early."""
        transfer.finish(GroupError.mail_given_up())
        self.inbox.forget(transfer)

    def asked(self):
        """Return who was asked for which message, by transfer."""
        return {offer.transfer: (offer.sender, offer.message) for offer in self.inbox._asked.values()}

    def close(self):
        """Close all."""
        for pair in self.ends:
            for one in pair:
                one.close()


@pytest.fixture
def post():
    """Rank 0's."""
    made = Post()
    yield made
    made.close()


def got(transfer):
    """Return what a transfer has received."""
    assert transfer.wait()
    return transfer.result()[0].tolist()


class TestInbox:
    def test_first_come_first_served(self, post):
        """Whoever wants a message of any rank stands in line with those who want one of a certain rank."""
        first, second, third = post.want(1), post.want(None), post.want(1)
        for number in (1, 2, 3):
            post.tell(inbox.OFFERED, 1, number)
        assert post.asked() == {first: (1, 1), second: (1, 2), third: (1, 3)}

    def test_from_any_rank_again(self, post):
        """A message that was asked for is taken back, and another rank's comes."""
        first, second = post.want(None), post.want(None)
        for sender, number in ((1, 1), (1, 2)):
            post.tell(inbox.OFFERED, sender, number)
        for number in (1, 2):
            post.tell(inbox.WITHDRAWN, 1, number)
        assert (first.source_rank(), second.source_rank()) == (-1, -1)
        for sender, number in ((2, 1), (1, 3)):
            post.tell(inbox.OFFERED, sender, number)
        assert post.asked() == {first: (2, 1), second: (1, 3)}

    def test_offers_that_were_there_before(self, post):
        """Those of one rank in their order; what was taken back is not asked for."""
        for number in (1, 2, 3):
            post.tell(inbox.OFFERED, 1, number)
        post.tell(inbox.WITHDRAWN, 1, 2)
        first, second, third = post.want(1), post.want(1), post.want(1)
        assert post.asked() == {first: (1, 1), second: (1, 3)}
        assert not third.is_completed()

    def test_from_any_rank_in_the_order_of_their_coming(self, post):
        """However many messages a sender has sent before: none of them is passed over."""
        for sender, number in ((2, 100), (1, 7), (2, 3)):
            post.tell(inbox.OFFERED, sender, number)
        first, second, third = (post.want(None) for _ in range(3))
        assert post.asked() == {first: (2, 100), second: (1, 7), third: (2, 3)}

    def test_that_was_asked_for_and_given_up(self, post):
        """Its sender sends it well, so the next one that wants it gets it, before what was offered later."""
        first = post.want(1)
        for number in (1, 2):
            post.tell(inbox.OFFERED, 1, number)
        post.give_up(first)
        second, third = post.want(1), post.want(None)
        for number in (1, 2):
            post.bring(1, number)
        assert (got(second), got(third)) == ([1, 1], [2, 2])
        assert not post.inbox._offers

    def test_that_was_given_up_while_it_comes(self, post):
        """Its bytes go on to where the first half of them is."""
        first = post.want(1)
        post.tell(inbox.OFFERED, 1, 1)
        post.tell(inbox.TENSOR, 1, 1)
        post.bring_rest(1, 1, 4)
        post.give_up(first)
        second = post.want(1)
        post.bring_rest(1, 1, 4)
        assert got(second) == [1, 1]

    @pytest.mark.parametrize("is_waiting", [True, False])
    def test_that_was_given_up_when_it_is_here(self, post, is_waiting):
        """It waits for the next one, also when its sender has ended since."""
        first = post.want(1)
        post.tell(inbox.OFFERED, 1, 1)
        second = post.want(1) if is_waiting else None
        first.finish(GroupError.mail_given_up())  # in this moment: the inbox is still to hear of it
        post.bring(1, 1)
        post.inbox.forget(first)
        post.inbox.lose(1, post.lines[1])
        assert got(second or post.want(1)) == [1, 1]
        assert post.inbox.waiting() == []

    def test_that_was_given_up_and_taken_back(self, post):
        """Nobody gets it."""
        first = post.want(1)
        post.tell(inbox.OFFERED, 1, 1)
        post.give_up(first)
        post.tell(inbox.WITHDRAWN, 1, 1)
        second, third = post.want(1), post.want(1)
        post.tell(inbox.OFFERED, 1, 2)
        post.bring(1, 2)
        assert got(second) == [2, 2]
        assert post.inbox.waiting() == [third]

    @pytest.mark.parametrize("is_here", [True, False])
    def test_that_was_given_up_and_does_not_fit(self, post, is_here):
        """It is gone with the one that it does not fit, as if it had not been asked for before."""
        first = post.want(1)
        post.tell(inbox.OFFERED, 1, 1)
        post.give_up(first)
        if is_here:
            post.bring(1, 1)
        sentence = r"^Rank 1 sends a tensor of 8 bytes to rank 0, whose tensor has 12 bytes.* nothing was written\.$"
        with pytest.raises(CallMismatchError, match=sentence):
            post.want(1, 3).wait()
        second = post.want(1)
        if not is_here:
            post.bring(1, 1)
        post.tell(inbox.OFFERED, 1, 2)
        post.bring(1, 2)
        assert got(second) == [2, 2]
        assert not post.inbox._offers

    def test_of_a_rank_that_is_gone(self, post):
        """What was wanted of it fails; what was wanted of others waits on, and so does what was wanted of any rank."""
        asked, any_rank, other, waiting = post.want(1), post.want(None), post.want(2), post.want(1)
        for number in (1, 2, 3, 4):
            post.tell(inbox.OFFERED, 1, number)
        post.tell(inbox.TENSOR, 1, 2)
        post.bring_rest(1, 2, 4)
        post.inbox.lose(1, post.lines[1])
        for transfer in (asked, waiting):
            with pytest.raises(PeerLostError):
                transfer.wait()
        assert any_rank.source_rank() == -1
        assert set(post.inbox.waiting()) == {any_rank, other}
        for number in (1, 2):
            post.tell(inbox.OFFERED, 2, number)
            post.bring(2, number)
        assert (got(any_rank), got(other)) == ([1, 1], [2, 2])
        assert not post.inbox._offers


class TestQueues:
    def test_keep_nothing(self):
        """A queue that is empty is none."""
        queues = Queues()
        one = Transfer(1, 5, torch.zeros(2), rank=0, is_sent=False, until=math.inf, given_up=print)
        queues.add("a", one)
        queues.discard("b", one)
        assert queues.take("ba") is one
        queues.add("a", one)
        queues.discard("a", one)
        assert queues == {}
        assert queues.take("a") is None
