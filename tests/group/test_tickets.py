"""The conditions on a ticket and on the folder that it names."""

import math

import numpy as np
import pytest
from rank_processes import World

from treefold.errors import ArgumentError, ConnectError, GroupError
from treefold.group import Ticket, connect


def finish(me):
    me.group = connect(me.ticket, connect_timeout_seconds=30, timeout_seconds=60)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


class TestLimits:
    def test_a_group_of_one(self, ranks):
        assert ranks.run(World(finish, 1, timeout_seconds=None))[0].value == 1.0

    @pytest.mark.parametrize("name", ["timeout_seconds", "connect_timeout_seconds"])
    @pytest.mark.parametrize("seconds", [0, -1.5, math.nan, True, "5", None])
    def test_a_wait_that_is_no_time(self, tmp_path, name, seconds):
        ticket = str(Ticket(str(tmp_path), "0" * 64, 0, 2))
        with pytest.raises(ArgumentError) as raised:
            connect(ticket, **{"connect_timeout_seconds": 1, name: seconds})
        assert str(raised.value) == f"connect() got {name}={seconds!r}. It takes a number of seconds above 0."

    def test_a_folder_that_others_can_read(self, tmp_path):
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
        ],
        ids=["nothing", "deep", "rank"],
    )
    def test_that_is_none_is_refused(self, text):
        with pytest.raises(ConnectError, match=r"^This is no ticket of treefold: .* Make them with Ticket\.for_ranks"):
            Ticket.read(text)
