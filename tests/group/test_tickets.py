"""What a ticket and the folder that it names must be like, and what a user may have little of."""

import ctypes
import os
import resource

import numpy as np
import pytest
from rank_processes import World

from treefold import _native
from treefold.errors import ConnectError, GroupError
from treefold.group import Ticket, connect

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)

_NOBODY = 65534


def finish(me):
    """Connect as the rank that this is, and prove that the group works."""
    me.group = connect(me.ticket, connect_timeout_seconds=30, timeout_seconds=60)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def connect_as_nobody(me):
    """Connect as a user without rights, with few descriptors."""
    folder = Ticket.read(me.ticket).folder
    if me.rank == 0:
        os.chown(folder, _NOBODY, _NOBODY)
        me.flag(0, 1)
    me.wait_flag(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (me.size + 32, me.size + 32))
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: this process may look into /proc/self
    return finish(me)


class TestLimits:
    @pytest.mark.skipif(
        os.getuid() != 0, reason="only root can become a user whose descriptors on their way are counted"
    )
    def test_a_user_with_few_descriptors_on_their_way(self, ranks):
        """16 ranks are sent 17 descriptors each, where the user may have 48 on their way."""
        ended = ranks.run(World(connect_as_nobody, 16, timeout_seconds=None))
        assert [one.value for one in ended] == [2.0**16 - 1] * 16, ended[0]

    def test_a_group_of_one(self, ranks):
        """It needs nobody."""
        assert ranks.run(World(finish, 1, timeout_seconds=None))[0].value == 1.0

    def test_a_folder_that_others_can_read(self, tmp_path):
        """It is refused, in words."""
        tmp_path.chmod(0o755)
        with pytest.raises(ConnectError, match="is not this user's alone"):
            connect(str(Ticket(str(tmp_path), "0" * 64, 0, 2)), connect_timeout_seconds=1)

    def test_a_folder_whose_name_is_too_long_for_a_socket(self, tmp_path):
        """It is refused, in words."""
        folder = tmp_path / ("x" * 100)
        folder.mkdir(mode=0o700)
        with pytest.raises(GroupError, match="refuses a socket \\(AF_UNIX path too long\\)"):
            connect(str(Ticket(str(folder), "0" * 64, 0, 2)), connect_timeout_seconds=1)


class TestTicket:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[" * 100_000,
            '["/folder/a", "t", 2, 2]',
            '["/folder/a", "t", true, 2]',
            '["/folder/\\u0000", "t", 0, 2]',
            '["/folder/\\ud800", "t", 0, 2]',
        ],
        ids=["nothing", "deep", "rank", "bool", "zero", "surrogate"],
    )
    def test_that_is_none_is_refused(self, text):
        """By one sentence, before anything is looked for."""
        with pytest.raises(ConnectError, match=r"^This is no ticket of treefold: .* Make them with Ticket\.for_ranks"):
            Ticket.read(text)
