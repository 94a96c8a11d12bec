"""One rank of the suite of all channels over MPI: ``python mpi_ranks.py FUNCTION OPTIONS`` prints what it returned."""

import gc
import json
import sys
import time
import weakref
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parent.parent))

import channel_cases
import pretended_hosts

from treefold import PerReplica
from treefold.engines.interface import CONTROL_TAGS
from treefold.engines.mpi import MpiChannel
from treefold.engines.times import GRACE_PERIOD_S
from treefold.errors import ConnectError, DeadlineError, GroupError
from treefold.group.bootstrap.rank_sources import ChannelBootstrap

#: After how many seconds a rank has given up a call whose deadline is after one: it waits for words, and for its own.
_GIVEN_UP_S = 1 + 2 * GRACE_PERIOD_S + 1


def come_late(channel):
    """Rank 1 comes when rank 0 has given up; return what both are told, and whether an array of rank 0 was changed.

    Those arrays are as large as what rank 0 would have heard, and made where it would have been.
    """
    exchange = ChannelBootstrap.exchange

    def exchange_late(self, said, deadline):
        time.sleep((GRACE_PERIOD_S + 1) * channel.rank)
        return exchange(self, said, deadline)

    ChannelBootstrap.exchange = exchange_late
    told = ""
    try:
        pretended_hosts.connected(
            MPI.COMM_WORLD, channel.rank, [[0], [1]], connect_timeout_seconds=0.5 + 9 * channel.rank
        )
    except ConnectError as error:
        told = str(error)
    arrays = [np.full(1024, 7.0) for _ in range(200)]
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        MPI.COMM_WORLD.Iprobe()
    return told, all((array == 7).all() for array in arrays)


def come_when_all_have_given_up(channel):
    """Rank 0 comes to a call when the others have given it up; return the ranks that each blames."""
    group = pretended_hosts.connected(MPI.COMM_WORLD, channel.rank, [[0], [1], [2]], timeout_seconds=1)
    group.barrier()
    time.sleep(0 if channel.rank else _GIVEN_UP_S)
    try:
        group.barrier()
    except DeadlineError as error:
        return error.ranks
    return "a result"


def drop_what_is_sent(channel, *, call):
    """Rank 1 comes when rank 0 has dropped its array; return the errors, whether it is kept, and what comes."""
    told, memory = call_late(channel.rank, call)
    gc.collect()
    is_kept = memory() is not None
    MPI.COMM_WORLD.Barrier()
    group = pretended_hosts.connected(MPI.COMM_WORLD, channel.rank, [[0], [1]])
    total = group.all_reduce(np.full(20_000, 2.0**channel.rank))
    group.close()
    return told, is_kept, float(total[0])


def call_late(rank, call):
    """Make a call, in which rank 1 is late; return the ranks of the error, and a weak reference to the value."""
    group = pretended_hosts.connected(MPI.COMM_WORLD, rank, [[0], [1]], timeout_seconds=1)
    value = np.full(4 << 20, 2.0**rank)
    own = group._link._channel
    receive = own.receive

    def receive_late(peer, tag, buffer):
        if tag >= CONTROL_TAGS:
            own.receive = receive
            time.sleep(_GIVEN_UP_S)
        return receive(peer, tag, buffer)

    if rank:
        own.receive = receive_late
    try:
        getattr(group, call)(value)
    except DeadlineError as error:
        return error.ranks, weakref.ref(value)
    return (), weakref.ref(value)


def connect_those_that_are_left(channel):
    """Rank 2 does not come; return the ranks that others name, the sentence of ``without``, and a sum of the rest."""
    world = MPI.COMM_WORLD
    group = pretended_hosts.connected(world, channel.rank, [[0], [1], [2]], timeout_seconds=1)
    if channel.rank == 2:
        world.recv(source=0)
        group.close()
        return None
    try:
        group.barrier()
    except DeadlineError as error:
        lost = error.ranks
    try:
        group.without(lost)
    except GroupError as error:
        told = str(error)
    left = world.Create_group(world.group.Excl(lost))
    with pretended_hosts.connected(left, channel.rank, [[0], [1]]) as onward:
        total = onward.all_reduce(2.0**channel.rank)
        if channel.rank == 0:
            world.send(None, 2)
        return lost, told, onward.size, float(total)


def interrupt_among_large_messages(channel, *, folder):
    """Interrupt rank 1 among the values; it calls MPI no more until the others know. Return the errors."""
    group = pretended_hosts.connected(MPI.COMM_WORLD, channel.rank, [[0], [1], [2]], timeout_seconds=20)
    value = np.full(16 << 20, 2.0**channel.rank, np.float32)
    own = group._link._channel
    wait = own.wait

    def wait_until_interrupted(deadline):
        transfer = wait(deadline)
        if transfer is not None and not transfer.is_send and transfer.tag > CONTROL_TAGS:
            own.wait = wait
            raise KeyboardInterrupt
        return transfer

    if channel.rank == 1:
        own.wait = wait_until_interrupted
    try:
        group.all_reduce(value)
        told = "a result", ()
    except (GroupError, KeyboardInterrupt) as error:
        told = type(error).__name__, getattr(error, "ranks", ())
    _meet_elsewhere(channel, folder)
    return told


def return_before_another(channel, *, folder):
    """Bring one replica, and as rank 0 eight; rank 1 waits for those, while rank 0 does something else. Return sums."""
    group = pretended_hosts.connected(MPI.COMM_WORLD, channel.rank, [[0], [1]], timeout_seconds=10)
    value = PerReplica([np.ones(250)] * (1 if channel.rank else 8))
    group.all_reduce(value)
    group.barrier()
    time.sleep(0 if channel.rank else 0.05)
    total = group.all_reduce(value)
    _meet_elsewhere(channel, folder)
    return float(total[0])


def _meet_elsewhere(channel, folder):
    """Wait until all ranks have come here, without a call of MPI."""
    Path(folder, str(channel.rank)).touch()
    until = time.monotonic() + 40
    while len(list(Path(folder).iterdir())) < channel.size and time.monotonic() < until:
        time.sleep(0.01)


def bits(channel, hosts, first, calls, chunks):
    """Make the calls that these seeds draw; return what all ranks should have alike of each."""
    return pretended_hosts.bits(MPI.COMM_WORLD, channel.rank, hosts, range(first, first + calls), chunks)


def many(channel, hosts, dtype, replicas, count):
    """Return how many elements this rank has compared with one process, and how many differ."""
    return pretended_hosts.many(MPI.COMM_WORLD, channel.rank, hosts, dtype, replicas, count)


channel = MpiChannel(MPI.COMM_WORLD)
rank = channel.rank
function = globals().get(sys.argv[1]) or getattr(channel_cases, sys.argv[1])
returned = function(channel, **json.loads(sys.argv[2]))
everything = MPI.COMM_WORLD.gather(repr(returned))
if rank == 0:
    sys.stdout.write(f"returned {json.dumps(everything)}\n")
