"""Messages between single ranks on PyTorch's backend "treefold"."""

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch_ranks import Died, Raised, mail, mail_ends, run

from treefold.errors import DeadlineError, GroupError
from treefold.torch.transfers import Transfer


class TestSendRecv:
    def test_both_ways_at_once(self):
        """64 MiB each, more than any mailbox holds."""
        assert run(mail.ring, 2, 1 << 24) == [[2], [1]]

    def test_around_a_ring(self):
        """Small messages of three ranks."""
        assert run(mail.ring, 3, 5) == [[4], [1], [2]]

    def test_blocking(self):
        """The receiver is told who has sent."""
        assert run(mail.blocking, 3) == [None, (0, [11, 11]), (0, [12, 12])]

    def test_from_any_rank(self):
        """In whatever order they come."""
        assert run(mail.any_source, 3)[0] == {1: 2, 2: 4}

    def test_by_tag(self):
        """Messages of one tag come in order, and others do not block them."""
        assert run(mail.by_tag, 2)[1] == [[8], [8], [7]]

    def test_in_order_though_the_receiver_listens_late(self):
        """It begins to while the sender tries to reach it, for one message after the other."""
        assert run(mail.many_before_the_receiver_listens, 2, 600) == [True, True]

    def test_again_after_one_was_given_up(self):
        """The receiver gets the next one."""
        assert run(mail.again_after_giving_up, 2) == [None, [2, 2, 2]]

    def test_of_any_form(self):
        """Strided, empty, of a dtype that NumPy does not have."""
        assert run(mail.strided, 2)[1] == ([[0, -1, 2, -1], [4, -1, 6, -1]], [1, 1])

    def test_beside_collectives(self):
        """A message that waits to be received goes on while its sender is in a collective."""
        assert run(mail.beside_collectives, 2, 1 << 20) == [([1], [3, 3, 3], True)] * 2

    def test_to_itself(self):
        """As PyTorch's isend allows."""
        assert run(mail.to_itself, 2) == [[1, 1], [2, 2]]

    def test_beside_a_collective_of_another_thread(self):
        """A first message does not wait for the collective that its receiver makes afterwards."""
        assert run(mail.from_a_thread, 2, seconds=20.0) == [([1], [3]), ([1], [3])]

    def test_what_is_sent_is_copied(self):
        """A tensor that is refilled behind isend is received as it was."""
        assert run(mail.staged, 2, seconds=20.0) == [[9], [1]]

    def test_of_a_patient_group(self):
        """A timeout of years is more than the system waits at once."""
        assert run(mail.ring, 2, 3, seconds=1e9) == [[2], [1]]

    def test_without_the_first_rank(self):
        """The holder of PyTorch's store has ended."""
        assert run(mail.without_first, 3, seconds=20.0)[1:] == [[2, 2], [2, 2]]

    def test_leave_no_files(self):
        """Ranks that end without a word have nothing to remove: they listen at names that are none of files."""
        assert run(mail.without_a_folder, 2, seconds=20.0) == [[2], [1]]

    def test_thousands_at_once(self):
        """Each costs as much as one alone."""
        assert run(mail.thousands, 2, 6000) == [True, True]

    def test_thousands_given_up(self):
        """What nobody has received is forgotten at both ends."""
        assert run(mail.thousands_given_up, 2, 1000) == [([2], 0), ([1], 0)]

    def test_callbacks(self):
        """They may wait for other messages, and for collectives; those that raise harm nobody."""
        assert run(mail.callbacks, 2, seconds=20.0)[1] == (True, [0, 1, 2, 3, 4], 2, 3)

    def test_callback_of_a_message_that_fails(self):
        """It gets the error."""
        assert "Rank 1 has ended or left the group" in run(mail.failed_future, 2, seconds=20.0)[0]

    @pytest.mark.parametrize("kind", [np.int64, torch.tensor])
    def test_with_whole_numbers_of_any_kind(self, kind):
        """NumPy's and PyTorch's stand for peers and tags, as with gloo."""
        assert run(mail_ends.whole_numbers, 2, kind, seconds=20.0) == [[2], [1]]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    @pytest.mark.parametrize("ranks", [[0], [0, 1]])
    def test_as_another_user(self, ranks):
        """Ranks that give their privileges up once they are in a group stay in it."""
        assert run(mail_ends.as_another_user, 2, ranks, seconds=20.0) == [([2], 3), ([1], 3)]

    def test_in_a_group_of_its_own(self):
        """One rank alone."""
        assert run(mail.to_itself, 1, seconds=20.0) == [[1, 1]]


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "begin"),
        [
            ("tag", "A message got the tag 9223372036854775808. Give a whole number of 64 bits"),
            ("word", "A message got the tag 'a'. Give a whole number of 64 bits"),
            ("peer", "Got rank 7 of a group of 2 ranks."),
            ("overlapping", "A tensor of shape (4,) and strides (0,) is to be written"),
            ("windows", "A tensor of shape (3, 2) and strides (1, 1) is to be written"),
            ("freed", "A tensor needs 16 bytes of its storage, which has 0 bytes."),
        ],
    )
    def test_at_once(self, what, begin):
        """And later messages go."""
        for (kind, text, taken), expected in zip(run(mail.refused, 2, what, seconds=20.0), ([2], [1]), strict=True):
            assert kind == "ProcessGroupError"
            assert text.startswith(begin)
            assert taken == expected

    @pytest.mark.parametrize(
        ("count", "kind", "sentence"),
        [
            (
                0,
                "GroupError",
                "The system refused a socket or a thread for messages (Too many open files), so nothing was sent or "
                "received. Close files, or raise the limits of this process (ulimit -n, ulimit -u) or its container.",
            ),
            (
                3,
                "DeadlineError",
                "Rank 1 has not sent or received what this rank waits for, by the deadline. The system has "
                "refused this process a connection (Too many open files): close files, or raise its limits (ulimit "
                "-n).",
            ),
        ],
    )
    def test_without_descriptors(self, count, kind, sentence):
        """For its thread's sockets, or for a connection: one sentence; with descriptors messages go again."""
        (said, first), (_, second) = run(mail_ends.without_descriptors, 2, count, seconds=20.0)
        assert said == (kind, sentence)
        assert (first, second) == ([2], [1])

    def test_without_descriptors_for_a_moment(self):
        """Receives are tried again, too, so the end of a sender that has never come is told and not waited for."""
        assert run(mail_ends.without_descriptors_for_a_moment, 3, seconds=20.0)[0] == "PeerLostError"

    def test_in_a_forked_child(self):
        """Which is no rank; its parent sends on."""
        for rank, (said, before, after) in enumerate(run(mail.forked, 2, seconds=20.0)):
            assert said.startswith(f"This process was forked from rank {rank} and is no rank itself.")
            assert before == after == [2 - rank]


