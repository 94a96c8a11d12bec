"""A mailbox without a thread, its inbox and its peers, and the sockets they meet at."""

import contextlib
import errno
import json
import math
import os
import socket
import threading
import time

import pytest
import torch

from treefold.errors import CallMismatchError, DeadlineError, GroupError, PeerLostError, ProcessGroupError
from treefold.torch import inbox, mailbox, peers
from treefold.torch.addresses import Address, Endpoint, connect, listen, tell_addresses
from treefold.torch.inbox import Inbox
from treefold.torch.lines import Line
from treefold.torch.mailbox import Mailbox
from treefold.torch.peers import Peers
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

    def test_that_was_given_up_and_does_not_fit(self, post):
        """It is the next one's, whose tensor has its size."""
        first = post.want(1)
        post.tell(inbox.OFFERED, 1, 1)
        post.give_up(first)
        with pytest.raises(
            CallMismatchError, match=r"^Rank 1 sends a tensor of 8 bytes to rank 0, whose tensor has 12"
        ):
            post.want(1, 3).wait()
        post.bring(1, 1)
        assert got(post.want(1)) == [1, 1]

    def test_of_a_rank_that_is_gone(self, post):
        """What it had offered fails, and what was wanted of it; not what was wanted of others."""
        asked, any_rank, other, waiting = post.want(1), post.want(None), post.want(2), post.want(1)
        for number in (1, 2):
            post.tell(inbox.OFFERED, 1, number)
        post.inbox.lose(1, post.lines[1])
        for transfer in (asked, waiting):
            with pytest.raises(PeerLostError):
                transfer.wait()
        assert any_rank.is_completed()
        assert post.inbox.waiting() == [other]


class Meeting:
    """The peers of rank 0, and the sockets of ranks 1 and 2."""

    def __init__(self):
        """Begin without connections."""
        name = f"treefold-test-{os.getpid()}-{time.monotonic_ns()}"
        self.addresses = [Address(f"{name}-{rank}", f"{rank}".zfill(64), "") for rank in range(3)]
        self.listeners = [listen(address) for address in self.addresses]
        self.endpoint = Endpoint(self.listeners[0])
        self.greeted, self.lost = [], []
        self.peers = Peers(0, self.addresses, reached=self._expect_nothing, greeted=self._greet)

    def _expect_nothing(self, line):
        line.expect(memoryview(bytearray(1)), print)

    def _greet(self, line):
        self._expect_nothing(line)
        self.greeted.append(line.rank)

    def knock(self):
        """Return a stranger's connection to rank 0."""
        return connect(self.addresses[0], os.geteuid())

    def progress(self):
        """Let rank 0 do whatever can be done."""
        for _ in range(3):
            self.lost += self.peers.progress(self.endpoint, 0)

    def close(self):
        """Close all."""
        for line in self.endpoint.lines():
            line.connection.close()
        self.endpoint.close()
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def meeting():
    """Rank 0's."""
    made = Meeting()
    yield made
    made.close()


