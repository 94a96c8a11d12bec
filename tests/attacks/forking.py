"""A program that forks at random moments: ``forking.py COUNT FIRST STEP``; prints what went wrong, as JSON.

A thread forks while others reduce; or a signal handler does, within a fold or anywhere in a call, and the fold goes on
in both processes. Parent and child both reduce right afterwards, on several threads, and neither waits for ever.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time

import numpy as np
from attack import drawing

import treefold
from treefold import PerReplica, ReductionToOneDevice
from treefold.execution import native
from treefold.testing import owned, owned_sum

PATIENCE_S = 30
NUM_THREADS = 3
COUNT, LENGTH = 6, 150_001
#: A fold that takes long enough for the native core to look for signals, which it does every 20 ms.
LONG_LENGTH, LONG_BATCH = 500_009, 60


class Calls:
    """Reductions of arrays that name their owner, and whether they were right."""

    def __init__(self):
        self.ops = ReductionToOneDevice()
        self.arrays = [owned(replica, (LENGTH,)) for replica in range(COUNT)]
        self.expected = owned_sum(COUNT, (LENGTH,))
        long = PerReplica([owned(replica, (LONG_LENGTH,)) for replica in range(COUNT)])
        self.long_batch = [(long, "cpu:0")] * LONG_BATCH
        self.long_expected = owned_sum(COUNT, (LONG_LENGTH,))

    def is_right(self):
        return all(np.array_equal(result, self.expected) for result in treefold.all_reduce(self.arrays))

    def is_long_right(self):
        results = self.ops.batch_reduce("sum", self.long_batch)
        return all(np.array_equal(result[0], self.long_expected) for result in results)


def is_well(calls):
    """Tell whether this process reduces right, in this thread and in a new one, with as many threads as before."""
    right = [calls.is_right()]
    other = threading.Thread(target=lambda: right.append(calls.is_right()))
    other.start()
    other.join(PATIENCE_S)
    return right == [True, True] and native.num_threads() == NUM_THREADS


def leave(is_right):
    """End a child, whatever is raised in it: with 0 if all is right."""
    code = 1
    try:
        code = 0 if is_right() else 1
    finally:
        os._exit(code)


def begin_child():
    """Let the system end a child that hangs: timers of its parent it has none."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE_S)


def status_of(child):
    """Return how a child ended; it ends, for its own alarm ends it."""
    return os.waitpid(child, 0)[1]


def fork_beside(calls, random, *, by_main):
    """Fork in one thread while others reduce; return the statuses and whether all was right."""
    stopped, statuses, right = threading.Event(), [], []

    def reduce_on():
        while not stopped.is_set():
            right.append(calls.is_right())

    def fork():
        time.sleep(random.random() / 100)
        child = os.fork()
        if child == 0:
            begin_child()
            leave(lambda: is_well(calls))
        statuses.append(status_of(child))

    others = [threading.Thread(target=reduce_on) for _ in range(2)]
    for other in others:
        other.start()
    if by_main:
        fork()
    else:
        forker = threading.Thread(target=fork)
        forker.start()
        while forker.is_alive():
            right.append(calls.is_right())
        forker.join()
    stopped.set()
    for other in others:
        other.join()
    return statuses, all(right)


def fork_within(call, calls, after_s):
    """Fork in a signal handler while a call runs, and reduce there; both processes return to the call."""
    children, right, is_child = [], [], []

    def ring(*_):
        if armed:
            armed.clear()
            child = os.fork()
            if child == 0:
                begin_child()
                is_child.append(True)
            else:
                children.append(child)
            right.append(calls.is_right())

    armed = [True]
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    right.append(call())
    armed.clear()
    if is_child:  # an exception of the call would have ended the child with another status
        leave(lambda: all(right) and is_well(calls))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return [status_of(child) for child in children], all(right)


def main(count, first, step):
    treefold.set_num_threads(NUM_THREADS)
    calls = Calls()
    took_s = {}
    for call in (calls.is_long_right, calls.is_right):
        assert call()
        start = time.perf_counter()
        assert call()
        took_s[call] = time.perf_counter() - start
    wrong, forks, number = [], 0, first
    while forks < count:
        faulthandler.dump_traceback_later(4 * PATIENCE_S, exit=True)
        random = drawing(number)
        match number % 4:
            case 0 | 1 as kind:
                statuses, is_right = fork_beside(calls, random, by_main=kind == 0)
            case kind:
                call = (calls.is_long_right, calls.is_right)[kind - 2]
                statuses, is_right = fork_within(call, calls, max(0.8 * random.random() * took_s[call], 2e-6))
        forks += len(statuses)
        if any(statuses) or not is_right or not is_well(calls):
            wrong.append(f"case {number}: {statuses}, {is_right}")
        number += step
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"forks": forks, "wrong": wrong[:5]}))  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
