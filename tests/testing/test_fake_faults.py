import math

import pytest
from channel_conformance import finish, leave, others, row

from treefold.engines.channel import Limits
from treefold.errors import ConnectError, GroupError, HangError
from treefold.testing import Cut, FakeNetwork, Kill, Stop, draw_faults

SEEDS = range(40)


def exchange_rows(channel, tag, deadline):
    """Exchange a row with every other rank; return whose failed, when, and what was received."""
    buffers = {peer: row(0, 64) for peer in others(channel)}
    taken = [channel.receive(peer, tag, buffer) for peer, buffer in buffers.items()]
    for peer in buffers:
        channel.send(peer, tag, row(2**channel.rank, 64))
    failed = []
    while taken and (transfer := channel.wait(deadline)) is not None:
        if transfer in taken:
            taken.remove(transfer)
            failed += [(transfer.peer, channel.now(), transfer.error)] if transfer.error else []
    return failed, {peer: set(buffer.tolist()) for peer, buffer in buffers.items()}


def say_each_other(channel):
    """Exchange rows, then meet, so that nobody leaves before the others have theirs; return who was heard of, too."""
    deadline = channel.now() + 60.0
    failed, received = exchange_rows(channel, 0, deadline)
    exchange_rows(channel, 1, deadline + 1.0)
    heard = sorted(channel.ask(b"", others(channel), deadline + 8.0))
    channel.close()
    return failed, heard, received


def sleep(channel, until):
    """Do nothing, for so long."""
    while channel.wait(until) is not None:
        pass


class TestKill:
    def test_ends_a_rank(self):
        """Its outcome is the fault, whatever it catches."""

        def swallow(channel):
            try:
                channel.now()
                channel.now()
            except BaseException:  # noqa: BLE001 - this is the test
                return "alive"

        assert FakeNetwork(2, 1, faults=[Kill(1, 2)]).run(swallow) == [None, Kill(1, 2)]

    def test_ends_a_rank_that_waits(self):
        """Some seconds after the call began, in whatever call it is then."""
        network = FakeNetwork(2, 1, faults=[Kill(1, 1, 30.0)])
        first, second = network.run(lambda channel: channel.wait(60.0))
        assert first is None
        assert second == Kill(1, 1, 30.0)

    def test_fails_the_transfers_of_its_peers(self):
        """Each after its own delay, with the peer's name."""
        times = []
        for seed in SEEDS:
            *survivors, killed = FakeNetwork(3, seed, faults=[Kill(2, 1)]).run(say_each_other)
            assert killed == Kill(2, 1)
            for failed, heard, received in survivors:
                [(peer, when, error)] = [one for one in failed if one[0] == 2]
                assert (peer, error) == (2, "rank 2 has ended or left the channel")
                times.append(when)
                assert 2 not in heard
                assert received[2] == {0}
        assert len(set(times)) == 2 * len(SEEDS)

    def test_leaves_what_had_arrived(self):
        """It is received even later; what was on its way is lost in some runs."""

        def receive_late(channel):
            if channel.rank:
                channel.send(0, 0, row(1, 64))
                sleep(channel, 100.0)
                channel.send(0, 0, row(2, 64))
                sleep(channel, math.inf)
            sleep(channel, 200.0)
            first = channel.receive(1, 0, row(0, 64))
            second = channel.receive(1, 0, row(0, 64))
            failed = finish(channel, [first, second])
            return first not in failed, second not in failed

        outcomes = []
        for seed in SEEDS:
            outcome, killed = FakeNetwork(2, seed, faults=[Kill(1, 1, 100.01)]).run(receive_late)
            assert isinstance(killed, Kill)
            outcomes.append(outcome)
        assert set(outcomes) == {(True, True), (True, False)}

    def test_tears_buffers(self):
        """Of receives that fail: half of the message is there."""

        def receive_one(channel):
            if channel.rank:
                channel.send(0, 0, row(2, 64))
                sleep(channel, math.inf)
            failed = finish(channel, [channel.receive(1, 0, buffer := row(0, 64))])
            return bool(failed), *sorted(set(buffer.tolist()))

        outcomes = {FakeNetwork(2, seed, faults=[Kill(1, 1, 1e-3)]).run(receive_one)[0] for seed in range(100)}
        assert outcomes == {(False, 2), (True, 0), (True, 0, 2)}

    def test_ends_all_where_death_is_fatal(self):
        """As a launcher does."""
        limits = Limits(tags=64, message_bytes=100, is_death_fatal=True)
        network = FakeNetwork(3, 1, faults=[Kill(1, 1)], limits=limits)
        assert network.run(lambda channel: channel.wait(math.inf)) == [Kill(1, 1)] * 3