class TestPeers:
    def test_let_in_who_shows_the_token(self, meeting):
        """Whoever shows another one is turned away."""
        with meeting.knock() as friend, meeting.knock() as stranger:
            friend.sendall(meeting.addresses[0].token.encode() + bytes([1, 0, 0, 0]))
            stranger.sendall(meeting.addresses[1].token.encode() + bytes([2, 0, 0, 0]))
            for _ in range(2):
                meeting.progress()
            assert meeting.greeted == [1]
            assert stranger.recv(1) == b""
            with pytest.raises(BlockingIOError):
                friend.recv(1)
        assert meeting.lost == []

    def test_hold_few_strangers(self, meeting):
        """Of those that say nothing the first are turned away, and a rank gets in behind them."""
        with contextlib.ExitStack() as held:
            strangers = [held.enter_context(meeting.knock()) for _ in range(100)]
            for _ in strangers:
                meeting.progress()
            friend = held.enter_context(meeting.knock())
            friend.sendall(meeting.addresses[0].token.encode() + bytes([1, 0, 0, 0]))
            meeting.progress()
            assert meeting.greeted == [1]
            assert strangers[0].recv(1) == b""
            assert len(meeting.endpoint.lines()) < 80

    def test_are_tried_again(self, meeting, monkeypatch):
        """While the system refuses a connection, whose error is that of one peer; then there is one."""

        def refuse(address, user):
            if address is meeting.addresses[1]:
                raise OSError(errno.EMFILE, "Too many open files")
            return connect(address, user)

        monkeypatch.setattr(peers, "connect", refuse)
        for peer in (1, 2):
            meeting.peers.seek_for(peer, is_sent=False)
        assert [peer for peer, _ in meeting.peers.seek(meeting.endpoint)] == [2]
        assert meeting.peers.refused(1, is_sent=False).errno == errno.EMFILE
        assert meeting.peers.refused(2, is_sent=False) is None
        monkeypatch.undo()
        assert [peer for peer, line in meeting.peers.seek(meeting.endpoint) if line] == [1]
        assert meeting.peers.refused(1, is_sent=True) is None
        assert meeting.peers.sought == set()

    def test_where_too_many_wait(self, meeting):
        """A rank that accepts nobody is not gone, and the system has refused nothing."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(BlockingIOError):
                while True:
                    held.enter_context(connect(meeting.addresses[1], os.geteuid()))
            meeting.peers.seek_for(1, is_sent=True)
            assert meeting.peers.seek(meeting.endpoint) == []
            assert meeting.peers.refused(1, is_sent=True) is None
            meeting.listeners[1].close()
            assert meeting.peers.seek(meeting.endpoint) == [(1, None)]


class TestMailbox:
    @pytest.mark.parametrize("has_started", [True, False])
    def test_begins_with_a_thread(self, monkeypatch, has_started):
        """Python may answer Ctrl-C with an error of its own where it waits for the thread, which then runs."""

        def start(_):
            try:
                if has_started:
                    raise KeyboardInterrupt
            finally:
                raise RuntimeError

        opened = []
        monkeypatch.setattr(threading.Thread, "start", start)
        monkeypatch.setattr(mailbox, "Endpoint", lambda listener: opened.append(Endpoint(listener)) or opened[0])
        address = Address(f"treefold-test-{os.getpid()}", "token", "")
        with listen(address) as listener:
            transfer = Transfer(0, 5, torch.zeros(2), rank=0, is_sent=True, until=math.inf, given_up=print)
            with pytest.raises(KeyboardInterrupt if has_started else GroupError):
                Mailbox(0, [address], listener).post(transfer)
            assert (opened[0].waker.fileno() >= 0) == has_started
            opened[0].close()

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
    def test_another_user_listens(self):
        """They get no token; the kernel says who has begun to listen."""
        address = Address(f"treefold-test-{os.getpid()}", "token", "")
        with listen(address) as listener, contextlib.closing(Endpoint(listener)) as endpoint:
            with connect(address, os.geteuid()), endpoint.accept() as connection:
                assert connection.family == socket.AF_UNIX
            with pytest.raises(PermissionError):
                connect(address, os.geteuid() + 1)
        with pytest.raises(ConnectionRefusedError):
            connect(address, os.geteuid())


class TestTellAddresses:
    def test_leaves_no_socket_if_another_rank_is_lost(self):
        """The name is free at once, whoever keeps the error."""

        class Link:
            def agree(self, _, blob, **__):
                told.append(Address(*json.loads(blob)))
                raise PeerLostError.mail(1)

        told = []
        with pytest.raises(PeerLostError):
            tell_addresses(Link())
        with pytest.raises(ConnectionRefusedError):
            connect(told[0], os.geteuid())


class TestDeadline:
    def test_of_what_the_system_refuses(self):
        """Closing files helps where there are too many."""
        why = PermissionError(errno.EPERM, "Operation not permitted")
        assert str(DeadlineError.mail(1, why)) == (
            "Rank 1 has not sent or received what this rank waits for, by the deadline. The system has refused this "
            "process a connection (Operation not permitted)."
        )


class TestLine:
    def test_reads_what_came_before_the_other_end_was_gone(self):
        """Though what it has to write itself can no longer go there."""
        own, other = socket.socketpair()
        heard, memory = [], bytearray(3)
        line = Line(own)
        line.expect(memoryview(memory), heard.append)
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
