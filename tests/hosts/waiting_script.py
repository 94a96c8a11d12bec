"""Comes as rank 2 of three to the store at the port that it is given, and waits for the others."""

import sys
import time

from torch import distributed

from treefold.group.rosters import StoreRoster

store = distributed.TCPStore("127.0.0.1", int(sys.argv[1]), wait_for_workers=False)
StoreRoster(store, 2, 3, "job").exchange(b"", time.monotonic() + 60)
