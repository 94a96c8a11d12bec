"""A process of the same user that writes anything into what ranks share: results may be wrong, but no rank crashes.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import contextlib
import mmap
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import World

from treefold import PerReplica, _native

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

_SEEDS = range(200 if os.environ.get("TREEFOLD_CASES") == "full" else 12)
_ATTEMPTS = 6
#: The control page, and a block for each rank, which is less than this.
_PAGE, _BLOCK = 4096, 80 << 10


def segment():
    """Return the descriptor of the memory that this rank shares."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:treefold" in str(path.readlink()):
                return int(path.name)
    raise AssertionError


def scribble(fd, size, seed, seconds):
    """Write random bytes, words, ones and zeros at random places of the headers."""
    draw = random.Random(seed)
    shared = mmap.mmap(fd, _PAGE + size * _BLOCK)
    only_control = seed % 3 == 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(20):
            at = draw.randrange(0, (_PAGE if only_control or draw.random() < 0.5 else len(shared)) - 8)
            count = draw.choice((1, 4, 8))
            shared[at : at + count] = draw.choice((bytes(count), b"\xff" * count, draw.randbytes(count)))
        time.sleep(draw.choice((0, 0.0001, 0.002)))


def call_all(group, value, many):
    """Make a call of every program."""
    group.all_reduce(value)
    group.barrier()
    group.all_reduce(many)
    group.all_reduce({"a": many, "b": [value, many]}, "max")
    group.all_reduce(PerReplica([many, many]), "mean", weights=[1.0, 2.0])
    mapped = group.empty(many.shape, np.float32)
    group.all_reduce(mapped)
    group.broadcast(many, root=0)
    group.all_gather(many)


def call_while_somebody_scribbles(me, *, seed):
    """Call; on rank 0, a child writes into the headers. Return how many rounds went well."""
    value, many = np.ones(9, np.float32), np.ones(60_000, np.float32)
    call_all(me.group, value, many)
    me.group._link.timeout_seconds = 0.3
    child = 0
    if me.rank == 0:
        fd = segment()
        child = os.fork()
        if child == 0:
            try:
                scribble(fd, me.size, seed, 20)
            finally:
                os._exit(0)
    errors = 0
    until = time.monotonic() + 1.0
    while time.monotonic() < until and errors < _ATTEMPTS:
        try:
            call_all(me.group, value, many)
        except Exception:  # noqa: BLE001 - any error will do
            errors += 1
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return errors


class TestHeaders:
    def test_no_rank_crashes_or_waits_for_ever(self, ranks):
        """Every access stays within the memory of the group, and every call ends."""
        worlds = [World(call_while_somebody_scribbles, 2 + seed % 3, {"seed": seed}, seconds=40) for seed in _SEEDS]
        for world, ended in zip(worlds, ranks.run_all(worlds, 3), strict=True):
            assert all(one.signal == 0 and one.code == 0 for one in ended), (world.arguments, ended)
            assert all(one.value is not None for one in ended), (world.arguments, ended)
