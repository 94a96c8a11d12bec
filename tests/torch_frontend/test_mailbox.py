"""A mailbox without a thread, and what it says of deadlines."""

import errno
import math
import os
import threading

import pytest
import torch

from treefold.errors import DeadlineError, GroupError, ProcessGroupError
from treefold.torch import mailbox
from treefold.torch.addresses import Address, Endpoint, listen
from treefold.torch.mailbox import Mailbox
from treefold.torch.transfers import Transfer


class TestMailbox:
    @pytest.mark.parametrize("has_started", [True, False])
    def test_begins_with_a_thread(self, monkeypatch, has_started):
        """Python may answer Ctrl-C with an error of its own where it waits for the thread, which then runs."""

        def start(_):
            try:
                if has_started:
                    raise KeyboardInterrupt
            finally:
                raise RuntimeError

        opened = []
        monkeypatch.setattr(threading.Thread, "start", start)
        monkeypatch.setattr(mailbox, "Endpoint", lambda listener: opened.append(Endpoint(listener)) or opened[0])
        address = Address(f"treefold-test-{os.getpid()}", "token", "")
        with listen(address) as listener:
            transfer = Transfer(0, 5, torch.zeros(2), rank=0, is_sent=True, until=math.inf, given_up=print)
            with pytest.raises(KeyboardInterrupt if has_started else GroupError):
                Mailbox(0, [address], listener).post(transfer)
            assert (opened[0].waker.fileno() >= 0) == has_started
            opened[0].close()

    def test_between_networks(self):
        """Names mean nothing in another network namespace: one sentence, at once and at both ends."""
        box = Mailbox(0, [Address("a", "b", "one"), Address("c", "d", "two")], None)
        transfer = Transfer(1, 5, torch.zeros(2), rank=0, is_sent=True, until=math.inf, given_up=print)
        with pytest.raises(ProcessGroupError, match=r"^Rank 1 is in a container whose network is not this rank's\."):
            box.post(transfer)


class TestDeadline:
    def test_of_what_the_system_refuses(self):
        """Closing files helps where there are too many."""
        why = PermissionError(errno.EPERM, "Operation not permitted")
        assert str(DeadlineError.mail(1, why)) == (
            "Rank 1 has not sent or received what this rank waits for, by the deadline. The system has refused this "
            "process a connection (Operation not permitted)."
        )
