"""The suite that every engine's ``Channel`` passes: the promises of the interface, on real messages.

The suite needs a way to run ranks: a function ``run(function, size)``. It calls ``function(channel)`` on each of
``size`` ranks, which are processes or threads that end when that has returned. It returns the results by rank, and
raises the error of a rank. Functions stand at the top of this module, or are ``functools.partial`` of such, so that
other processes find them by name.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from treefold.backends import HostArray
from treefold.engines.interface import Channel, Transfer
from treefold.errors import ConformanceError

#: Seconds until a check gives up; nothing here takes that long.
PATIENCE_S = 600.0
#: Seconds for what should take none.
BRIEF_S = 0.2


class Run(Protocol):
    """A way to run a function on this many ranks that are joined by channels."""

    def __call__(self, function: Callable[[Channel], Any], size: int) -> list[Any]:
        """Return what ``function(channel)`` has returned on each rank."""
        ...


class ChannelCase(NamedTuple):
    """One promise of ``Channel``; ``check(run)`` raises ``ConformanceError`` if it does not hold.

    Attributes:
        needs_survivors: The engine's other ranks must survive the death of one.
        needs_store: The engine must have a store, in which ranks leave words, and connections that break.

    """

    name: str
    check: Callable[[Run], None]
    needs_survivors: bool = False
    needs_store: bool = False


def row(value: int, length: int) -> HostArray:
    """Return bytes that are all alike."""
    return np.full(length, value, np.uint8)


def finish(channel: Channel, transfers: Iterable[Transfer], deadline: float | None = None) -> list[Transfer]:
    """Wait until these are done; return those that failed. Others may be returned as well, and do not count."""
    deadline = channel.now() + PATIENCE_S if deadline is None else deadline
    pending, failed = set(transfers), []
    while pending:
        transfer = channel.wait(deadline)
        if transfer is None:
            message = f"transfers end before the deadline; these did not: {pending}"
            raise ConformanceError(message)
        if transfer in pending:
            pending.remove(transfer)
            failed += [transfer] if transfer.error else []
    return failed


def others(channel: Channel) -> list[int]:
    """Return the ranks of all others."""
    return [peer for peer in range(channel.size) if peer != channel.rank]


def sleep(channel: Channel, until: float) -> None:
    """Do nothing until a moment; drop what is done meanwhile."""
    while channel.wait(until) is not None:
        pass


def leave(channel: Channel) -> None:
    """End together: a rank that ends takes with it every message that it has sent and nobody has received.

    A rank that misses a message of this meeting misses nothing: the sender has left, and had heard from all others.
    """
    tag = channel.limits.tags - 1
    meeting = [channel.receive(peer, tag, row(0, 1)) for peer in others(channel)]
    for peer in others(channel):
        channel.send(peer, tag, row(1, 1))
    finish(channel, meeting)
    _stop(channel, b"left")


def send_in_order(channel: Channel) -> list[list[Any]]:
    """Send twenty messages with each of three tags, which come in turns."""
    buffers = {(tag, index): row(0, 3) for index in range(20) for tag in range(3)}
    if channel.rank:
        _finish_well(channel, [channel.receive(0, tag, buffer) for (tag, _), buffer in buffers.items()])
    else:
        for tag, index in buffers:
            channel.send(1, tag, row(20 * tag + index, 3))
    leave(channel)
    return [[buffers[tag, index].tolist() for index in range(20)] for tag in range(3)]


def check_order(run: Run) -> None:
    """Messages of one sender, receiver and tag arrive in the order of their sending."""
    expected = [[[20 * tag + index] * 3 for index in range(20)] for tag in range(3)]
    _expect_equal("messages arrive in order", run(send_in_order, 2)[1], expected)


def send_lengths(channel: Channel, *, lengths: list[int], room: int) -> list[list[int]]:
    """Send messages of these lengths into buffers of one length."""
    buffers = [row(255, room) for _ in lengths]
    if channel.rank:
        _finish_well(channel, [channel.receive(0, 2, buffer) for buffer in buffers])
    else:
        for length in lengths:
            channel.send(1, 2, row(length, length))
    leave(channel)
    return [buffer.tolist() for buffer in buffers]


def check_shorter_messages(run: Run) -> None:
    """The bytes of the buffer after a shorter message stay; the next message begins in the next buffer."""
    lengths = [5, 0, 8, 1, 7, 8]
    received = run(functools.partial(send_lengths, lengths=lengths, room=8), 2)[1]
    expected = [[length] * length + [255] * (8 - length) for length in lengths]
    _expect_equal("buffers behind shorter messages stay", received, expected)


def check_zero_bytes(run: Run) -> None:
    """Messages without bytes arrive, into buffers without bytes as well."""
    promise = "messages without bytes arrive"
    _expect_equal(promise, run(functools.partial(send_lengths, lengths=[0, 0, 0], room=0), 2)[1], [[], [], []])
    _expect_equal(promise, run(functools.partial(send_lengths, lengths=[0, 0], room=2), 2)[1], [[255, 255]] * 2)


def exchange(channel: Channel, *, count: int, nbytes: int, rounds: int = 1) -> int:
    """Send to all and receive from all. A received message names its sender and its number."""
    tags = range(min(count, channel.limits.tags - 1))
    for number in range(rounds):
        buffers = [(peer, k, row(0, nbytes)) for k in range(count) for peer in others(channel)]
        transfers = [channel.receive(peer, k % len(tags), buffer) for peer, k, buffer in buffers]
        for k in range(count):
            for peer in others(channel):
                channel.send(peer, k % len(tags), row(1 + (16 * channel.rank + k + number) % 255, nbytes))
        _finish_well(channel, transfers)
        for peer, k, buffer in buffers:
            _expect(f"message {k} of rank {peer}", buffer, (buffer == 1 + (16 * peer + k + number) % 255).all())
    leave(channel)
    return channel.size


def check_many_in_flight(run: Run) -> None:
    """64 messages each way at once, both sides sending before they receive."""
    _expect_equal("all messages arrive", run(functools.partial(exchange, count=64, nbytes=1 << 12), 2), [2, 2])


def check_all_to_all(run: Run) -> None:
    """Every rank with every other, round after round."""
    _expect_equal("all messages arrive", run(functools.partial(exchange, count=3, nbytes=100, rounds=4), 4), [4] * 4)


def echo(channel: Channel) -> int:
    """Use the same two buffers again and again, which is right as soon as the answer is there."""
    own, other = row(0, 1000), row(0, 1000)
    for index in range(1, 30):
        coming = channel.receive(1 - channel.rank, 1, other)
        if channel.rank == 0:
            own[:] = index
            channel.send(1, 1, own)
            _finish_well(channel, [coming])
        else:
            _finish_well(channel, [coming])
            own[:] = other
            channel.send(0, 1, own)
        _expect(f"the answer of round {index}", other, (other == index).all())
    leave(channel)
    return channel.rank


def check_buffers_are_free_again(run: Run) -> None:
    """A receiver's answer says that the send is done, whether the engine reports it or not."""
    _expect_equal("buffers are free again", run(echo, 2), [0, 1])


