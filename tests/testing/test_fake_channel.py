import numpy as np
import pytest

from treefold.errors import ChannelUseError, HangError
from treefold.testing import FakeNetwork, Kill, Stop

SEEDS = range(50)


def ring(channel):
    """Send own bytes to the next rank, receive those of the one before, and say that this is done."""
    own, other = np.full(40, 2**channel.rank, np.uint8), np.zeros(40, np.uint8)
    channel.send((channel.rank + 1) % channel.size, 5, own)
    channel.receive((channel.rank - 1) % channel.size, 5, other)
    deadline = channel.now() + 600
    done = channel.wait(deadline)
    while done is not None and done.is_send and not done.error:
        done = channel.wait(deadline)
    said = b"silence" if done is None else done.error.encode()
    said = dict(channel.ask(said, range(channel.size), deadline + 1))
    channel.close()
    return said, other.tolist()


class TestFakeNetwork:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_does_the_same_again(self, seed):
        """The seed decides all that happens."""
        logs = []
        for _ in range(2):
            network = FakeNetwork(3, seed)
            outcomes = network.run(ring)
            logs.append((network.log, network.sends, outcomes))
        assert logs[0] == logs[1]

    def test_reports_a_hang(self):
        """Who waits for what, when nothing is on its way."""

        def wait_for_each_other(channel):
            channel.receive(1 - channel.rank, 3, np.zeros(1, np.uint8))
            channel.wait(float("inf"))

        with pytest.raises(HangError, match="rank 0 waits for a message from rank 1 with tag 3; rank 1 waits for"):
            FakeNetwork(2, 1).run(wait_for_each_other)

    def test_kills_a_rank(self):
        """Its outcome is the fault, whatever it catches."""

        def swallow(channel):
            try:
                channel.now()
                channel.now()
            except BaseException:  # noqa: BLE001 - this is the test
                return "alive"

        assert FakeNetwork(2, 1, faults=[Kill(1, 2)]).run(swallow) == [None, Kill(1, 2)]

    def test_stops_a_rank(self):
        """It goes on where it was."""
        network = FakeNetwork(2, 1, faults=[Stop(1, 1, 90.0)])
        first, second = network.run(lambda channel: channel.now())
        assert first < 1.0
        assert second >= 90.0

    def test_refuses_a_message_that_does_not_fit(self):
        """A real engine ends the process then."""

        def send_more(channel):
            if channel.rank:
                channel.send(0, 1, np.zeros(9, np.uint8))
            else:
                channel.receive(1, 1, np.zeros(8, np.uint8))
            channel.wait(600.0)
            channel.wait(601.0)

        with pytest.raises(ChannelUseError, match="Rank 0 receives 9 bytes from rank 1 with tag 1 in a buffer of 8"):
            FakeNetwork(2, 4, sends="copied").run(send_more)