class TestErrors:
    @pytest.mark.parametrize(("how", "kind"), [("interrupt", "KeyboardInterrupt"), ("deadline", "DeadlineError")])
    def test_what_was_given_up_is_not_written(self, how, kind):
        """The tensor belongs to its owner again, and the message goes to who receives next."""
        assert run(mail.given_up, 2, how, seconds=20.0)[0] == (kind, [9, 9, 9], [2, 2, 2])

    def test_given_up_while_it_comes(self):
        """The message goes to who receives next, and the one behind it stays behind it."""
        taken = run(mail_ends.given_up_while_it_comes, 2, 1 << 24, seconds=20.0)[0]
        assert taken == ("DeadlineError", [[0], [1], [2]])

    def test_no_torn_tensors(self):
        """A sender that is killed in the middle of a message leaves the receiver's tensor as it was."""
        assert run(mail.torn, 2, 1 << 25, seconds=30.0)[0] == ("PeerLostError", [9])

    def test_the_sender_is_killed_and_its_child_is_not(self):
        """A child, such as a DataLoader's worker, holds no connection of its parent."""
        assert run(mail.parent_killed, 2, seconds=30.0)[0] is True

    def test_another_size(self):
        """Both ends are told."""
        sender, receiver = run(mail.of_another_size, 2)
        assert (sender.kind, receiver.kind) == ("CallMismatchError", "CallMismatchError")
        assert receiver.text == (
            "Rank 0 sends a tensor of 16 bytes to rank 1, whose tensor has 8 bytes. Both need one size and dtype; "
            "nothing was written."
        )

    def test_nobody_sends(self):
        """The deadline is the group's timeout."""
        sentence = (
            "Rank 1 has not sent or received what this rank waits for, by the deadline. Every send needs a receive "
            "with the same tag; give the group a longer timeout if the other rank is only slow."
        )
        assert run(mail.never_sent, 2)[0] == Raised("DeadlineError", sentence)

    @pytest.mark.parametrize(
        ("body", "arguments"),
        [
            (mail_ends.gone, ("ended",)),
            (mail_ends.gone, ("left",)),
            (mail_ends.gone_later, ()),
            (mail_ends.gone_after_a_collective, ()),
        ],
    )
    def test_the_other_rank_is_gone(self, body, arguments):
        """Who sends to it or receives from it is told, and not at the deadline, though it never had a message."""
        sender, _, receiver = run(body, 3, *arguments)
        sentence = (
            "Rank 1 has ended or left the group, so a message between it and this rank was not delivered. A tensor "
            "that should have received it is as it was; the ranks that are left can make a new group."
        )
        assert sender == receiver == ("PeerLostError", sentence, (1,))

    def test_interrupted_in_the_first_message(self):
        """Wherever Ctrl-C comes while the group opens what it needs for messages, later messages go."""
        assert run(mail_ends.interrupted_first, 1, 60, seconds=20.0) == [[[3, 3]] * 60]

    def test_the_sender_is_killed(self):
        """The receiver names it at once."""
        answer, killed = run(mail.sender_killed, 2)
        assert killed == Died(-9)
        assert answer.kind == "PeerLostError"
        assert answer.text.startswith("Rank 1 has ended or left the group, so a message between it and this rank was")


