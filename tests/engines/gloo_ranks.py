"""What ranks of gloo channels run: PyTorch is imported once, by the process that they are forked from."""

import gc
import time
import weakref
from datetime import timedelta

import numpy as np
from torch import distributed

from treefold.engines.gloo import GlooChannel
from treefold.engines.stores import Meeting
from treefold.group.links.protocol import VALUE_TAGS
from treefold.testing import channels

_SECONDS = 60.0
#: More bytes than the system keeps on their way.
_LONG = 1 << 28


def on_channel(me, *, name, options, port):
    """Call a function of the suite on a channel to the other ranks."""
    return getattr(channels, name)(_opened(me, port), **options)


def stop_in_a_message(me, *, port):
    """Let rank 1 stop before a message has gone; return whether rank 0 still holds what it was to receive."""
    channel = _opened(me, port)
    if me.rank == 0:
        buffer = np.empty(_LONG, np.uint8)
        held = weakref.ref(buffer)
        channel.receive(1, VALUE_TAGS, buffer[:1])
        assert channel.wait(channel.now() + _SECONDS) is not None
        for part in (buffer[1:-1], buffer[-1:]):  # one behind the other
            channel.receive(1, VALUE_TAGS, part)
        me.wait_flag(0)
        until = time.monotonic() + _SECONDS
        while not buffer[1:-1].any():  # until it has come in part
            assert time.monotonic() < until
        channel.stop(b"too late", channel.now() + _SECONDS)
        channel.close()
        del buffer, part
        gc.collect()
        return held() is not None
    for length in (1, _LONG - 2):
        channel.send(0, VALUE_TAGS, np.ones(length, np.uint8))
    me.flag(0, 1)
    me.fail("stop")
    return None


def _opened(me, port):
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False)
    now = time.monotonic()
    return GlooChannel(Meeting(store, "test", me.rank, me.size, now), now + _SECONDS)
