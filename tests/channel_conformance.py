"""The suite that every channel passes: what ``Channel`` promises, on whatever runs a function on so many ranks.

A way to run is a function ``run(function, size)``: it calls ``function(channel)`` on each rank, a process or a thread
that ends when that has returned, and returns what each has returned, by rank. It raises what a rank has raised.
Functions stand at the top of this module, so that other processes find them by name.
"""

import functools
import itertools

import numpy as np

PATIENCE = 600.0  # seconds; nothing here takes that long
BRIEF = 0.2


def from_all(ranks):
    """Return what tells that all of these have spoken."""
    return lambda said: said.keys() >= set(ranks)


def row(value, length):
    """Return bytes that are all alike."""
    return np.full(length, value, np.uint8)


def finish(channel, transfers, deadline=None):
    """Wait until these are done; return those that failed. Others may be returned as well, and do not count."""
    deadline = channel.now() + PATIENCE if deadline is None else deadline
    open_ones, failed = set(transfers), []
    while open_ones:
        transfer = channel.wait(deadline)
        assert transfer is not None, f"these did not end: {open_ones}"
        if transfer in open_ones:
            open_ones.remove(transfer)
            failed += [transfer] if transfer.error else []
    return failed


def others(channel):
    """Return the ranks of all others."""
    return [peer for peer in range(channel.size) if peer != channel.rank]


def sleep(channel, until):
    """Do nothing until a moment; drop what is done meanwhile."""
    while channel.wait(until) is not None:
        pass


def leave(channel):
    """End together: a rank that ends takes with it what it has sent and nobody has received.

    Who misses a message of this meeting misses nothing: its sender has left, and had heard from all others.
    """
    tag = channel.limits.tags - 1
    meeting = [channel.receive(peer, tag, row(0, 1)) for peer in others(channel)]
    for peer in others(channel):
        channel.send(peer, tag, row(1, 1))
    finish(channel, meeting)
    channel.ask(b"left", from_all([]), channel.now())
    channel.close()


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
    channel.ask(b"left", from_all([]), channel.now())
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
        channel.settle()
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


def lose_a_rank(channel):
    """Exchange messages with all; rank 2 ends before it has sent any."""
    if channel.rank == 2:
        return []
    from_lost, to_lost = channel.receive(2, 1, row(0, 8)), channel.send(2, 1, row(1, 8))
    taken = channel.receive(1 - channel.rank, 1, row(0, 8))
    channel.send(1 - channel.rank, 1, row(1, 8))
    failed = finish(channel, [from_lost, taken])
    assert failed == [from_lost]
    failed += finish(channel, [channel.receive(2, 5, row(0, 8))])
    assert to_lost.peer == 2
    channel.send(1 - channel.rank, 1, row(1, 8))
    assert not finish(channel, [channel.receive(1 - channel.rank, 1, row(0, 8))])
    leave(channel)
    return [(transfer.peer, bool(transfer.error)) for transfer in failed]


def check_a_death(run):
    """Transfers with a rank that has ended fail and name it, later ones too; the others go on with each other."""
    assert run(lose_a_rank, 3) == [[(2, True)] * 2, [(2, True)] * 2, []]


def ask_all(channel):
    """Say something, and hear what the others say."""
    heard = channel.ask(f"rank {channel.rank}".encode(), from_all(range(channel.size)), channel.now() + PATIENCE)
    channel.close()
    return dict(heard)


def check_ask(run):
    """All hear what all have said."""
    assert run(ask_all, 3) == [{rank: b"rank %d" % rank for rank in range(3)}] * 3


def wake_by_ask(channel):
    """Wait for the rank before, which never sends; rank 0 stops by itself."""
    if channel.rank:
        taken = channel.receive((channel.rank - 1) % channel.size, 1, row(0, 8))
        assert finish(channel, [taken]) == [taken]
    heard = channel.ask(b"%d" % channel.rank, from_all(range(channel.size)), channel.now() + PATIENCE)
    channel.close()
    return dict(heard)


def check_ask_wakes(run):
    """A rank that waits on one that asks is woken, and so is who waits on that one."""
    assert run(wake_by_ask, 4) == [{rank: b"%d" % rank for rank in range(4)}] * 4