class TestEndOfTheProgram:
    @pytest.mark.parametrize(
        "end", ["send(); work.wait(); distributed.destroy_process_group()", "send(); work.wait()", ""]
    )
    def test_waits_for_callbacks(self, tmp_path, end):
        """Those of messages that have come, and of those that fail because the program ends."""
        program = f"""
            import time, torch, treefold.torch
            from torch import distributed
            distributed.init_process_group("treefold", init_method="file://{tmp_path}/store", rank=0, world_size=1)
            def send():
                distributed.isend(torch.ones(2), 0).wait()
            def slow(_):
                time.sleep(0.5)
                torch.linalg.svd(torch.ones(200, 200))
                print("done", flush=True)
            work = distributed.irecv(torch.zeros(2), 0)
            work.get_future().add_done_callback(slow)
            {end}
        """
        ended = subprocess.run(  # noqa: S603 - this Python
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


class TestTransfer:
    def test_ends_at_the_deadline_whatever_holds_the_mailbox_up(self):
        """Whoever waits gives it up himself."""
        ended = []
        until = time.monotonic() + 0.1
        transfer = Transfer(1, 0, torch.zeros(2), rank=0, is_sent=False, until=until, given_up=ended.append)
        with pytest.raises(DeadlineError, match=r"^Rank 1 has not sent or received what this rank waits for"):
            transfer.wait()
        assert ended == [transfer]

    def test_that_is_interrupted_where_it_waits_has_ended(self):
        """Wherever the signal comes: whoever waits for it then does not wait."""
        ended, draw = [], random.Random(1)  # noqa: S311 - a test's choice
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            for _ in range(400):
                transfer = Transfer(1, 0, torch.zeros(2), rank=0, is_sent=False, until=math.inf, given_up=ended.append)
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 4e-4))  # once, and it waits until then
                    transfer.wait(timedelta(seconds=20))
                except KeyboardInterrupt:
                    transfer.finish()
                with contextlib.suppress(GroupError):  # given up, unless the signal came before it waited
                    assert transfer.wait()
                assert transfer.is_completed()
        finally:
            signal.signal(signal.SIGALRM, before)
