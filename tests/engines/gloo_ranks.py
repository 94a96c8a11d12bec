"""What ranks of gloo channels run: PyTorch is imported once, by the process that they are forked from."""

import sys
import time
from datetime import timedelta
from pathlib import Path

from torch import distributed

sys.path.append(str(Path(__file__).parent.parent))

import channel_conformance

from treefold.engines.roster import StoreRoster

_SECONDS = 60.0


def on_channel(me, *, name, options, port):
    """Call a function of the suite on a channel to the other ranks."""
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=_SECONDS), wait_for_workers=False)
    roster, deadline = StoreRoster(store, me.rank, me.size, "test"), time.monotonic() + _SECONDS
    roster.exchange(b"", deadline)
    return channel_conformance.named(name)(roster.open_channel(deadline), **options)
