"""The space between the ranks of a fake network: messages in transit, and a store that survives the ranks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from fake_network.errors import ChannelUseError
from fake_network.faults import Cut, Fault
from fake_network.scheduler import Scheduler
from treefold.backends import HostArray
from treefold.engines.interface import Transfer

#: When a send is done: its bytes are copied; its receiver has them; the engine does not say.
SendReport = Literal["copied", "received", "never"]

_LN_SHORTEST, _LN_RANGE = math.log(1e-5), math.log(1e3)
_RARE = 1.0 / 16.0
#: How often a rank that waits goes on as soon as something is done, and not a while later, when more is.
_PROMPT = 0.5


class Sent(NamedTuple):
    """A message that a rank has begun to send; ranks are the network's."""

    sender: int
    receiver: int
    tag: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Process:
    """A rank of the network, which may have several channels one after the other."""

    rank: int
    host: int
    calls: int = 0
    #: The call before which something may happen to it.
    next_event: int = 1
    #: For how long it was slow, in all.
    paused_s: float = 0.0
    #: When it goes on, if it was stopped.
    stopped_until: float = 0.0
    ended_by: Fault | None = None
    has_ended: bool = False
    ends: list[End] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class End:
    """A channel's end of the wire: what its engine knows."""

    process: Process
    session: Session
    rank: int
    reports: SendReport
    done: deque[Transfer] = field(default_factory=deque)
    pending: dict[Transfer, Stream] = field(default_factory=dict)
    #: The decision about who goes on, once it has heard of it, and whether all members have come.
    verdict: Decision | None = None
    all_came: bool = False
    has_said: bool = False
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class Stream:
    """The messages of one sender, receiver and tag; the nth one is for the nth receive."""

    sender: End
    receiver: End
    tag: int
    sent: int = 0
    posted: int = 0
    arrived: int = 0
    copies_at: float = 0.0
    arrives_at: float = 0.0
    finishes_at: float = 0.0
    #: No message arrives any more: one before it was lost, or the receiver has given up on one.
    is_broken: bool = False
    messages: dict[int, HostArray] = field(default_factory=dict)
    sends: dict[int, Transfer] = field(default_factory=dict)
    receives: dict[int, Transfer] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Decision:
    """Which ranks go on, with which ends, and which of them have come."""

    members: tuple[int, ...]
    successors: list[End]
    came: set[int] = field(default_factory=set)

    def have_all_come(self) -> bool:
        return len(self.came) == len(self.members)


@dataclass(slots=True, eq=False)
class Session:
    """The state that the channels of the same ranks share, and their part of the store."""

    ends: list[End] = field(default_factory=list)
    streams: dict[tuple[int, int, int], Stream] = field(default_factory=dict)
    #: Who has stopped using the channel, and from when on nothing that it has sent arrives at a peer any more.
    gone: dict[int, dict[int, float]] = field(default_factory=dict)
    words: dict[int, bytes] = field(default_factory=dict)
    decision: Decision | None = None


