"""Of the suite of all channels: ranks that stop, that die, and that go on without some."""

import functools

from channel_calls import BRIEF, PATIENCE, finish, leave, others, row


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


def read_the_words_of_one_that_has_stopped(channel):
    """Wait for rank 0, which stops with a word; return the words that this rank finds then."""
    if channel.rank == 0:
        channel.stop(b"why", channel.now() + PATIENCE)
        channel.close()
        return {}
    taken = channel.receive(0, 0, row(0, 8))
    assert finish(channel, [taken]) == [taken]
    words = dict(channel.words(channel.now() + PATIENCE))
    # Both look before they stop themselves. Who misses the message misses nothing, as above.
    channel.send(3 - channel.rank, 0, row(1, 1))
    finish(channel, [channel.receive(3 - channel.rank, 0, row(0, 1))])
    channel.stop(b"", channel.now() + BRIEF)
    channel.close()
    return words


def check_words(run):
    """Others find the word of a rank that has stopped once a transfer with it has failed, and none of others."""
    assert run(read_the_words_of_one_that_has_stopped, 3) == [{}, {0: b"why"}, {0: b"why"}]


def wake_by_stopping(channel):
    """Wait for the rank before, which never sends; rank 0 stops by itself."""
    if channel.rank:
        taken = channel.receive((channel.rank - 1) % channel.size, 1, row(0, 8))
        assert finish(channel, [taken]) == [taken]
    channel.stop(b"%d" % channel.rank, channel.now() + PATIENCE)
    channel.close()
    return channel.rank


def check_stop_wakes(run):
    """A rank that waits on one that stops is woken, and so is the one that waits on that one."""
    assert run(wake_by_stopping, 4) == [0, 1, 2, 3]


def go_on_without(channel, *, lost):
    """Go on in a smaller channel when a rank has ended."""
    if channel.rank == lost:
        return None
    deadline = channel.now() + PATIENCE
    late = channel.receive(lost, 0, row(0, 4))
    finish(channel, [late])
    channel.stop(b"", channel.now() + BRIEF)
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
    channel.stop(b"", channel.now() + BRIEF)
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
