"""What other ranks would send to this one, and who wants it.

Messages are taken in the order in which they were offered. One that comes for a transfer that was given up after it
had been asked for goes to whoever wants it next, as if it had never been asked for.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from treefold.errors import CallMismatchError, PeerLostError
from treefold.torch.lines import Line
from treefold.torch.queues import Queues
from treefold.torch.transfers import Transfer

#: What it is, tag, bytes, number of the message.
NEWS = struct.Struct("<BqQQ")
#: A tensor is offered; an offer is taken back; the tensor itself follows.
OFFERED, WITHDRAWN, TENSOR = range(3)
#: Number of the message, whether the receiver's tensor has its size.
ANSWER = struct.Struct("<Q?")

_NOTHING = memoryview(b"")


@dataclass(eq=False)
class _Offer:
    """A message that its sender would send, or has sent."""

    #: Its place among all that were offered to this rank: with the sender's numbers some would be passed over for ever.
    number: int
    line: Line
    sender: int
    #: The sender's number of it.
    message: int
    tag: int
    nbytes: int
    #: Whether it was asked for; where its tensor then is to lie, and whether it does.
    is_asked: bool = False
    memory: memoryview = _NOTHING
    is_here: bool = False
    #: Whether it has met a transfer that it does not fit, so that nobody gets it any more.
    is_spent: bool = False
    #: Who gets it.
    transfer: Transfer | None = None


class Inbox:
    """The messages that others offer, and the transfers that receive them."""

    def __init__(self, rank: int) -> None:
        """Begin without messages. ``rank``: this one."""
        self._rank, self._places = rank, itertools.count()
        #: Transfers that wait for an offer, by the rank that they want one from and the tag.
        self._wanted: Queues[tuple[int | None, int], Transfer] = Queues()
        #: Offers by sender and its number of the message; those that nobody has wanted yet, by sender and tag; those
        #: that a transfer gets, by its number.
        self._offers: dict[tuple[int, int], _Offer] = {}
        self._free: Queues[tuple[int, int], _Offer] = Queues()
        self._asked: dict[int, _Offer] = {}
        self._senders: set[int] = set()

    def waiting(self) -> list[Transfer]:
        """Return all transfers that have not got their message."""
        queued = [transfer for queue in self._wanted.values() for transfer in queue]
        return queued + [offer.transfer for offer in self._asked.values() if offer.transfer is not None]

    def want(self, transfer: Transfer) -> None:
        """Ask for the first message that fits and is offered, or wait for one."""
        if transfer.is_completed():  # it was given up, so the offer is another transfer's
            return
        peer, tag = transfer.wanted
        offer = self._free.take((sender, tag) for sender in (self._senders if peer is None else [peer]))
        transfer.peer = peer if offer is None else offer.sender
        if offer is None:
            self._wanted.add(transfer.wanted, transfer)
        else:
            self._take(transfer, offer)

    def _take(self, transfer: Transfer, offer: _Offer) -> None:
        fits, is_new = offer.nbytes == len(transfer.memory), not offer.is_asked
        if is_new:
            offer.line.post(ANSWER.pack(offer.message, fits))
            offer.is_asked, offer.memory = True, transfer.memory
        if fits:
            offer.transfer = transfer
            self._asked[transfer.number] = offer
            if offer.is_here:
                self._deliver(offer, transfer)
            return
        transfer.finish(CallMismatchError.mail(offer.sender, self._rank, offer.nbytes, len(transfer.memory)))
        if is_new or offer.is_here:
            del self._offers[offer.sender, offer.message]
        else:
            offer.is_spent = True

    def forget(self, transfer: Transfer) -> None:
        """Forget a transfer that has ended early. A message that it has asked for is the next one's."""
        self._wanted.discard(transfer.wanted, transfer)
        offer = self._asked.pop(transfer.number, None)
        if offer is not None:
            self._let_go(offer)

    def _let_go(self, offer: _Offer) -> None:
        """Give an offer that nobody has to the first that wants it."""
        offer.transfer = None
        key = offer.sender, offer.tag
        self._free.add(key, offer)
        while key in self._free and (transfer := self._wanted.take([key, (None, offer.tag)])) is not None:
            self.want(transfer)

    def lose(self, peer: int, line: Line | None) -> None:
        """Fail what was to come from a rank that is gone: by a line that has ended, and what was not offered yet."""
        lost = [one for (sender, _), queue in self._wanted.items() if sender == peer for one in queue]
        for transfer in lost:
            self._wanted.discard(transfer.wanted, transfer)
        for offer in [one for one in self._offers.values() if one.line is line and not one.is_here]:
            del self._offers[offer.sender, offer.message]
            if offer.transfer is None:
                self._free.discard((offer.sender, offer.tag), offer)
            else:
                del self._asked[offer.transfer.number]
                lost.append(offer.transfer)
        for transfer in sorted(lost, key=attrgetter("number")):  # now nothing of that rank is offered any more
            if transfer.wanted[0] is None:
                self.want(transfer)
            else:
                transfer.finish(PeerLostError.mail(peer))

    def expect_news(self, line: Line) -> None:
        """Hear next what a sender has to say."""
        news = bytearray(NEWS.size)
        line.expect(memoryview(news), partial(self._hear, news))

    def _hear(self, news: bytearray, line: Line) -> None:
        """Take an offer, or the head of a tensor that was asked for."""
        what, tag, nbytes, message = NEWS.unpack(news)
        key = line.rank, message
        self.expect_news(line)
        if what == OFFERED:
            self._senders.add(line.rank)
            self._offers[key] = _Offer(next(self._places), line, line.rank, message, tag, nbytes)
            self._let_go(self._offers[key])
        elif what == WITHDRAWN:
            self._withdraw(self._offers.pop(key, None))
        elif nbytes:
            line.expect(self._offers[key].memory, partial(self._receive, self._offers[key]))
        else:
            self._receive(self._offers[key], line)

    def _withdraw(self, offer: _Offer | None) -> None:
        if offer is None:  # it has come before
            return
        if offer.transfer is None:
            self._free.discard((offer.sender, offer.tag), offer)
        else:
            del self._asked[offer.transfer.number]
            self.want(offer.transfer)

    def _receive(self, offer: _Offer, line: Line) -> None:
        self.expect_news(line)
        offer.is_here = True
        if offer.is_spent:
            del self._offers[offer.sender, offer.message]
        elif offer.transfer is not None:
            self._deliver(offer, offer.transfer)

    def _deliver(self, offer: _Offer, transfer: Transfer) -> None:
        """Write a tensor that is here, unless its transfer was given up in this moment."""
        del self._asked[transfer.number]
        if offer.memory is not transfer.memory:
            transfer.memory[:] = offer.memory
        if transfer.finish():
            del self._offers[offer.sender, offer.message]
        else:
            self._let_go(offer)
