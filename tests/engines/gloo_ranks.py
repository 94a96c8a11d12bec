"""The programs of ranks with gloo channels: PyTorch is imported once, by the process from which they are forked."""

import time
from datetime import timedelta

import channel_cases
from torch import distributed

from treefold.engines.gloo import GlooChannel
from treefold.engines.stores import Meeting

_SECONDS = 60.0


def on_channel(me, *, name, options, port):
    """Call a function of the suite on a channel to the other ranks."""
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False)
    now = time.monotonic()
    channel = GlooChannel(Meeting(store, "test", me.rank, me.size, now), now + _SECONDS)
    return getattr(channel_cases, name)(channel, **options)