class Wire:
    """Moves bytes between the ends, as late, as torn and as silently as engines may."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        *,
        cuts: Sequence[Cut],
        is_prompt: bool = False,
    ) -> None:
        """Begin with nothing on its way. ``is_prompt``: without the few long delays."""
        self._rare = 0.0 if is_prompt else _RARE
        self._scheduler, self._random = scheduler, random.random
        self._cuts, self._seconds_per_byte = cuts, 1e-9
        self.sends: list[Sent] = []

    def delay(self) -> float:
        """Return 10 µs to 10 ms, evenly by their magnitude, and now and then a hundred times as much."""
        x = self._random()
        return (
            math.exp(_LN_SHORTEST + _LN_RANGE * x)
            if x >= self._rare
            else 100.0 * math.exp(_LN_SHORTEST + _LN_RANGE * x / self._rare)
        )

    def open_at(self, one: Process, other: Process | None) -> float:
        """Return when what would arrive now does: between two ranks, or a rank and the launcher's host."""
        now = self._scheduler.now
        if not self._cuts:
            return now
        ends = {one.host, None if other is None else other.host}
        cuts = self._cuts if len(ends) > 1 else ()
        return max((cut.mended for cut in cuts if cut.host in ends and cut.at <= now < cut.mended), default=now)

    def send(self, stream: Stream, transfer: Transfer) -> None:
        """Let the engine copy the bytes when it likes, and the message arrive later."""
        now, sender, receiver = self._scheduler.now, stream.sender, stream.receiver
        gone_from = sender.session.gone.get(receiver.rank, {}).get(sender.rank, math.inf)
        if gone_from <= now and self.open_at(sender.process, receiver.process) <= now:
            transfer.error = _gone(receiver.rank)
            return
        nbytes, number = len(transfer.buffer), stream.sent
        self.sends.append(Sent(sender.process.rank, receiver.process.rank, stream.tag, nbytes))
        stream.sent += 1
        transfer.handle, stream.sends[number] = number, transfer
        sender.pending[transfer] = stream
        delay = self.delay() + nbytes * self._seconds_per_byte
        arrives = stream.arrives_at = max(now + delay, stream.arrives_at)
        first = max(now, stream.copies_at)
        copies = stream.copies_at = first + self._random() * (arrives - first)
        self._scheduler.at(copies, self._copy, stream, number)
        if nbytes:
            self._scheduler.at(copies + self._random() * (arrives - copies), self._write_half, stream, number)
        self._scheduler.at(arrives, self._arrive, stream, number)
        if receiver.rank in sender.session.gone:
            self._fail_later(sender, transfer)

    def receive(self, stream: Stream, transfer: Transfer) -> None:
        """Take the next message that has arrived, or the one that will."""
        number = stream.posted
        stream.posted += 1
        transfer.handle, stream.receives[number] = number, transfer
        stream.receiver.pending[transfer] = stream
        if number < stream.arrived:
            now = self._scheduler.now
            when = stream.finishes_at = max(now + self.delay(), stream.finishes_at)
            self._scheduler.at(now + self._random() * (when - now), self._write_half, stream, number)
            self._scheduler.at(when, self._finish, stream, number)
        elif stream.sender.rank in stream.receiver.session.gone:
            self._fail_later(stream.receiver, transfer)

    def _copy(self, stream: Stream, number: int) -> None:
        sender, transfer = stream.sender, stream.sends.get(number)
        if transfer is None or sender.is_closed:
            return
        if sender.process.stopped_until > self._scheduler.now:
            self._scheduler.at(sender.process.stopped_until, self._copy, stream, number)
            return
        stream.messages[number] = transfer.buffer.copy()
        if sender.reports == "copied":
            self._complete(sender, transfer)

    def _write_half(self, stream: Stream, number: int) -> None:
        receive, message = stream.receives.get(number), stream.messages.get(number)
        receiver = stream.receiver
        if receive is None or message is None or stream.is_broken or not self._is_awake(receiver):
            return
        if number >= stream.arrived and self.open_at(stream.sender.process, receiver.process) > self._scheduler.now:
            return
        half = min(len(message), len(receive.buffer)) // 2
        receive.buffer[half:][: len(message) - half] = message[half : len(receive.buffer)]

    def _is_awake(self, end: End) -> bool:
        return not end.is_closed and end.process.stopped_until <= self._scheduler.now

    def _arrive(self, stream: Stream, number: int) -> None:
        now, sender, receiver = self._scheduler.now, stream.sender, stream.receiver
        when = self.open_at(sender.process, receiver.process)
        if number not in stream.messages:  # not copied yet: the sender is stopped, or never will
            when = max(when, sender.process.stopped_until)
        if when > now:
            self._scheduler.at(when, self._arrive, stream, number)
            return
        lost_from = sender.session.gone.get(sender.rank, {}).get(receiver.rank, math.inf)
        if stream.is_broken or number not in stream.messages or now > lost_from or receiver.is_closed:
            stream.is_broken = True
            stream.messages.pop(number, None)
            self.wake(sender)
            return
        stream.arrived = number + 1
        self.wake(sender)
        if number in stream.receives:
            if stream.finishes_at < now:
                self._finish(stream, number)
            else:
                self._scheduler.at(stream.finishes_at, self._finish, stream, number)

    def _finish(self, stream: Stream, number: int) -> None:
        receiver, receive = stream.receiver, stream.receives[number]
        if receiver.is_closed:
            return
        if receiver.process.stopped_until > self._scheduler.now:
            stream.finishes_at = receiver.process.stopped_until
            self._scheduler.at(stream.finishes_at, self._finish, stream, number)
            return
        del stream.receives[number]
        message, send = stream.messages.pop(number), stream.sends.pop(number, None)
        length, room = len(message), len(receive.buffer)
        if length > room:
            ranks = receiver.process.rank, stream.sender.process.rank
            self._scheduler.fail(ChannelUseError.too_long(*ranks, stream.tag, length, room))
            return
        receive.buffer[:length] = message
        self._complete(receiver, receive)
        if send is not None and stream.sender.reports == "received":
            self._scheduler.at(self._scheduler.now + self.delay(), self._report, stream.sender, send)
        elif send is not None:
            stream.sender.pending.pop(send, None)

    def _report(self, end: End, transfer: Transfer) -> None:
        if not end.is_closed and end.process.stopped_until > self._scheduler.now:
            self._scheduler.at(end.process.stopped_until, self._report, end, transfer)
            return
        self._complete(end, transfer)

    def _complete(self, end: End, transfer: Transfer) -> None:
        if end.pending.pop(transfer, None) is not None and not end.is_closed:
            end.done.append(transfer)
            if len(end.done) > 1:
                return  # the rank is not waiting, or will be woken for the first one
            if self._random() < _PROMPT:
                self.wake(end)
            else:
                self._scheduler.at(self._scheduler.now + self.delay(), self.wake, end)

    def is_out(self, end: End) -> bool:
        own = (stream for stream in end.session.streams.values() if stream.sender is end)
        return all(stream.is_broken or stream.arrived == stream.sent for stream in own)

    def wake(self, end: End) -> None:
        """Let the rank look again at what it waits for, unless it is stopped."""
        if end.process.stopped_until <= self._scheduler.now:
            self._scheduler.wake(end.process.rank)

    def leave(self, end: End) -> None:
        """Let all transfers with a rank fail that leaves the channel, each after a while, but for what has arrived."""
        session = end.session
        if end.rank in session.gone:
            return
        lost_from = session.gone[end.rank] = {}
        for peer in session.ends:
            if peer is not end and not peer.is_closed:
                lost_from[peer.rank] = self._scheduler.now + self.delay()
                for transfer in peer.pending:
                    if transfer.peer == end.rank:
                        self._fail_later(peer, transfer)

    def _fail_later(self, end: End, transfer: Transfer) -> None:
        self._scheduler.at(self._scheduler.now + self.delay(), self._fail, end, transfer)

    def _fail(self, end: End, transfer: Transfer) -> None:
        stream = end.pending.get(transfer)
        if stream is None or end.is_closed:
            return
        peer = end.session.ends[transfer.peer]
        when, goes_on = self.open_at(end.process, peer.process), end.process.stopped_until
        if max(when, goes_on) > self._scheduler.now:
            # An engine notices after its rank goes on, which may look at the time before.
            self._scheduler.at(max(when, goes_on + self.delay()), self._fail, end, transfer)
            return
        if transfer.is_send:
            stream.sends.pop(transfer.handle, None)  # its buffer is the caller's again
        elif transfer.handle < stream.arrived:
            return
        else:
            stream.is_broken = True
            del stream.receives[transfer.handle]
        transfer.error = _gone(transfer.peer)
        self._complete(end, transfer)


def _gone(rank: int) -> str:
    return f"rank {rank} has ended or left the channel"
