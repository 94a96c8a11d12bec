"""Of the suite of all channels: ranks that stop, that die, and that go on without some."""

import functools

from channel_calls import BRIEF, PATIENCE, finish, from_all, leave, others, row


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
