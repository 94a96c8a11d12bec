import pytest

from fake_network import FakeNetwork, Kill
from treefold.errors import ConnectError, GroupError
from treefold.testing.channels import finish, leave, others, row, sleep

SEEDS = range(40)


class TestWithout:
    def test_names_who_does_not_come(self):
        """A rank that should go on and has died."""

        def go_on(channel):
            try:
                channel.without([2], 60.0)
            except ConnectError as error:
                return str(error), error.ranks

        outcome = FakeNetwork(3, 1, faults=[Kill(1, 1), Kill(2, 1)]).run(go_on)
        assert outcome[0] == (
            "Rank 1 should go on in a smaller group, and did not come before the deadline. Leave out all who are lost, "
            "those as well, or connect again without them.",
            (1,),
        )

    def test_fails_the_transfers_with_a_rank_that_did_not_wait_for_all(self):
        """It has gone when the last one comes, and the others find that out."""

        def come_late(channel):
            sleep(channel, 100.0 if channel.rank == 2 else 0.0)
            try:
                onward = channel.without([3], [50.0, 200.0, 200.0, 0.0][channel.rank])
            except ConnectError as error:
                sleep(channel, 5000.0)
                return error.ranks
            failed = finish(onward, [onward.receive(peer, 0, row(0, 1)) for peer in others(onward) if peer == 0])
            leave(onward)
            return [transfer.peer for transfer in failed]

        for seed in SEEDS:
            assert FakeNetwork(4, seed, faults=[Kill(3, 1)]).run(come_late)[:3] == [(2,), [0], [0]]

    def test_fails_the_transfers_with_a_rank_that_dies_meanwhile(self):
        """Whether it had come or not, nobody waits for it."""

        def go_on(channel):
            if channel.rank == 2:
                return None
            try:
                onward = channel.without([2], 60.0)
            except ConnectError as error:
                return error.ranks
            return tuple(transfer.peer for transfer in finish(onward, [onward.receive(1 - onward.rank, 0, row(0, 1))]))

        outcomes = [FakeNetwork(3, seed, faults=[Kill(1, 1, 1e-3)]).run(go_on)[0] for seed in range(200)]
        assert set(outcomes) == {(1,)}

    def test_tells_who_is_left_out(self):
        """Who asks later for something else gets what was decided."""

        def leave_out(channel):
            channel.wait(10.0 * channel.rank)
            try:
                channel.without([[2], [2], [1], []][channel.rank], 60.0)
            except GroupError as refused:
                return str(refused)

        outcomes = FakeNetwork(4, 1).run(leave_out)
        assert outcomes[2:] == [
            "It was decided that ranks 0, 1, 3 may go on, without this one, rank 2. Connect again to come back.",
            "It was decided that ranks 0, 1, 3 may go on, and rank 3 asked for 0, 1, 2, 3. All ranks that go on must "
            "leave out the same ones.",
        ]

    def test_decides_again_if_some_did_not_come(self):
        """Two have died, one of whom is missed only then; who comes late joins the others."""

        def leave_out_two(channel):
            if channel.rank == 2:
                sleep(channel, 100.0)
                return channel.without([3, 4], channel.now() + 60.0).size
            try:
                channel.without([3], 60.0)
            except ConnectError as error:
                onward = channel.without([3, 4], 160.0)
                return error.ranks, onward.size

        for seed in SEEDS:
            outcomes = FakeNetwork(5, seed, faults=[Kill(3, 1), Kill(4, 1)]).run(leave_out_two)
            assert outcomes[:3] == [((2, 4), 3), ((2, 4), 3), 3]

    def test_lets_one_of_two_parts_go_on_after_all_have_failed(self):
        """Each leaves the other out."""

        def part(channel):
            half = [0, 1] if channel.rank < 2 else [2, 3]
            with pytest.raises(ConnectError, match=r"^Rank 4 should go on"):
                channel.without([], 60.0)
            try:
                return channel.without({*range(5)} - {*half}, 160.0).size
            except GroupError:
                return None

        outcomes = [FakeNetwork(5, seed, faults=[Kill(4, 1)]).run(part)[:4] for seed in SEEDS]
        assert {tuple(halves) for halves in outcomes} == {(2, 2, None, None), (None, None, 2, 2)}


class TestClose:
    def test_gives_buffers_back(self):
        """Until then the engine may read them, even after ``stop``."""

        def change_buffers(channel):
            if channel.rank == 0:
                taken = [channel.receive(1, tag, row(0, 1)) for tag in range(2)]
                finish(channel, taken)
                return tuple(int(transfer.buffer[0]) for transfer in taken)
            buffers = [row(1, 1), row(1, 1)]
            for tag, buffer in enumerate(buffers):
                channel.send(0, tag, buffer)
            channel.stop(b"", 0.0)
            buffers[0][:] = 2
            channel.wait(0.01)
            channel.close()
            buffers[1][:] = 2
            return None

        received = {FakeNetwork(2, seed).run(change_buffers)[0] for seed in range(200)}
        assert {first for first, _ in received} == {0, 1, 2}
        assert {second for _, second in received} == {0, 1}

    def test_fails_what_others_wait_for(self):
        """Who has closed sends nothing more."""

        def close_early(channel):
            if channel.rank == 0:
                channel.close()
                return None
            failed = finish(channel, [channel.receive(0, 0, row(0, 1))])
            leave(channel)
            return failed[0].peer

        assert FakeNetwork(3, 1).run(close_early) == [None, 0, 0]
