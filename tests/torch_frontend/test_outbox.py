"""What rank 0 sends, without a mailbox around it."""

import math
import socket

import torch

from treefold.errors import GroupError
from treefold.torch.inbox import ANSWER, NEWS, OFFERED, WITHDRAWN
from treefold.torch.lines import Line
from treefold.torch.outbox import Outbox
from treefold.torch.transfers import Transfer


class TestOutbox:
    def test_takes_back_what_is_given_up_when_the_receiver_asks(self):
        """The receiver hears that it is to take the next one, and gets nothing of this one."""
        outbox = Outbox(0)
        own, other = socket.socketpair()
        with own, other:
            line = Line(own)
            line.peer = 1
            outbox.expect_answer(line)
            transfer = Transfer(1, 5, torch.ones(2), rank=0, is_sent=True, until=math.inf, given_up=lambda _: None)
            outbox.add(1, transfer)
            outbox.offer(line)
            transfer.finish(GroupError.mail_given_up())
            other.sendall(ANSWER.pack(transfer.number, 1))
            line.read()
            line.write()
            said = other.recv(1000)
            assert [NEWS.unpack_from(said, at) for at in range(0, len(said), NEWS.size)] == [
                (OFFERED, 5, 8, transfer.number),
                (WITHDRAWN, 5, 8, transfer.number),
            ]
            assert outbox.waiting() == []
