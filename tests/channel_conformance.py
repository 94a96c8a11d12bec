"""The suite that every channel passes: what ``Channel`` promises, on whatever runs a function on so many ranks.

A way to run is a function ``run(function, size)``: it calls ``function(channel)`` on each rank, a process or a thread
that ends when that has returned, and returns what each has returned, by rank. It raises what a rank has raised.
Functions stand at the top of their modules, so that other processes find them by name (``named``).
"""

import functools
import itertools

import channel_endings
from channel_calls import BRIEF, PATIENCE, finish, leave, others, row, sleep


def send_in_order(channel):
    """Send twenty messages with each of three tags, which come in turns."""
    buffers = {(tag, index): row(0, 3) for index in range(20) for tag in range(3)}
    if channel.rank:
        taken = [channel.receive(0, tag, buffer) for (tag, _), buffer in buffers.items()]
        assert not finish(channel, taken)
    else:
        for tag, index in buffers:
            channel.send(1, tag, row(20 * tag + index, 3))
    leave(channel)
    return [[buffers[tag, index].tolist() for index in range(20)] for tag in range(3)]


def check_order(run):
    """Messages of one sender, receiver and tag arrive in the order of their sending."""
    assert run(send_in_order, 2)[1] == [[[20 * tag + index] * 3 for index in range(20)] for tag in range(3)]


def send_lengths(channel, *, lengths, room):
    """Send messages of these lengths into buffers of one length."""
    buffers = [row(255, room) for _ in lengths]
    if channel.rank:
        assert not finish(channel, [channel.receive(0, 2, buffer) for buffer in buffers])
    else:
        for length in lengths:
            channel.send(1, 2, row(length, length))
    leave(channel)
    return [buffer.tolist() for buffer in buffers]


def check_shorter_messages(run):
    """What lies in the buffer behind a shorter message stays; the next message begins in the next buffer."""
    lengths = [5, 0, 8, 1, 7, 8]
    received = run(functools.partial(send_lengths, lengths=lengths, room=8), 2)[1]
    assert received == [[length] * length + [255] * (8 - length) for length in lengths]


def check_zero_bytes(run):
    """Messages without bytes arrive, into buffers without bytes as well."""
    assert run(functools.partial(send_lengths, lengths=[0, 0, 0], room=0), 2)[1] == [[], [], []]
    assert run(functools.partial(send_lengths, lengths=[0, 0], room=2), 2)[1] == [[255, 255]] * 2


def exchange(channel, *, count, nbytes, rounds=1):
    """Send to all and receive from all; what is received says from whom, and as which message."""
    tags = range(min(count, channel.limits.tags - 1))
    for number in range(rounds):
        taken = [(peer, k, row(0, nbytes)) for k in range(count) for peer in others(channel)]
        transfers = [channel.receive(peer, k % len(tags), buffer) for peer, k, buffer in taken]
        for k in range(count):
            for peer in others(channel):
                channel.send(peer, k % len(tags), row(1 + (16 * channel.rank + k + number) % 255, nbytes))
        assert not finish(channel, transfers)
        assert all((buffer == 1 + (16 * peer + k + number) % 255).all() for peer, k, buffer in taken)
    leave(channel)
    return channel.size


def check_many_in_flight(run, *, nbytes=1 << 12):
    """64 messages each way at once, both sides sending before they receive; give a real engine 1 MiB each."""
    assert run(functools.partial(exchange, count=64, nbytes=nbytes), 2) == [2, 2]


def check_all_to_all(run):
    """Every rank with every other, round after round."""
    assert run(functools.partial(exchange, count=3, nbytes=100, rounds=4), 4) == [4] * 4


def echo(channel):
    """Use the same two buffers again and again, which is right as soon as the answer is there."""
    own, other = row(0, 1000), row(0, 1000)
    for index in range(1, 30):
        taken = channel.receive(1 - channel.rank, 1, other)
        if channel.rank == 0:
            own[:] = index
            channel.send(1, 1, own)
            assert not finish(channel, [taken])
        else:
            assert not finish(channel, [taken])
            own[:] = other
            channel.send(0, 1, own)
        assert (other == index).all()
    leave(channel)
    return channel.rank


def check_buffers_are_free_again(run):
    """A receiver's answer says that the send is done, whether the engine reports it or not."""
    assert run(echo, 2) == [0, 1]