def hear_of_one_that_is_gone(channel):
    """Wait for rank 0, which stops and says why; return what this rank hears from both others."""
    if channel.rank:
        taken = channel.receive(0, 0, row(0, 8))
        assert finish(channel, [taken]) == [taken]
        until = channel.now() + 20 * BRIEF  # a store may be slow, and is asked again
        while not (heard := [channel.heard(0, until), channel.heard(3 - channel.rank, channel.now() + BRIEF)])[0]:
            assert channel.now() < until
        # Both wait for each other before they speak themselves. Who misses the message misses nothing, as above.
        channel.send(3 - channel.rank, 0, row(1, 1))
        finish(channel, [channel.receive(3 - channel.rank, 0, row(0, 1))])
    else:
        heard = []
    channel.ask(b"why %d" % channel.rank, from_all([]), channel.now() + BRIEF)
    channel.close()
    return heard


def check_heard(run):
    """Others hear why a rank has stopped, and nothing of those that have not."""
    assert run(hear_of_one_that_is_gone, 3) == [[], [b"why 0", b""], [b"why 0", b""]]


def ask_for_a_silent_one(channel):
    """Ask for a rank that says nothing."""
    start = channel.now()
    if channel.rank == 2:
        channel.wait(start + 40 * BRIEF)  # it is alive, and busy
        return None
    heard = channel.ask(b"here", from_all(range(channel.size)), start + 20 * BRIEF)
    elapsed = channel.now() - start
    channel.close()
    return sorted(heard), elapsed >= 20 * BRIEF


def check_ask_ends(run):
    """At the deadline, with what was said until then."""
    assert run(ask_for_a_silent_one, 3)[:2] == [([0, 1], True)] * 2


def go_on_without(channel, *, lost):
    """Go on in a smaller channel when a rank has ended."""
    if channel.rank == lost:
        return None
    deadline = channel.now() + PATIENCE
    late = channel.receive(lost, 0, row(0, 4))
    finish(channel, [late])
    channel.ask(b"", from_all(set(range(channel.size)) - {lost}), deadline)
    channel.close()
    onward = channel.without([lost], deadline)
    buffers = {peer: row(0, 4) for peer in others(onward)}
    taken = [onward.receive(peer, 0, buffer) for peer, buffer in buffers.items()]
    for peer in buffers:
        onward.send(peer, 0, row(2**onward.rank, 4))
    assert not finish(onward, taken)
    assert all((buffer == 2**peer).all() for peer, buffer in buffers.items())
    leave(onward)
    return onward.rank, onward.size


def check_without(run):
    """Those that are left have numbers without a gap, and nothing that was on its way before."""
    assert run(functools.partial(go_on_without, lost=1), 4) == [(0, 3), None, (1, 3), (2, 3)]
    assert run(functools.partial(go_on_without, lost=0), 3) == [None, (0, 2), (1, 2)]


def leave_each_other_out(channel):
    """Go on as ranks 0 and 1, and as rank 2."""
    here = [0, 1] if channel.rank < 2 else [2]
    channel.ask(b"", from_all(here), channel.now() + PATIENCE)
    try:
        onward = channel.without([rank for rank in range(3) if rank not in here], channel.now() + PATIENCE)
    except RuntimeError as refused:
        channel.close()
        return str(refused)
    channel.close()
    if onward.size > 1:
        leave(onward)
    return onward.size


def check_one_part_goes_on(run):
    """Of two parts that leave each other out, one goes on, and the others get an error."""
    first, second, third = run(leave_each_other_out, 3)
    assert (first, second) == (2, 2) or third == 1
    assert not (isinstance(first, int) and isinstance(third, int))
    assert isinstance(first, int) == isinstance(second, int)
    refused = third if isinstance(first, int) else first
    assert "go on" in refused


def close_early(channel):
    """Close, rank 0 at once."""
    start = channel.now()
    if channel.rank == 0:
        channel.close()
    else:
        channel.wait(start + 5 * BRIEF)
        channel.close()
    return channel.rank


def check_close(run):
    """Nobody waits for who closes, and who closes waits for nobody."""
    assert run(close_early, 3) == [0, 1, 2]


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
    check_ask,
    check_ask_wakes,
    check_ask_ends,
    check_heard,
    check_one_part_goes_on,
    check_close,
)
#: For engines that survive the death of a rank.
CHECKS_WITH_DEATHS = (check_a_death, check_without)