def send_and_end(channel: Channel) -> tuple[int, list[set[int]]] | None:
    """Rank 1 ends as soon as what it has sent is out."""
    if channel.rank:
        for tag in range(3):
            channel.send(0, tag, row(tag + 1, 1 << 16))
        channel.flush(channel.now() + PATIENCE_S)
        return None
    sleep(channel, channel.now() + BRIEF_S)
    buffers = [row(0, 1 << 16) for _ in range(3)]
    failed = finish(channel, [channel.receive(1, tag, buffer) for tag, buffer in enumerate(buffers)])
    _stop(channel, b"left")
    return len(failed), [set(buffer.tolist()) for buffer in buffers]


def check_flush(run: Run) -> None:
    """A flushed message arrives, although its sender ends."""
    _expect_equal("what was flushed arrives", run(send_and_end, 2)[0], (0, [{1}, {2}, {3}]))


def flush_often(channel: Channel) -> int:
    """Send rows that nobody keeps, in rounds that end with flush; return how many were received wrongly."""
    wrong = 0
    for number in range(1, 30):
        buffers = {peer: row(0, 1 << 14) for peer in others(channel)}
        coming = [channel.receive(peer, 1, buffer) for peer, buffer in buffers.items()]
        for peer in buffers:
            channel.send(peer, 1, row(number + peer, 1 << 14))
        _finish_well(channel, coming)
        channel.flush(channel.now() + PATIENCE_S)
        wrong += sum(int((buffer != number + channel.rank).any()) for buffer in buffers.values())
    leave(channel)
    return wrong


def check_flush_often(run: Run) -> None:
    """Nothing is forgotten that a receiver still waits for."""
    _expect_equal("flush forgets nothing that is waited for", run(flush_often, 3), [0] * 3)


