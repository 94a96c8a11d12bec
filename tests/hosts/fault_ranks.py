"""Ranks of groups over gloo, each as if on a host of its own; the process they are forked from imports PyTorch once."""

import os
import signal
import time
from datetime import timedelta

import numpy as np
import pytest
from torch import distributed

from treefold.errors import GroupError, PeerLostError
from treefold.group.bootstrap import connecting
from treefold.group.bootstrap.rank_sources import StoreBootstrap
from treefold.group.group import Group

_CONNECT_S = 60.0
CALLS = 40


def joined(me, store, timeout_seconds, job="job", host=None):
    """Return a group of ranks that share no host but that of this number, on a store, or a port of one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this test's shell has done
    connecting.host_key = lambda: f"host {me.rank if host is None else host}"
    if isinstance(store, int):
        store = distributed.TCPStore("127.0.0.1", store, timeout=timedelta(seconds=_CONNECT_S), wait_for_workers=False)
    settings = connecting.GroupSettings("exact", None, 1 << 30, _CONNECT_S, timeout_seconds)
    return Group(connecting.join(StoreBootstrap(store, me.rank, me.size, job), settings, time.monotonic() + _CONNECT_S))


def call_with_fault(me, *, port, kind, at, victim, length, busy_s, timeout_seconds):
    """Make calls, in one of which a rank fails; return how that ended, how late, and what the rest do without it.

    Another rank comes to each of them ``busy_s`` later than the others.
    """
    me.group = joined(me, port, timeout_seconds)
    assert (me.group.all_reduce(np.full(length, 2.0**me.rank)) == 2**me.size - 1).all()
    if me.rank == victim:
        _fail_later(me, me.group._link._channel, kind, at)
    for number in range(CALLS):
        value = np.full(length, 2.0**me.rank + number, np.float64)
        end = value if number % 2 else np.full(length, -1.0)
        before = end.tobytes()
        time.sleep(busy_s if number % me.size == me.rank else 0)
        began = time.monotonic()
        try:
            me.group.all_reduce(value, out=end)
        except (GroupError, RuntimeError, KeyboardInterrupt) as error:
            me.settle()
            late = time.monotonic() - began - timeout_seconds
            is_whole = end.tobytes() == before
            ranks = getattr(error, "ranks", None)
            onward = _onward(me, ranks) if ranks and me.rank not in ranks else None
            return type(error).__name__, ranks, is_whole, late, onward
        assert (end == 2**me.size - 1 + me.size * number).all()
    return None


def call_after_fault(me, *, port, kind, timeout_seconds):
    """Make a call before which rank 1 is killed, raises or loads data for three deadlines; return how that ended."""
    me.group = joined(me, port, timeout_seconds)
    if me.rank == 1 and kind == "kill":
        me.fail("kill")
    if me.rank == 1 and kind == "raise":
        with pytest.raises(RuntimeError), me.group:
            raise RuntimeError
        return None
    time.sleep(3 * timeout_seconds if me.rank == 1 else 0.5)
    end = np.full(5000, -1.0)
    began = time.monotonic()
    with pytest.raises(GroupError) as caught:
        me.group.all_reduce(np.full(5000, 2.0**me.rank), out=end)
    late = time.monotonic() - began - timeout_seconds
    return caught.typename, caught.value.ranks, bool((end == -1).all()), late


def _onward(me, ranks):
    left = [rank for rank in range(me.size) if rank not in ranks]
    began = time.monotonic()
    me.group = me.group.without(ranks)
    seconds = time.monotonic() - began
    total = me.group.all_reduce(np.full(3, 2.0**me.rank))
    return bool((total == sum(2**rank for rank in left)).all()), seconds


def _fail_later(me, channel, kind, at):
    """Fail at the nth call of the channel from here on."""
    counts = iter(range(at, -1, -1))

    def failing(call):
        def counted(*arguments):
            if next(counts, 1) == 0:
                if kind == "interrupt":
                    me.note_fault()
                    os.kill(os.getpid(), signal.SIGINT)
                else:
                    me.fail(kind)
            return call(*arguments)

        return counted

    for name in ("send", "receive", "wait"):
        setattr(channel, name, failing(getattr(channel, name)))


def stop_beside_a_late_rank(me, *, port, timeout_seconds, late_s, at):
    """Let rank 0 stop where it hands values to rank 1, of its host, which has come later than the others.

    ``at``: in which of these steps, as an index. Return the error of each, and how long after the deadline of the first
    it came.
    """
    me.group = joined(me, port, timeout_seconds, host=me.rank // 2)
    values, made = np.full(200_000, 2.0**me.rank), []
    local, place = me.group._link._local, me.group._link._local.place
    local.place = lambda *given, **options: made.append(0) or place(*given, **options)
    assert (me.group.all_reduce(values) == 2**me.size - 1).all()
    if me.rank == 0:
        steps = iter(range(len(made)))
        stop_at = range(len(made))[at]
        local.place = lambda *given, **options: (
            (me.fail("stop") if next(steps) == stop_at else 0) or place(*given, **options)
        )
    me.group.barrier()
    began = time.monotonic()
    time.sleep(late_s if me.rank == 1 else 0)
    with pytest.raises((GroupError, AssertionError)) as caught:
        me.group.all_reduce(values)
    return caught.typename, getattr(caught.value, "ranks", None), time.monotonic() - began - timeout_seconds


def lose_a_rank_before_handing_over(me, *, port):
    """Let rank 3 end in a call, before rank 0 passes values to rank 1, of its host; return the ranks missed."""
    me.group = joined(me, port, 60.0, host=me.rank // 2)
    values = np.full(200_000, 2.0**me.rank)
    assert (me.group.all_reduce(values) == 2**me.size - 1).all()
    local, place = me.group._link._local, me.group._link._local.place
    if me.rank == 3:
        local.place = lambda *_, **__: me.fail("kill")
    elif me.rank == 0:
        local.place = lambda *given, **options: time.sleep(0.5) or place(*given, **options)
    with pytest.raises(PeerLostError) as caught:
        me.group.all_reduce(values)
    me.settle()
    return caught.value.ranks, _onward(me, caught.value.ranks)[0]
