"""Where ranks listen, and who gets in there."""

import contextlib
import errno
import json
import os
import socket
import time

import pytest

from treefold.errors import PeerLostError
from treefold.torch import peers
from treefold.torch.addresses import Address, Endpoint, connect, listen, tell_addresses
from treefold.torch.lines import Line
from treefold.torch.peers import Peers


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