class TestStop:
    def test_lets_a_rank_go_on_where_it_was(self):
        """Later; nothing has failed."""
        for seed in SEEDS:
            outcomes = FakeNetwork(2, seed, faults=[Stop(1, 3, 30.0)]).run(say_each_other)
            assert [(failed, heard) for failed, heard, _ in outcomes] == [([], [0, 1])] * 2
            assert [received for _, _, received in outcomes] == [{1: {2}}, {0: {1}}]

    def test_is_silent(self):
        """A rank that stops for ever fails nothing, and ends with the others."""
        failed, heard, received = (outcome := FakeNetwork(2, 1, faults=[Stop(1, 1)]).run(say_each_other))[0]
        assert (failed, heard, received) == ([], [0], {1: {0}})
        assert outcome[1] == Stop(1, 1)

    def test_is_no_hang_by_itself(self):
        """But to wait for it without a deadline is one."""
        with pytest.raises(HangError, match="rank 0 waits for nothing; rank 1 is stopped"):
            FakeNetwork(2, 1, faults=[Stop(1, 1)]).run(lambda channel: channel.wait(math.inf))


class TestCut:
    def test_is_silent(self):
        """Nothing arrives at that host or from it, and what ranks say does not; it hears itself only."""
        for seed in SEEDS:
            network = FakeNetwork(3, seed, hosts=[0, 0, 1], faults=[Cut(1, 0.0)])
            (failed, heard, received), _, (lost_failed, lost_heard, lost_received) = network.run(say_each_other)
            assert (failed, heard, received) == ([], [0, 1], {1: {2}, 2: {0}})
            assert (lost_failed, lost_heard, lost_received) == ([], [2], {0: {0}, 1: {0}})

    def test_is_mended(self):
        """What was on its way arrives then."""
        network = FakeNetwork(3, 1, hosts=[0, 0, 1], faults=[Cut(1, 0.0, 30.0)])
        assert [(failed, heard) for failed, heard, _ in network.run(say_each_other)] == [([], [0, 1, 2])] * 3

    def test_does_not_part_a_host(self):
        """Ranks of one host reach each other, and the store if it is there."""
        network = FakeNetwork(2, 1, hosts=[1, 1], store_host=1, faults=[Cut(1, 0.0)])
        assert [(failed, heard) for failed, heard, _ in network.run(say_each_other)] == [([], [0, 1])] * 2

    @pytest.mark.parametrize(("store_host", "onward"), [(None, [0, 1]), (0, [0, 1]), (1, [2])])
    def test_lets_one_part_go_on(self, store_host, onward):
        """That which reaches the store; the other is told so at its deadline."""

        def part(channel):
            mine = [0, 1] if channel.rank < 2 else [2]
            channel.ask(b"", mine, channel.now() + 5.0)
            try:
                return channel.without([rank for rank in range(3) if rank not in mine], channel.now() + 60.0).size
            except ConnectError as refused:
                return str(refused), round(channel.now())

        for seed in SEEDS:
            network = FakeNetwork(3, seed, hosts=[0, 0, 1], store_host=store_host, faults=[Cut(1, 0.0)])
            outcomes = network.run(part)
            assert [rank for rank in range(3) if outcomes[rank] == len(onward)] == onward
            for rank in {0, 1, 2} - set(onward):
                sentence, when = outcomes[rank]
                assert sentence == (
                    f"Rank {rank} cannot tell which ranks go on: it did not reach the store that decides before the "
                    "deadline. Look at its network, and connect again."
                )
                assert 60 <= when < 70


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
            "Rank 1 should go on in a smaller group, and did not come before the deadline. Leave them out as well, by "
            "connecting again without them.",
            (1,),
        )

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


class TestDrawFaults:
    def test_draws_every_kind(self):
        """From a seed, the same ones again."""
        drawn = [draw_faults(seed, [0, 0, 1]) for seed in range(100)]
        assert drawn == [draw_faults(seed, [0, 0, 1]) for seed in range(100)]
        assert {type(fault) for faults in drawn for fault in faults} == {Kill, Stop, Cut}
        assert {len(faults) for faults in drawn} == {0, 1, 2}

    @pytest.mark.parametrize("first", range(0, 400, 100))
    def test_never_hangs_a_protocol_with_deadlines(self, first):
        """Every rank ends, by itself or by its fault, with bytes that were sent, and as before with the same seed."""
        for seed in range(first, first + 100):
            hosts = [0, 0, 1, 2]
            faults = draw_faults(seed, hosts, calls=20)
            network = FakeNetwork(4, seed, hosts=hosts, faults=faults)
            for rank, outcome in enumerate(network.run(say_each_other)):
                if outcome in faults:
                    assert outcome.rank == rank
                    continue
                _, heard, received = outcome
                assert rank in heard
                assert all(bytes_of <= {0, 2**peer} for peer, bytes_of in received.items())


class TestClose:
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
