"""Connects two ranks, drops their channels without closing them, and ends."""

import threading
import time

from torch import distributed

from treefold.group.bootstrap.rank_sources import StoreBootstrap

store = distributed.HashStore()
channels = {}


def connect(rank):
    """Come, and let gloo connect this rank."""
    deadline = time.monotonic() + 60
    bootstrap = StoreBootstrap(store, rank, 2, "job")
    bootstrap.exchange(b"", deadline)
    channels[rank] = bootstrap.open(deadline)


ranks = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
for one in ranks:
    one.start()
for one in ranks:
    one.join()
channels.clear()
