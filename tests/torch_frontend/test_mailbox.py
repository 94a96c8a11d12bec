"""A mailbox without a thread, its peers, and the sockets they meet at."""

import contextlib
import math
import os
import socket

import pytest
import torch

from treefold.errors import ProcessGroupError
from treefold.torch import addresses, mailbox
from treefold.torch.addresses import Address, Endpoint, connect, listen
from treefold.torch.lines import Line
from treefold.torch.mailbox import Mailbox
from treefold.torch.queues import Queues
from treefold.torch.transfers import Transfer


class Post:
    """A mailbox of rank 0, and what ranks 1 and 2 tell it."""

    def __init__(self):
        """Begin with a line from each."""
        self.mailbox = Mailbox(0, [], None)
        self.ends = [socket.socketpair() for _ in range(3)]
        self.lines = [Line(one, memoryview(bytearray(1)), print) for one, _ in self.ends]
        for sender in (1, 2):
            self.lines[sender].peer = sender
            self.mailbox._incoming[sender] = self.lines[sender]

    def want(self, peer):
        """Begin to receive 8 bytes with tag 5."""
        transfer = Transfer(peer, 5, torch.zeros(2), rank=0, is_sent=False, until=math.inf, given_up=print)
        self.mailbox._begin(transfer)
        return transfer

    def tell(self, what, sender, number):
        """Hear of 8 bytes with tag 5."""
        self.mailbox._hear(bytearray(mailbox._NEWS.pack(what, 5, 8, number)), self.lines[sender])

    def asked(self):
        """Return who was asked for which message, by transfer."""
        return {transfer: key for key, transfer in self.mailbox._coming.items()}

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


class TestMailbox:
    def test_first_come_first_served(self, post):
        """Whoever wants a message of any rank stands in line with those who want one of a certain rank."""
        first, second, third = post.want(1), post.want(None), post.want(1)
        for number in (1, 2, 3):
            post.tell(mailbox._OFFERED, 1, number)
        assert post.asked() == {first: (1, 1), second: (1, 2), third: (1, 3)}

    def test_from_any_rank_again(self, post):
        """A message that was asked for is taken back, and another rank's comes."""
        first, second = post.want(None), post.want(None)
        for sender, number in ((1, 1), (1, 2)):
            post.tell(mailbox._OFFERED, sender, number)
        for number in (1, 2):
            post.tell(mailbox._WITHDRAWN, 1, number)
        assert (first.source_rank(), second.source_rank()) == (-1, -1)
        for sender, number in ((2, 1), (1, 3)):
            post.tell(mailbox._OFFERED, sender, number)
        assert post.asked() == {first: (2, 1), second: (1, 3)}

    def test_offers_that_were_there_before(self, post):
        """Those of one rank in their order; what was taken back is not asked for."""
        for number in (1, 2, 3):
            post.tell(mailbox._OFFERED, 1, number)
        post.tell(mailbox._WITHDRAWN, 1, 2)
        first, second, third = post.want(1), post.want(1), post.want(1)
        assert post.asked() == {first: (1, 1), second: (1, 3)}
        assert not third.is_completed()

    def test_between_networks(self):
        """Names mean nothing in another network namespace: one sentence, at once and at both ends."""
        box = Mailbox(0, [Address("a", "b", "one"), Address("c", "d", "two")], None)
        transfer = Transfer(1, 5, torch.zeros(2), rank=0, is_sent=True, until=math.inf, given_up=print)
        with pytest.raises(ProcessGroupError, match=r"^Rank 1 is in a container whose network is not this rank's\."):
            box.post(transfer)


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


class TestAddresses:
    def test_strangers_are_turned_away(self, monkeypatch):
        """Another user's process gets neither in nor a token; the kernel says whose it is."""
        address = Address(f"treefold-test-{os.getpid()}", "token", "")
        with listen(address) as listener, contextlib.closing(Endpoint(listener)) as endpoint:
            with connect(address), endpoint.accept() as connection:
                assert connection.family == socket.AF_UNIX
            monkeypatch.setattr(addresses, "peer", lambda _: (1, os.getuid() + 1))
            with pytest.raises(ConnectionRefusedError):
                connect(address)
            assert endpoint.accept() is None
        monkeypatch.undo()
        with pytest.raises(ConnectionRefusedError):
            connect(address)


class TestLine:
    def test_reads_what_came_before_the_other_end_was_gone(self):
        """Though what it has to write itself can no longer go there."""
        own, other = socket.socketpair()
        heard, memory = [], bytearray(3)
        line = Line(own, memoryview(memory), heard.append)
        other.send(b"all")
        other.close()
        line.post(b"more")
        line.write()
        line.read()
        assert (heard, bytes(memory)) == ([line], b"all")
        line.expect(memoryview(bytearray(1)), print)
        with pytest.raises(ConnectionResetError):
            line.read()
        own.close()
