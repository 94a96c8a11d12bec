"""Connects two ranks, closes their channels, and ends before the threads that waited for messages have."""

import contextlib
import threading
import time
from datetime import timedelta

import numpy as np
from torch import distributed

from treefold.engines.gloo_receives import GlooReceives
from treefold.group.rosters import StoreRoster

store = distributed.HashStore()
channels = {}
wait_on = GlooReceives._wait_on


def wait_longer(*arguments):
    """Wait within C++ for what never comes, when all is over."""
    wait_on(*arguments)
    with contextlib.suppress(RuntimeError):
        store.wait(["never"], timedelta(seconds=0.3))


def connect(rank):
    """Come, let gloo connect this rank, and wait for a message."""
    deadline = time.monotonic() + 60
    roster = StoreRoster(store, rank, 2, "job")
    roster.exchange(b"", deadline)
    channels[rank] = roster.open(deadline).channel
    channels[rank].receive(1 - rank, 0, np.empty(1, np.uint8))


class Slow:
    """Keeps the interpreter, which has begun to end, from ending at once."""

    def __del__(self, sleep=time.sleep):
        """Let other threads run meanwhile."""
        sleep(1.0)


GlooReceives._wait_on = wait_longer
ranks = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
for one in ranks:
    one.start()
for one in ranks:
    one.join()
slow = Slow()
for channel in channels.values():
    channel.stop(b"the end", time.monotonic() + 0.05)
    channel.close()
