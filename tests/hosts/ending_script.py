"""Ends while a side thread connects two ranks, of which the other does no more than come."""

import sys
import threading
import time

from torch import distributed

from treefold.engines.roster import StoreRoster

store = distributed.HashStore()
deadline = time.monotonic() + 60


def connect(rank):
    """Come, and let gloo connect rank 0."""
    roster = StoreRoster(store, rank, 2, "job")
    roster.exchange(b"", deadline)
    if rank == 0:
        roster.open_channel(deadline)


for rank in range(2):
    threading.Thread(target=connect, args=(rank,), daemon=True).start()
time.sleep(float(sys.argv[1]))
