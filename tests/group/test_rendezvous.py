"""The ranks that may join a group: those of its ticket. Others are turned away, and the group still forms."""

import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import World

from treefold.group import Ticket, connect
from treefold.group.transport.descriptor_passing import new_socket

_SIZE = 3
_NOBODY = 65534


def hello(ticket, **changes):
    """Return what rank 2 says of itself, but for some changes."""
    said = {"token": ticket.token, "rank": 2, "size": _SIZE, "agreed": {}, "descriptors": 0}
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


def answer_to(ticket, data):
    """Return what rank 0 answers, until it closes the connection."""
    with door(ticket) as connection:
        try:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(4096), b""))
        except ConnectionError:  # closed while we spoke
            return b""


def finish(me):
    me.group = connect(me.ticket, connect_timeout_seconds=30, timeout_seconds=60)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


# What strangers say. Each returns what rank 0 has answered.


def say_garbage(ticket):
    return answer_to(ticket, random.Random(1).randbytes(64))


def have_no_token(ticket):
    return answer_to(ticket, hello(ticket, token="0" * 64))


def be_a_rank_that_nobody_waits_for(ticket):
    """Have the token and the number of a rank that there is not."""
    return answer_to(ticket, hello(ticket, rank=_SIZE))


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


SILENT = [say_garbage, have_no_token, be_a_rank_that_nobody_waits_for, be_another_user]


def meet_a_stranger(me, *, stranger):
    said = b"" if me.rank != 1 else globals()[stranger](Ticket.read(me.ticket))
    return said, finish(me)


def meet_many(me):
    """Let rank 1 hold many connections open, say nothing, and connect behind them."""
    ticket = Ticket.read(me.ticket)
    held = [door(ticket) for _ in range(200 if me.rank == 1 else 0)]
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

    def test_who_keeps_the_door_busy_keeps_nobody_out(self, ranks):
        ended = ranks.run(World(meet_many, _SIZE, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * _SIZE, ended
