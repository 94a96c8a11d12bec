"""Who is let into a group: the ranks that its ticket was made for. All others are turned away, and it still forms."""

import json
import os
import random
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import World

from treefold import _native
from treefold.group import Group, Ticket, connect, connecting
from treefold.group.descriptor_passing import new_socket
from treefold.group.rendezvous import Client, Waiting

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

_SIZE = 3
_NOBODY = 65534


def hello(ticket, **changes):
    """Return what rank 2 says of itself, but for some changes."""
    agreed = connecting._agreed("replica_order")
    said = {"token": ticket.token, "rank": 2, "size": _SIZE, "namespace": "", "agreed": agreed, "descriptors": 0}
    return json.dumps({**said, **changes}).encode()


def door(ticket):
    """Return a connection to rank 0, once it listens."""
    until = time.monotonic() + 20
    while True:
        connection = new_socket()
        connection.settimeout(20)
        try:
            connection.connect(ticket.address)
        except OSError:
            connection.close()
            assert time.monotonic() < until
            time.sleep(0.005)
        else:
            return connection


def answer_to(ticket, data, descriptors=()):
    """Return what rank 0 answers, until it closes the connection."""
    with door(ticket) as connection:
        try:
            if descriptors:
                socket.send_fds(connection, [data], descriptors)
            else:
                connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(4096), b""))
        except ConnectionError:  # closed while we spoke
            return b""


def finish(me, **options):
    """Connect as the rank that this is, and prove that the group works."""
    me.group = connect(me.ticket, connect_timeout_seconds=30, timeout_seconds=60, **options)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


# What strangers say. Each returns what rank 0 has answered.


def say_nothing(ticket):
    """Connect, and go again."""
    door(ticket).close()
    return b""


def say_garbage(ticket):
    """Say bytes at random."""
    return answer_to(ticket, random.Random(1).randbytes(64))


def have_no_token(ticket):
    """Say everything right but the token."""
    return answer_to(ticket, hello(ticket, token="0" * 64))


def say_other_types(ticket):
    """Have the token, and say a list instead of a name."""
    return answer_to(ticket, json.dumps([ticket.token]).encode())


def be_another_user(ticket):
    """Have the token and another user's rights, where the folder lets in everybody."""
    with door(ticket):
        Path(ticket.folder).chmod(0o777)
        Path(ticket.address).chmod(0o777)
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            os.write(write, b"<" + answer_to(ticket, hello(ticket)))
        finally:
            os._exit(0)
    os.close(write)
    os.wait()
    with open(read, "rb") as pipe:
        said = pipe.read()
    Path(ticket.folder).chmod(0o700)
    assert said[:1] == b"<"
    return said[1:]


SILENT = [say_nothing, say_garbage, have_no_token, say_other_types, be_another_user]


def meet_a_stranger(me, *, stranger):
    """Let rank 1 be a stranger first."""
    said = b"" if me.rank != 1 else globals()[stranger](Ticket.read(me.ticket))
    return said, finish(me)


def meet_a_stranger_with_the_token(me, *, rank, size):
    """Let rank 1 claim to be a rank that nobody waits for."""
    ticket = Ticket.read(me.ticket)
    said = b"" if me.rank != 1 else answer_to(ticket, hello(ticket, rank=rank, size=size))
    return said, finish(me)


def meet_a_second_rank_1(me):
    """Let rank 2 claim to be rank 1 when rank 1 is in already."""
    ticket = Ticket.read(me.ticket)
    if me.rank == 0:
        return finish(me)
    if me.rank == 2:
        me.wait_flag(0)
        assert answer_to(ticket, hello(ticket, rank=1)) == b""
        return finish(me)
    client = Client(ticket, connecting._agreed("replica_order"), Waiting(time.monotonic() + 30, 30))
    me.flag(0, 1)
    link = connecting._link(ticket, client.join(), client.lifeline, "replica_order", 60)
    client.settle()
    client.close()
    me.group = Group(link)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def meet_many(me, *, count, delay):
    """Let rank 1 hold many connections open, say nothing, and connect behind them."""
    held = []
    ticket = Ticket.read(me.ticket)
    for _ in range(count if me.rank == 1 else 0):
        held.append(door(ticket))
        time.sleep(delay)
    total = finish(me)
    for connection in held:
        connection.close()
    return total


class TestStrangers:
    @pytest.mark.parametrize("stranger", SILENT, ids=lambda one: one.__name__)
    def test_is_told_nothing_and_the_group_forms(self, ranks, stranger):
        """Whoever has no token or cannot be understood hears nothing; the ranks connect behind him."""
        if stranger is be_another_user and os.getuid() != 0:
            pytest.skip("only root can become another user")
        ended = ranks.run(World(meet_a_stranger, _SIZE, {"stranger": stranger.__name__}, timeout_seconds=None))
        assert [one.value for one in ended] == [(b"", 7.0)] * _SIZE, ended

    @pytest.mark.parametrize(("rank", "size"), [(0, _SIZE), (3, _SIZE), (1, 2)])
    def test_a_rank_that_nobody_waits_for_is_turned_away(self, ranks, rank, size):
        """The group forms without it."""
        world = World(meet_a_stranger_with_the_token, _SIZE, {"rank": rank, "size": size}, timeout_seconds=None)
        ended = ranks.run(world)
        assert [one.value for one in ended] == [(b"", 7.0)] * _SIZE, ended

    def test_the_same_rank_twice_is_turned_away(self, ranks):
        """The first one stays in."""
        ended = ranks.run(World(meet_a_second_rank_1, _SIZE, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * _SIZE, ended

    @pytest.mark.parametrize("count", [1, 200])
    def test_who_keeps_the_door_busy_keeps_nobody_out(self, ranks, count):
        """Connections that say nothing are no ranks."""
        ended = ranks.run(World(meet_many, _SIZE, {"count": count, "delay": 0}, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * _SIZE, ended
