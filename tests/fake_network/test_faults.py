import math

import pytest

from fake_network import Cut, FakeNetwork, HangError, Kill, Stop, draw_faults
from treefold.engines.interface import Limits
from treefold.errors import ConnectError
from treefold.testing.channels import finish, leave, others, row, sleep

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
    """Exchange rows, meet, so that no rank leaves before the others have theirs, and stop; return whose words came."""
    deadline = channel.now() + 60.0
    failed, received = exchange_rows(channel, 0, deadline)
    exchange_rows(channel, 1, deadline + 1.0)
    channel.stop(b"", deadline + 8.0)
    sleep(channel, deadline + 8.0)
    words = channel.words(deadline + 16.0)
    channel.close()
    return failed, None if words is None else sorted(words), received


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

    def test_lets_a_rank_do_nothing_more(self):
        """However it catches its end, it sends nothing."""

        def send_again(channel):
            while channel.rank:
                try:
                    channel.send(0, 0, row(0, 1))
                except BaseException:  # noqa: BLE001 - this is the test
                    channel.send(0, 0, row(0, 1))

        network = FakeNetwork(2, 1, faults=[Kill(1, 3)])
        assert network.run(send_again) == [None, Kill(1, 3)]
        assert len(network.sends) == 2

    def test_lets_a_rank_do_nothing_more_where_it_waits(self):
        """As well: its next call ends it again."""

        def send_at_last(channel):
            try:
                sleep(channel, 60.0)
            finally:
                channel.send(1 - channel.rank, 0, row(0, 1))

        network = FakeNetwork(2, 1, faults=[Kill(1, 1, 30.0)])
        assert network.run(send_at_last) == [None, Kill(1, 1, 30.0)]
        assert not network.sends  # nor has the other sent to one that is known to be gone

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

    def test_loses_what_has_left_the_sender(self):
        """In some runs, although the send was done."""

        def send_and_end(channel):
            if channel.rank:
                return channel.send(0, 0, row(1, 8)) is channel.wait(math.inf)
            sleep(channel, 100.0)
            return not finish(channel, [channel.receive(1, 0, row(0, 8))])

        outcomes = [FakeNetwork(2, seed, sends="copied").run(send_and_end) for seed in SEEDS]
        assert {sent for _, sent in outcomes} == {True}
        assert {received for received, _ in outcomes} == {True, False}

    def test_fails_all_that_comes_after_a_failure(self):
        """Of one sender and tag: the first messages are received, the others are not."""

        def receive_four(channel):
            call = channel.send if channel.rank else channel.receive
            transfers = [call(1 - channel.rank, 0, row(1, 8)) for _ in range(4)]
            if channel.rank:
                sleep(channel, math.inf)
            failed = finish(channel, transfers)
            return [transfer in failed for transfer in transfers]

        numbers = set()
        for seed in range(1500):  # a few of them fail the first and could receive the second
            failures = FakeNetwork(2, seed, faults=[Kill(1, 1, 2e-4 * (1 + seed % 100))]).run(receive_four)[0]
            assert failures == sorted(failures)
            numbers.add(sum(failures))
        assert numbers == {0, 1, 2, 3, 4}

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
            assert [(failed, heard) for failed, heard, _ in outcomes] == [([], [1]), ([], [0])]
            assert [received for _, _, received in outcomes] == [{1: {2}}, {0: {1}}]

    def test_is_silent(self):
        """A rank that stops for ever fails nothing, and ends with the others."""
        failed, heard, received = (outcome := FakeNetwork(2, 1, faults=[Stop(1, 1)]).run(say_each_other))[0]
        assert (failed, heard, received) == ([], [], {1: {0}})
        assert outcome[1] == Stop(1, 1)

    def test_is_not_woken_by_anything(self):
        """A rank that stops for ever stays silent when others write to it, and past the deadlines that it had."""

        def stop_after_waiting(channel):
            if channel.rank:
                channel.receive(0, 0, row(0, 8))
                channel.wait(60.0)
                return channel.wait(50.0)
            channel.send(1, 0, row(1, 8))
            taken = channel.receive(1, 1, row(0, 8))
            sleep(channel, 200.0)
            return taken.error

        for seed in SEEDS:
            network = FakeNetwork(2, seed, faults=[Stop(1, 3)])
            assert network.run(stop_after_waiting) == ["", Stop(1, 3)]

    def test_stops_the_engine_of_the_rank(self):
        """What it sends is not read, and what it receives is not written, before it goes on."""

        def stop_after_both(channel):
            own, other = row(2**channel.rank, 8), row(0, 8)
            taken = channel.receive(1 - channel.rank, 0, other)
            if channel.rank:
                seen[0] = other
            channel.send(1 - channel.rank, 0, own)
            if channel.rank:
                own[:] = 4  # nobody has read it: it is stopped in its next call
            else:
                sleep(channel, 29.0)
                seen[1] = seen[0].tolist(), other.tolist()
            finish(channel, [taken], math.inf)
            done = channel.now()
            leave(channel)
            return done >= 30.0, other.tolist()

        for seed in SEEDS:
            seen = {}
            outcomes = FakeNetwork(2, seed, faults=[Stop(1, 3, 30.0)]).run(stop_after_both)
            assert outcomes == [(True, [4] * 8), (True, [1] * 8)]
            assert seen[1] == ([0] * 8, [0] * 8)

    def test_is_no_hang_by_itself(self):
        """But to wait for it without a deadline is one."""
        with pytest.raises(HangError, match="rank 0 waits for nothing; rank 1 is stopped"):
            FakeNetwork(2, 1, faults=[Stop(1, 1)]).run(lambda channel: channel.wait(math.inf))


