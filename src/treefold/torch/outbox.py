"""What this rank would send to others: it is offered by tag and size, and sent when a receiver asks for it."""

from __future__ import annotations

from functools import partial

from treefold.errors import CallMismatchError, PeerLostError
from treefold.torch.inbox import ANSWER, NEWS, OFFERED, TENSOR, WITHDRAWN
from treefold.torch.lines import Line
from treefold.torch.queues import Queues
from treefold.torch.transfers import Transfer


class Outbox:
    """The transfers that send, and what their receivers say."""

    def __init__(self, rank: int) -> None:
        """Begin without messages. ``rank``: this one."""
        self._rank = rank
        #: Transfers that wait until the receiver is reached, by receiver; and for its answer, by their numbers.
        self._unsent: Queues[int, Transfer] = Queues()
        self._offered: dict[int, tuple[Transfer, Line]] = {}

    def waiting(self) -> list[Transfer]:
        """Return all transfers whose tensor has not gone."""
        queued = [transfer for queue in self._unsent.values() for transfer in queue]
        return queued + [transfer for transfer, _ in self._offered.values()]

    def add(self, receiver: int, transfer: Transfer) -> None:
        """Let a transfer wait until its receiver is reached."""
        self._unsent.add(receiver, transfer)

    def offer(self, line: Line) -> None:
        """Offer what waits for a receiver that is reached now."""
        while (transfer := self._unsent.take([line.rank])) is not None:
            if not transfer.is_completed():
                self._offered[transfer.number] = transfer, line
                _tell(OFFERED, transfer, line)

    def forget(self, receiver: int, transfer: Transfer) -> None:
        """Forget a transfer that has ended early, and tell a receiver to whom it was offered to take the next one."""
        self._unsent.discard(receiver, transfer)
        _, line = self._offered.pop(transfer.number, (None, None))
        if line is not None:
            _tell(WITHDRAWN, transfer, line)

    def lose(self, peer: int) -> None:
        """Fail what was for a rank that is gone."""
        lost = [transfer for transfer, line in self._offered.values() if line.rank == peer]
        for transfer in lost:
            del self._offered[transfer.number]
        for transfer in (*lost, *self._unsent.pop(peer, ())):
            transfer.finish(PeerLostError.mail(peer))

    def expect_answer(self, line: Line) -> None:
        """Hear next what a receiver wants."""
        answer = bytearray(ANSWER.size)
        line.expect(memoryview(answer), partial(self._send, answer))

    def _send(self, answer: bytearray, line: Line) -> None:
        """Send a tensor that the receiver has asked for."""
        number, has_size = ANSWER.unpack(answer)
        self.expect_answer(line)
        transfer, _ = self._offered.get(number, (None, None))
        if transfer is None:  # it was given up, which the receiver was told
            return
        if transfer.is_completed():  # it was given up in this moment
            self.forget(line.rank, transfer)
        elif has_size:
            _tell(TENSOR, transfer, line)
            line.post(transfer.memory, partial(self._sent, number))
        else:
            del self._offered[number]
            transfer.finish(CallMismatchError.mail(self._rank, line.rank, len(transfer.memory), None))

    def _sent(self, number: int) -> None:
        transfer, _ = self._offered.pop(number, (None, None))
        if transfer is not None:
            transfer.finish()


def _tell(what: int, transfer: Transfer, line: Line) -> None:
    line.post(NEWS.pack(what, transfer.tag, len(transfer.memory), transfer.number))
