"""A rank's connections to the others: opened when they are wanted, accepted from others, and lost with their ranks."""

from __future__ import annotations

import hmac
import os
import selectors
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial

from treefold.torch.addresses import Address, Endpoint, connect
from treefold.torch.lines import Line

#: Token, rank of the sender.
_HELLO = struct.Struct("<64sI")
#: So many connections may wait to show the token, beside one of each rank.
_MOST_STRANGERS = 64
_POLL_S = 0.01


class Peers:
    """The other ranks as this one reaches them, by one connection for each direction."""

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        *,
        reached: Callable[[Line], None],
        greeted: Callable[[Line], None],
    ) -> None:
        """Begin without connections.

        ``reached`` and ``greeted`` are called with a new connection to a rank or from one, to expect something there.
        """
        self._rank, self._addresses, self._reached, self._greeted = rank, addresses, reached, greeted
        # The user of all ranks when they began to listen. They may become another one afterwards.
        self._user = os.geteuid()
        self._outgoing: dict[int, Line] = {}
        self._incoming: dict[int, Line] = {}
        self._gone: set[int] = set()
        #: Ranks that are tried again and again, until there is a connection to them or they are gone.
        self.sought: set[int] = set()
        #: Why there is no connection to a rank yet, or from one that waits (None: nobody knows which).
        self._refused: dict[int | None, OSError] = {}

    def refused(self, peer: int | None, *, is_sent: bool) -> OSError | None:
        """Return why the system lets nothing be sent to a rank or received from it, None if it does."""
        return self._refused.get(peer) or (None if is_sent else self._refused.get(None))

    def seek_for(self, peer: int, *, is_sent: bool) -> None:
        """Seek a rank for a message; a receiver does, too, to see the end of a sender that has not come yet."""
        if is_sent or peer in self._gone or peer not in self._incoming:
            self.sought.add(peer)

    def seek(self, endpoint: Endpoint) -> list[tuple[int, Line | None]]:
        """Try to reach the ranks that are sought. Return those reached, with their lines, and those gone, with None."""
        found = [peer for peer in self.sought if self._find(peer, endpoint)]
        self.sought.difference_update(found)
        return [(peer, None if peer in self._gone else self._outgoing[peer]) for peer in found]

    def _find(self, peer: int, endpoint: Endpoint) -> bool:
        """Tell whether a rank is reached or gone. Else it is tried again."""
        if peer in self._outgoing or peer in self._gone:
            return True
        try:
            self._connect(peer, endpoint)
        except ConnectionRefusedError:
            self._gone.add(peer)
        except BlockingIOError:  # too many wait there to be accepted
            return False
        except OSError as error:
            self._refused[peer] = error
            return False
        self._refused.pop(peer, None)
        return True

    def _connect(self, peer: int, endpoint: Endpoint) -> None:
        line = Line(connect(self._addresses[peer], self._user))
        line.peer = peer
        self._add(line, endpoint)
        self._outgoing[peer] = line
        self._reached(line)
        line.post(_HELLO.pack(self._addresses[peer].token.encode(), self._rank))
        line.write()  # at once: where too many are silent, the first of them is turned away

    def _add(self, line: Line, endpoint: Endpoint) -> None:
        try:
            endpoint.selector.register(line.connection, selectors.EVENT_READ, line)
        except OSError:
            line.connection.close()
            raise

    def progress(self, endpoint: Endpoint, seconds: float) -> list[Line]:
        """Wait until something can be read or written, and do that. Return the connections of ranks that are gone."""
        for key in list(endpoint.selector.get_map().values()):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if key.data and key.data.has_writes else 0)
            if events != key.events:
                endpoint.selector.modify(key.fileobj, events, key.data)
        lost = []
        for key, events in endpoint.selector.select(seconds):
            if key.fileobj is endpoint.listener:
                self._accept(endpoint)
            elif key.fileobj is endpoint.woken:
                endpoint.woken.recv(4096)
            elif not self._pass(key.data, events):
                self._lose(key.data, endpoint)
                lost.append(key.data)
        return [line for line in lost if line.peer is not None]

    def _accept(self, endpoint: Endpoint) -> None:
        """Let somebody in who has to show the token first, because ranks may be other users by now."""
        try:
            line = Line(endpoint.accept())
            hello = bytearray(_HELLO.size)
            line.expect(memoryview(hello), partial(self._greet, hello))
            self._add(line, endpoint)
        except BlockingIOError:  # gone again
            return
        except OSError as error:  # no descriptor for it, which the next one would not have either
            self._refused[None] = error
            time.sleep(_POLL_S)
            return
        self._refused.pop(None, None)
        strangers = [one for one in endpoint.lines() if one.peer is None]
        if len(strangers) > _MOST_STRANGERS + len(self._addresses):
            self._lose(strangers[0], endpoint)

    def _greet(self, hello: bytearray, line: Line) -> None:
        token, rank = _HELLO.unpack(hello)
        if not hmac.compare_digest(token, self._addresses[self._rank].token.encode()):
            raise ConnectionResetError
        line.peer = rank
        self._incoming[rank] = line
        self._greeted(line)

    def _pass(self, line: Line, events: int) -> bool:
        """Tell whether the other end is still there, behind all that has come from it."""
        try:
            if events & selectors.EVENT_WRITE:
                line.write()
            if events & selectors.EVENT_READ:
                line.read()
        except Exception:  # noqa: BLE001 - whatever came by this line, the others go on
            return False
        return True

    def _lose(self, line: Line, endpoint: Endpoint) -> None:
        """Forget a line whose other end is gone."""
        if line.connection.fileno() < 0:  # a stranger who was turned away in this round
            return
        endpoint.selector.unregister(line.connection)
        line.connection.close()
        if line.peer is None:
            return
        self._gone.add(line.peer)
        for lines in (self._outgoing, self._incoming):
            if lines.get(line.peer) is line:
                del lines[line.peer]
