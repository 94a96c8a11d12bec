"""Ranks over gloo, in processes that have sockets and children of their own."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent))

from fault_ranks import joined
from rank_processes import told


def connect_beside_sockets_of_the_user(me, *, port):
    """Return whether a socket of the user's blocks as before, where Python's own objects would make it another."""
    socket.setdefaulttimeout(30)
    ours, _ = pair = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    for one in (ours, listening):
        os.set_blocking(one.fileno(), True)
    group = joined(me, port, 20.0)
    total = group.all_reduce(np.full(3, 2.0**me.rank))
    group.close()
    socket.setdefaulttimeout(None)
    blocking = [os.get_blocking(one.fileno()) for one in (ours, listening)]
    for one in (*pair, listening):
        one.close()
    return blocking, float(total[0])


def leave_children(me, *, port, end):
    """Let rank 1 start a process of its own program and another one, and end or stop before them.

    Return what the others are told, and whether it was long before the deadline.
    """
    group = joined(me, port, 20.0)
    group.barrier()
    if me.rank == 1:
        if not os.fork():
            me.wait_flag(0)
            me.wait_flag(2)
            os._exit(0)
        os.system("sleep 30 &")  # noqa: S605, S607 - as users do
        if end == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        with contextlib.suppress(ZeroDivisionError), group:
            raise ZeroDivisionError
        me.wait_flag(0)
        me.wait_flag(2)
        return None
    began = time.monotonic()
    story = told(group.barrier)
    me.flag(me.rank, 1)
    return *story, time.monotonic() < began + 10