def wait_for_nothing(channel: Channel) -> list[float]:
    """Wait for a message that nobody sends before it is too late; return by how much too long."""
    never = channel.receive(1 - channel.rank, 0, row(0, 1))
    late = []
    for _ in range(5):
        deadline = channel.now() + BRIEF_S
        transfer = channel.wait(deadline)
        _expect("wait returns None at its deadline", transfer, transfer is None)
        late.append(channel.now() - deadline)
    # Before a rank has waited, it may not hear from the other.
    first = channel.receive(1 - channel.rank, 9, row(0, 1))
    channel.send(1 - channel.rank, 9, row(1, 1))
    pending = {first, never}
    while pending:
        transfer = channel.wait(channel.now() + PATIENCE_S)
        _expect("what was sent at last arrives", transfer, transfer is not None and not transfer.error)
        if transfer is first:
            channel.send(1 - channel.rank, 0, row(1, 1))
        pending -= {transfer}
    leave(channel)
    return late


def check_deadline(run: Run) -> None:
    """None at the deadline, not before it, and soon after it."""
    late = sorted(itertools.chain(*run(wait_for_nothing, 2)))
    _expect("wait returns at its deadline", late, late[0] >= 0 and late[len(late) // 2] < BRIEF_S)


def receive_once(channel: Channel) -> tuple[int, int, int]:
    """Exchange four messages; count what ``wait`` returns."""
    coming = [channel.receive(1 - channel.rank, tag, row(0, 1)) for tag in range(4)]
    sent = [channel.send(1 - channel.rank, tag, row(1, 1)) for tag in range(4)]
    returned: list[Transfer | None] = []
    deadline = channel.now() + PATIENCE_S
    while not set(coming) <= set(returned):
        returned.append(channel.wait(deadline))
    deadline = channel.now() + BRIEF_S
    while (transfer := channel.wait(deadline)) is not None:
        returned.append(transfer)
    leave(channel)
    for one in returned:
        _expect("wait returns what send and receive have returned", one, one in coming or one in sent)
    return len(returned), len(set(returned)), len(set(returned) & set(coming))


def check_returns_each_once(run: Run) -> None:
    """Every receive is returned once, and every send at most once: the objects that send and receive have returned."""
    for count, different, receives in run(receive_once, 2):
        _expect_equal("no transfer is returned twice", count, different)
        _expect_equal("every receive is returned", receives, 4)


def read_words(channel: Channel) -> dict[int, bytes]:
    """Wait for rank 0, which stops with a word; return the words that this rank finds then."""
    if channel.rank == 0:
        channel.stop(b"why", channel.now() + PATIENCE_S)
        channel.close()
        return {}
    coming = channel.receive(0, 0, row(0, 8))
    _expect_equal("a transfer with a rank that stops fails", finish(channel, [coming]), [coming])
    words = dict(channel.read_words(channel.now() + PATIENCE_S) or {})
    # Both look before they stop themselves. Who misses the message misses nothing, as in `leave`.
    channel.send(3 - channel.rank, 0, row(1, 1))
    finish(channel, [channel.receive(3 - channel.rank, 0, row(0, 1))])
    _stop(channel, b"")
    return words


def check_words(run: Run) -> None:
    """Others find the word of a rank that has stopped once a transfer with it has failed, and none of others."""
    _expect_equal("words are those of ranks that stopped", run(read_words, 3), [{}, {0: b"why"}, {0: b"why"}])


def wake_by_stopping(channel: Channel) -> int:
    """Wait for the rank before, which never sends; rank 0 stops by itself."""
    if channel.rank:
        coming = channel.receive((channel.rank - 1) % channel.size, 1, row(0, 8))
        _expect_equal("a transfer with a rank that stops fails", finish(channel, [coming]), [coming])
    channel.stop(b"%d" % channel.rank, channel.now() + PATIENCE_S)
    channel.close()
    return channel.rank


def check_stop_wakes(run: Run) -> None:
    """A rank that waits on one that stops is woken, and so is the one that waits on that one."""
    _expect_equal("stop wakes who waits", run(wake_by_stopping, 4), [0, 1, 2, 3])


def leave_each_other_out(channel: Channel) -> int | str:
    """Go on as ranks 0 and 1, and as rank 2."""
    first_part = [0, 1]
    here = first_part if channel.rank in first_part else [2]
    channel.stop(b"", channel.now() + BRIEF_S)
    try:
        onward = channel.without([rank for rank in range(3) if rank not in here], channel.now() + PATIENCE_S)
    except RuntimeError as refused:
        channel.close()
        return str(refused)
    channel.close()
    if onward.size > 1:
        leave(onward)
    return onward.size


def check_one_part_goes_on(run: Run) -> None:
    """Of two parts that leave each other out, one goes on, and the others get an error."""
    first, second, third = run(leave_each_other_out, 3)
    went_on = [isinstance(one, int) for one in (first, second, third)]
    _expect("one of two parts goes on", (first, second, third), went_on in ([True, True, False], [False, False, True]))
    _expect_equal("it is whole", (first, second) if went_on[0] else third, (2, 2) if went_on[0] else 1)
    refused = third if went_on[0] else first
    _expect("the others hear that ranks go on without them", refused, "go on" in refused)


def close_early(channel: Channel) -> int:
    """Close, rank 0 at once."""
    if channel.rank:
        channel.wait(channel.now() + 5 * BRIEF_S)
    channel.close()
    return channel.rank


def check_close(run: Run) -> None:
    """No rank waits for one that closes, and a rank that closes waits for none."""
    _expect_equal("close waits for nobody", run(close_early, 3), [0, 1, 2])


def lose_a_rank(channel: Channel) -> list[tuple[int, bool]]:
    """Exchange messages with all; rank 2 ends before it has sent any."""
    lost = 2
    if channel.rank == lost:
        return []
    from_lost, to_lost = channel.receive(lost, 1, row(0, 8)), channel.send(lost, 1, row(1, 8))
    coming = channel.receive(1 - channel.rank, 1, row(0, 8))
    channel.send(1 - channel.rank, 1, row(1, 8))
    failed = finish(channel, [from_lost, coming])
    _expect_equal("transfers with the rank that ended fail, and no others", failed, [from_lost])
    failed += finish(channel, [channel.receive(lost, 5, row(0, 8))])
    _expect_equal("a send names its receiver", to_lost.peer, lost)
    channel.send(1 - channel.rank, 1, row(1, 8))
    _finish_well(channel, [channel.receive(1 - channel.rank, 1, row(0, 8))])
    leave(channel)
    return [(transfer.peer, bool(transfer.error)) for transfer in failed]


def check_a_death(run: Run) -> None:
    """Transfers with a rank that has ended fail and name it, later ones too; the others go on with each other."""
    _expect_equal("deaths are named", run(lose_a_rank, 3), [[(2, True)] * 2, [(2, True)] * 2, []])


def go_on_without(channel: Channel, *, lost: int) -> tuple[int, int] | None:
    """Go on in a smaller channel when a rank has ended."""
    if channel.rank == lost:
        return None
    deadline = channel.now() + PATIENCE_S
    finish(channel, [channel.receive(lost, 0, row(0, 4))])
    _stop(channel, b"")
    onward = channel.without([lost], deadline)
    buffers = {peer: row(0, 4) for peer in others(onward)}
    coming = [onward.receive(peer, 0, buffer) for peer, buffer in buffers.items()]
    for peer in buffers:
        onward.send(peer, 0, row(2**onward.rank, 4))
    _finish_well(onward, coming)
    for peer, buffer in buffers.items():
        _expect(f"the message of rank {peer}", buffer, (buffer == 2**peer).all())
    leave(onward)
    return onward.rank, onward.size


def check_without(run: Run) -> None:
    """The ranks that are left have numbers without a gap, and receive no earlier message."""
    promise = "the ranks that are left close up"
    _expect_equal(promise, run(functools.partial(go_on_without, lost=1), 4), [(0, 3), None, (1, 3), (2, 3)])
    _expect_equal(promise, run(functools.partial(go_on_without, lost=0), 3), [None, (0, 2), (1, 2)])


def _stop(channel: Channel, word: bytes) -> None:
    channel.stop(word, channel.now() + BRIEF_S)
    channel.close()


def _finish_well(channel: Channel, transfers: list[Transfer]) -> None:
    _expect_equal("no transfer fails", finish(channel, transfers), [])


def _expect(promise: str, found: object, holds: bool) -> None:  # noqa: FBT001 - the claim itself
    if not holds:
        message = f"{promise}; got {found!r}"
        raise ConformanceError(message)


def _expect_equal(promise: str, found: object, expected: object) -> None:
    _expect(f"{promise}: {expected!r}", found, found == expected)


_CHECKS = (
    check_order,
    check_shorter_messages,
    check_zero_bytes,
    check_many_in_flight,
    check_all_to_all,
    check_buffers_are_free_again,
    check_flush,
    check_flush_often,
    check_deadline,
    check_returns_each_once,
    check_close,
)

#: Every promise of ``Channel``; the last five are not for every engine.
CHANNEL_CONFORMANCE: tuple[ChannelCase, ...] = (
    *(ChannelCase(check.__name__.removeprefix("check_"), check) for check in _CHECKS),
    ChannelCase("words", check_words, needs_store=True),
    ChannelCase("stop_wakes", check_stop_wakes, needs_store=True),
    ChannelCase("a_death", check_a_death, needs_survivors=True),
    ChannelCase("without", check_without, needs_survivors=True, needs_store=True),
    ChannelCase("one_part_goes_on", check_one_part_goes_on, needs_store=True),
)
