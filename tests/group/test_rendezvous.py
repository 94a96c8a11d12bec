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
from treefold.errors import ConnectError
from treefold.group import Group, Ticket, connect, connecting
from treefold.group.descriptor_passing import HELLO, MAGIC, VERSION
from treefold.group.rendezvous_client import Client
from treefold.group.ticket import Waiting

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

_SIZE = 3
_NOBODY = 65534


def terms(**changes):
    """Return what a rank says of itself, as a client says it."""
    agreed = connecting._agreed("replica_order")
    return json.dumps({"agreed": agreed, "namespace": "", "problem": "", **changes}).encode()


def hello(ticket, *, token=None, magic=MAGIC, version=VERSION, rank=2, size=_SIZE, text=None, length=None):
    """Return a greeting, of rank 2 unless said otherwise."""
    text = terms() if text is None else text
    length = len(text) if length is None else length
    return HELLO.pack(magic, version, rank, size, length, (token or ticket.token).encode()) + text


def door(ticket):
    """Return a connection to rank 0, once it listens."""
    until = time.monotonic() + 20
    while True:
        connection = socket.socket(socket.AF_UNIX)
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
    return answer_to(ticket, random.Random(1).randbytes(HELLO.size))


def have_no_token(ticket):
    """Say everything right but the token."""
    return answer_to(ticket, hello(ticket, token="0" * 64))


def have_another_magic(ticket):
    """Speak another protocol."""
    return answer_to(ticket, hello(ticket, magic=b"treefrog"))


def say_too_much(ticket):
    """Announce more than is read."""
    return answer_to(ticket, hello(ticket, length=1 << 30))


def say_ever_more(ticket):
    """Go on talking."""
    return answer_to(ticket, hello(ticket) + bytes(100_000))


def say_what_is_no_json(ticket):
    """Have the token, and say nothing that can be read."""
    return answer_to(ticket, hello(ticket, text=b"{"))


def say_deep_json(ticket):
    """Have the token, and say what no reader can follow."""
    return answer_to(ticket, hello(ticket, text=b"[" * 4000))


def say_other_types(ticket):
    """Have the token, and say numbers instead of names."""
    return answer_to(ticket, hello(ticket, text=b'{"agreed": 3, "namespace": 3, "problem": 1}'))


def send_many_descriptors(ticket):
    """Fill rank 0's table."""
    with open(os.devnull) as null:
        return answer_to(ticket, hello(ticket), [null.fileno()] * 20)


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


SILENT = [
    say_nothing,
    say_garbage,
    have_no_token,
    have_another_magic,
    say_too_much,
    say_ever_more,
    say_what_is_no_json,
    say_deep_json,
    say_other_types,
    send_many_descriptors,
    be_another_user,
]


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
        said = answer_to(ticket, hello(ticket, rank=1))
        assert b"in already" in said
        return finish(me)
    client = Client(ticket, connecting._agreed("replica_order"), Waiting(time.monotonic() + 30, 30))
    me.flag(0, 1)
    link = connecting._link(ticket, client.join(), client.lifeline, "replica_order", 60)
    client.settle()
    client.close()
    me.group = Group(link)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def meet_many(me, *, count, delay):
    """Let rank 1 hold many connections open, say one byte on each, and connect behind them."""
    held = []
    ticket = Ticket.read(me.ticket)
    for _ in range(count if me.rank == 1 else 0):
        held.append(door(ticket))
        held[-1].send(b"t")
        time.sleep(delay)
    total = finish(me)
    for connection in held:
        connection.close()
    return total


def come_from_another_version(me):
    """Connect, but for rank 1, which says that it is of another version."""
    ticket = Ticket.read(me.ticket)
    if me.rank == 0:
        with pytest.raises(ConnectError) as failed:
            connect(me.ticket, connect_timeout_seconds=20)
        return str(failed.value), failed.value.ranks
    with open(os.devnull) as null:
        return answer_to(ticket, hello(ticket, version=VERSION + 1, rank=1, size=2), [null.fileno()])


class TestStrangers:
    @pytest.mark.parametrize("stranger", SILENT, ids=lambda one: one.__name__)
    def test_is_told_nothing_and_the_group_forms(self, ranks, stranger):
        """Whoever has no token or cannot be understood hears nothing; the ranks connect behind him."""
        if stranger is be_another_user and os.getuid() != 0:
            pytest.skip("only root can become another user")
        ended = ranks.run(World(meet_a_stranger, _SIZE, {"stranger": stranger.__name__}, timeout_seconds=None))
        assert [one.value for one in ended] == [(b"", 7.0)] * _SIZE, ended

    @pytest.mark.parametrize(("rank", "size"), [(0, _SIZE), (3, _SIZE), (2**32 - 1, _SIZE), (1, 2)])
    def test_a_rank_that_nobody_waits_for_is_told_so(self, ranks, rank, size):
        """It has the token, so it hears why; the group forms without it."""
        world = World(meet_a_stranger_with_the_token, _SIZE, {"rank": rank, "size": size}, timeout_seconds=None)
        ended = ranks.run(world)
        assert [one.value[1] for one in ended] == [7.0] * _SIZE, ended
        assert b"no rank of this group" in ended[1].value[0]

    def test_the_same_rank_twice_is_told_so(self, ranks):
        """The first one stays in, also if somebody has listened and says the same bytes again."""
        ended = ranks.run(World(meet_a_second_rank_1, _SIZE, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * _SIZE, ended

    @pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
    def test_who_keeps_the_door_busy_keeps_nobody_out(self, ranks, count):
        """Connections that say no more than a byte make room for those who come behind them."""
        ended = ranks.run(World(meet_many, _SIZE, {"count": count, "delay": 0}, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * _SIZE, ended

    def test_another_version_is_named_on_all_ranks(self, ranks):
        """By its rank."""
        first, other = ranks.run(World(come_from_another_version, 2, timeout_seconds=None))
        sentence = "rank 1 comes from another version of treefold."
        assert first.value == (f"The group did not form: {sentence}", (1,))
        assert json.dumps(sentence).encode() in other.value
        assert b'"ranks": [1]' in other.value