class TestCut:
    def test_is_silent(self):
        """Nothing arrives at that host or from it, no word either: its rank cannot tell which others have stopped."""
        for seed in SEEDS:
            network = FakeNetwork(3, seed, hosts=[0, 0, 1], faults=[Cut(1, 0.0)])
            (failed, heard, received), _, (lost_failed, lost_heard, lost_received) = network.run(say_each_other)
            assert (failed, heard, received) == ([], [1], {1: {2}, 2: {0}})
            assert (lost_failed, lost_heard, lost_received) == ([], None, {0: {0}, 1: {0}})

    def test_is_mended(self):
        """What was on its way arrives then."""
        network = FakeNetwork(3, 1, hosts=[0, 0, 1], faults=[Cut(1, 0.0, 30.0)])
        assert [(failed, heard) for failed, heard, _ in network.run(say_each_other)] == [
            ([], [1, 2]),
            ([], [0, 2]),
            ([], [0, 1]),
        ]

    def test_lasts_until_both_hosts_are_reached(self):
        """By two cuts, until the later is mended."""

        def receive_one(channel):
            exchange_rows(channel, 0, math.inf)
            return 30.0 <= channel.now() < 40.0

        network = FakeNetwork(2, 1, faults=[Cut(0, 0.0, 10.0), Cut(1, 0.0, 30.0), Cut(1, 5.0, 20.0)])
        assert network.run(receive_one) == [True, True]

    def test_does_not_part_a_host(self):
        """Ranks of one host reach each other, and the store if it is there."""
        network = FakeNetwork(2, 1, hosts=[1, 1], store_host=1, faults=[Cut(1, 0.0)])
        assert [(failed, heard) for failed, heard, _ in network.run(say_each_other)] == [([], [1]), ([], [0])]

    @pytest.mark.parametrize(("store_host", "onward"), [(None, [0, 1]), (0, [0, 1]), (1, [2])])
    def test_lets_one_part_go_on(self, store_host, onward):
        """That which reaches the store; the other is told so at its deadline."""

        def part(channel):
            mine = [0, 1] if channel.rank < 2 else [2]
            channel.stop(b"", channel.now() + 5.0)
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
                assert "PyTorch's store has failed this rank: it has not answered by the deadline" in sentence
                assert 60 <= when < 70


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
                assert heard is None or set(heard) <= {0, 1, 2, 3} - {rank}
                assert all(bytes_of <= {0, 2**peer} for peer, bytes_of in received.items())
