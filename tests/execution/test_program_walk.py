"""How a rank walks its program over a channel: what is under way at once."""

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from treefold.engines.interface import Limits, Transfer
from treefold.execution.program import program_of
from treefold.execution.program_walk import ProgramWalk
from treefold.plan.ir import Goal, Leaf, Role
from treefold.planners import LeafWork
from treefold.planners.direct import direct

HOSTS = ((0,), (1,), (2,))
LENGTH, CHUNK_BYTES, FIRST_TAG = 3 * 2**12, 2**12, 5
#: Of 8 bytes each: a rank owns 8 chunks. It receives both others' parts of them, and what each of the others owns.
MESSAGES_PER_PEER = 16


class Mailbox:
    """A channel to which nothing comes but what a test delivers; it notes what is sent."""

    def __init__(self, rails):
        self.limits = Limits(tags=1000, message_bytes=1 << 20, chunk_bytes=CHUNK_BYTES, rails=rails)
        self.bytes_sent = Counter()

    def send(self, peer, tag, buffer):
        self.bytes_sent[peer] += buffer.nbytes
        return Transfer(peer, tag, buffer, is_send=True)

    def receive(self, peer, tag, buffer):
        return Transfer(peer, tag, buffer)

    def way(self, transfer):
        """Return the peer that a message is from, and its rail."""
        return transfer.peer, transfer.tag % self.limits.rails


def movement_of(hosts, length):
    devices = tuple(f"{rank}/cpu:0" for rank in range(sum(map(len, hosts))))
    return direct(hosts).movement([LeafWork(Leaf("int64", Goal.FOLD), (length,) * len(devices), devices, devices)])


def walk(rails, deliver):
    """Walk rank 0's program of a direct plan; ``deliver(mailbox, waiting)`` yields what arrives."""
    movement = movement_of(HOSTS, LENGTH)
    mailbox = Mailbox(rails)
    arrays = [np.zeros(buffer.length, np.int64) for buffer in movement.buffers]
    memory = SimpleNamespace(
        part=lambda where: arrays[where.buffer][where.start : where.stop],
        rest=lambda _: (),
        perform=lambda _: None,
    )
    own = [program_of(movement, 0, HOSTS)]
    walked = ProgramWalk(movement, own, 0, chunk_bytes=CHUNK_BYTES, num_tags=mailbox.limits.tags)
    walked.run(memory, mailbox, FIRST_TAG, lambda waiting: deliver(mailbox, waiting), lambda _: None)
    return mailbox


@pytest.mark.parametrize("rails", [1, 2, 3])
class TestWalk:
    def test_keeps_two_messages_of_every_peer_under_way_on_each_rail(self, rails):
        """Until the last ones: one arrives while the next one is asked for, and more would crowd a port's queue."""
        counts, draw = [], random.Random(f"arrivals {rails}")  # noqa: S311 - a test's choice

        def deliver(mailbox, waiting):
            while waiting:
                counts.append(Counter(map(mailbox.way, waiting)))
                yield draw.choice(list(waiting))

        walk(rails, deliver)
        assert counts[0] == {(peer, rail): 2 for peer in (1, 2) for rail in range(rails)}
        assert all(count <= counts[0] for count in counts)

    def test_a_rail_that_stands_still_holds_up_no_other(self, rails):
        """Messages to this rank over other rails arrive to the last one."""
        arrived = []

        def deliver(mailbox, waiting):
            while waiting:
                moving = [one for one in waiting if rails == 1 or mailbox.way(one)[1] != 0]
                arrived.append(mailbox.way(moving[0] if moving else next(iter(waiting))))
                yield moving[0] if moving else next(iter(waiting))

        walk(rails, deliver)
        stood = [rail == 0 for _, rail in arrived]
        assert len(arrived) == 2 * MESSAGES_PER_PEER
        assert stood == sorted(stood)

    def test_sends_each_slice_to_its_owner_and_its_own_to_all(self, rails):
        def deliver(_, waiting):
            while waiting:
                yield max(waiting, key=lambda one: (one.tag, one.peer))

        assert walk(rails, deliver).bytes_sent == dict.fromkeys((1, 2), 2 * LENGTH * 8 // 3)


class TestExactSums:
    """Two hosts, of which each sends exact sums of three replicas, and then what they do not hold."""

    def test_asks_for_no_result_before_all_that_may_follow_sums_is_known(self):
        """An engine returns messages of a peer in the order in which it was asked; results wait for what follows."""
        devices = ("0/cpu:0", "1/cpu:0")
        work = LeafWork(Leaf("float32", Goal.FOLD), (LENGTH,) * 6, sorted(devices * 3), devices)
        movement = direct(((0,), (1,)), adds_exactly=True).movement([work])
        mailbox, asked, count = Mailbox(1), [], LENGTH // 2 // 1024

        def rest(where):
            return [np.zeros(8, np.uint8)] * 3 if movement.buffers[where.buffer].role is Role.EXACT else ()

        def deliver(_, waiting):
            while waiting:
                asked.append(sorted(one.tag - FIRST_TAG for one in waiting))
                yield max(waiting, key=lambda one: one.tag)

        memory = SimpleNamespace(part=lambda where: np.zeros(where.length), rest=rest, perform=lambda _: None)
        own = [program_of(movement, 0, ((0,), (1,)))]
        walked = ProgramWalk(movement, own, 0, chunk_bytes=CHUNK_BYTES, num_tags=1000)
        walked.run(memory, mailbox, FIRST_TAG, lambda waiting: deliver(mailbox, waiting), lambda _: None)
        sums, results = set(range(0, 4 * count, 4)), set(range(4 * count, 5 * count))
        assert {tag for tags in asked for tag in tags} == set(range(5 * count))
        assert not any(sums & set(tags) and results & set(tags) for tags in asked)


class TestShares:
    """Two hosts of two ranks, each of which owns a quarter of 32 MiB: what the ranks of host 0 hand each other."""

    HOSTS, LENGTH = ((0, 1), (2, 3)), 1 << 22

    def walk_of(self, rank):
        movement = movement_of(self.HOSTS, self.LENGTH)
        own = [program_of(movement, one, self.HOSTS) for one in self.HOSTS[0]]
        return ProgramWalk(movement, own, rank, chunk_bytes=1 << 18, num_tags=1000)

    def test_both_ranks_know_the_same_turns(self):
        """Each would wait in another turn than the other, else."""
        first, second = (self.walk_of(rank).shares for rank in self.HOSTS[0])
        assert first == second

    def test_each_turn_hands_on_a_part_of_every_copy(self):
        """A mebibyte, so that the first parts are handed on while the last ones arrive from the other host."""
        shares = self.walk_of(0).shares
        assert {copy.source.length * 8 for _, copies in shares for copy in copies} == {1 << 20}
        assert [turn for turn, _ in shares] == sorted({turn for turn, _ in shares})

    def test_the_parts_of_all_turns_are_the_copies_of_the_plan(self):
        """Each rank gives a quarter of its contribution, and two quarters of the result."""
        ranges = Counter()
        for _, copies in self.walk_of(0).shares:
            for copy in copies:
                ranges[copy.source.buffer, copy.target.buffer] += copy.target.length
        assert sorted(ranges.values()) == [self.LENGTH // 4 * quarters for quarters in (1, 1, 2, 2)]
