from channel_cases import others, row, sleep

from fake_network import Cut, FakeNetwork, Kill, Stop
from treefold.errors import ConnectError

SEEDS = range(40)


def exchange_rows(channel, tag, deadline):
    """Exchange a row with every other rank; return the ranks that failed, the times, and the rows received."""
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
    """Exchange rows, meet, so that no rank leaves before others have theirs, and stop; return ranks with words."""
    deadline = channel.now() + 60.0
    failed, received = exchange_rows(channel, 0, deadline)
    exchange_rows(channel, 1, deadline + 1.0)
    channel.stop(b"", deadline + 8.0)
    sleep(channel, deadline + 8.0)
    words = channel.read_words(deadline + 16.0)
    channel.close()
    return failed, None if words is None else sorted(words), received


class TestKill:
    def test_lets_a_rank_do_nothing_more(self):
        def send_again(channel):
            while channel.rank:
                try:
                    channel.send(0, 0, row(0, 1))
                except BaseException:  # noqa: BLE001 - this is the test
                    channel.send(0, 0, row(0, 1))

        network = FakeNetwork(2, 1, faults=[Kill(1, 3)])
        assert network.run(send_again) == [None, Kill(1, 3)]
        assert len(network.sends) == 2

    def test_fails_the_transfers_of_its_peers(self):
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


class TestStop:
    def test_is_silent(self):
        failed, heard, received = (outcome := FakeNetwork(2, 1, faults=[Stop(1, 1)]).run(say_each_other))[0]
        assert (failed, heard, received) == ([], [], {1: {0}})
        assert outcome[1] == Stop(1, 1)


class TestCut:
    def test_is_silent(self):
        """Nothing arrives at that host or from it, no word either: its rank cannot tell which others have stopped."""
        for seed in SEEDS:
            network = FakeNetwork(3, seed, hosts=[0, 0, 1], faults=[Cut(1, 0.0)])
            (failed, heard, received), _, (lost_failed, lost_heard, lost_received) = network.run(say_each_other)
            assert (failed, heard, received) == ([], [1], {1: {2}, 2: {0}})
            assert (lost_failed, lost_heard, lost_received) == ([], None, {0: {0}, 1: {0}})

    def test_lets_one_part_go_on(self):
        """That which reaches the store; the other is told so at its deadline."""

        def part(channel):
            mine = [0, 1] if channel.rank < 2 else [2]
            channel.stop(b"", channel.now() + 5.0)
            try:
                return channel.without([rank for rank in range(3) if rank not in mine], channel.now() + 60.0).size
            except ConnectError as refused:
                return str(refused), round(channel.now())

        for seed in SEEDS:
            network = FakeNetwork(3, seed, hosts=[0, 0, 1], faults=[Cut(1, 0.0)])
            outcomes = network.run(part)
            assert outcomes[:2] == [2, 2]
            sentence, when = outcomes[2]
            assert "PyTorch's store has failed this rank: it has not answered by the deadline" in sentence
            assert 60 <= when < 70