def send_and_end(channel):
    """Rank 1 ends as soon as what it has sent is out."""
    if channel.rank:
        for tag in range(3):
            channel.send(0, tag, row(tag + 1, 1 << 16))
        channel.flush(channel.now() + PATIENCE)
        return None
    sleep(channel, channel.now() + BRIEF)
    buffers = [row(0, 1 << 16) for _ in range(3)]
    failed = finish(channel, [channel.receive(1, tag, buffer) for tag, buffer in enumerate(buffers)])
    channel.stop(b"left", channel.now() + BRIEF)
    channel.close()
    return len(failed), [set(buffer.tolist()) for buffer in buffers]


def check_flush(run):
    """What was flushed arrives, although its sender ends."""
    assert run(send_and_end, 2)[0] == (0, [{1}, {2}, {3}])


def settle_often(channel):
    """Send rows that nobody keeps, in rounds that end with settle; return what was received wrongly."""
    wrong = 0
    for number in range(1, 30):
        buffers = {peer: row(0, 1 << 14) for peer in others(channel)}
        taken = [channel.receive(peer, 1, buffer) for peer, buffer in buffers.items()]
        for peer in buffers:
            channel.send(peer, 1, row(number + peer, 1 << 14))
        assert not finish(channel, taken)
        channel.settle(channel.now() + PATIENCE)
        wrong += sum((buffer != number + channel.rank).any() for buffer in buffers.values())
    leave(channel)
    return int(wrong)


def check_settle(run):
    """Nothing is forgotten that a receiver still waits for."""
    assert run(settle_often, 3) == [0] * 3


def wait_for_nothing(channel):
    """Wait for a message that nobody sends before it is too late; return by how much too long."""
    never = channel.receive(1 - channel.rank, 0, row(0, 1))
    late = []
    for _ in range(5):
        deadline = channel.now() + BRIEF
        assert channel.wait(deadline) is None
        late.append(channel.now() - deadline)
    # Before a rank has waited, it may not hear from the other.
    expected = {channel.receive(1 - channel.rank, 9, row(0, 1)), never}
    channel.send(1 - channel.rank, 9, row(1, 1))
    while expected:
        transfer = channel.wait(channel.now() + PATIENCE)
        assert transfer is not None, f"these did not end: {expected}"
        assert not transfer.error
        if transfer in expected and transfer is not never:
            channel.send(1 - channel.rank, 0, row(1, 1))
        expected.discard(transfer)
    leave(channel)
    return late


def check_deadline(run):
    """None at the deadline, not before it, and soon after it."""
    late = list(itertools.chain(*run(wait_for_nothing, 2)))
    assert min(late) >= 0
    assert sorted(late)[len(late) // 2] < BRIEF


def receive_once(channel):
    """Exchange four messages; count what ``wait`` returns."""
    taken = [channel.receive(1 - channel.rank, tag, row(0, 1)) for tag in range(4)]
    sent = [channel.send(1 - channel.rank, tag, row(1, 1)) for tag in range(4)]
    returned, deadline = [], channel.now() + PATIENCE
    while not set(taken) <= set(returned):
        returned.append(channel.wait(deadline))
    deadline = channel.now() + BRIEF
    while (transfer := channel.wait(deadline)) is not None:
        returned.append(transfer)
    leave(channel)
    assert all(transfer in taken or transfer in sent for transfer in returned)
    return len(returned), len(set(returned)), len(set(returned) & set(taken))


def check_returns_each_once(run):
    """Every receive is returned once, and every send at most once: the objects that send and receive have returned."""
    for count, different, receives in run(receive_once, 2):
        assert count == different
        assert receives == 4


def named(name):
    """Return a function of the suite."""
    return vars(channel_endings).get(name) or globals()[name]


CHECKS = (
    check_order,
    check_shorter_messages,
    check_zero_bytes,
    check_many_in_flight,
    check_all_to_all,
    check_buffers_are_free_again,
    check_flush,
    check_settle,
    check_deadline,
    check_returns_each_once,
    channel_endings.check_words,
    channel_endings.check_stop_wakes,
    channel_endings.check_one_part_goes_on,
    channel_endings.check_close,
)
#: For engines that survive the death of a rank.
CHECKS_WITH_DEATHS = (channel_endings.check_a_death, channel_endings.check_without)
