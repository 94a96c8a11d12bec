"""What the suite of all channels, and other tests of channels, do again and again."""

import numpy as np

PATIENCE = 600.0  # seconds; nothing here takes that long
BRIEF = 0.2


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
    channel.stop(b"left", channel.now() + BRIEF)
    channel.close()
