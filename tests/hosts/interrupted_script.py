"""Is interrupted while gloo connects two ranks, of which the other does no more than come."""

import os
import signal
import threading
import time

from torch import distributed

from treefold.group.rosters import StoreRoster

signal.signal(signal.SIGINT, signal.default_int_handler)
store = distributed.HashStore()
deadline = time.monotonic() + 60
rosters = [StoreRoster(store, rank, 2, "job") for rank in range(2)]
threading.Thread(target=rosters[1].exchange, args=(b"", deadline), daemon=True).start()
rosters[0].exchange(b"", deadline)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
rosters[0].open(deadline)
