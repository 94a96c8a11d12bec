import pytest
from channel_cases import CHANNEL_CONFORMANCE, finish, row

from fake_network import ChannelUseError, FakeNetwork, HangError
from treefold.errors import ConformanceError

SEEDS = range(40)


@pytest.mark.parametrize("sends", ["copied", "received", "never"])
@pytest.mark.parametrize("case", CHANNEL_CONFORMANCE, ids=lambda case: case.name)
class TestFakeChannel:
    def test_is_a_channel(self, case, sends):
        def run(function, size):
            outcomes = FakeNetwork(size, seed, sends=sends).run(function)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            return outcomes

        for seed in range(8):  # noqa: B007 - `run` looks at it
            case.check(run)


class Faulty:
    """A channel that does all that another one does, but for what a subclass does wrong."""

    def __init__(self, channel):
        self._channel, self.limits = channel, channel.limits

    def __getattr__(self, name):
        return getattr(self._channel, name)


class Swapping(Faulty):
    def receive(self, peer, tag, buffer):
        """Take what was sent with tag 1 for what was sent with tag 2, and the other way round."""
        return self._channel.receive(peer, {1: 2, 2: 1}.get(tag, tag), buffer)


class Clearing(Faulty):
    def wait(self, deadline):
        """Lose the last byte of every buffer."""
        transfer = self._channel.wait(deadline)
        if transfer is not None and not transfer.is_send:
            transfer.buffer[-1:] = 0
        return transfer


class Late(Faulty):
    def wait(self, deadline):
        return self._channel.wait(deadline + 1)


class Wordless(Faulty):
    def stop(self, word, deadline):
        self._channel.stop(b"" if word else word, deadline)


class Repeating(Faulty):
    last = None

    def wait(self, deadline):
        transfer, before = self._channel.wait(deadline), self.last
        self.last = transfer
        return transfer or before


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Swapping, "order"),
        (Clearing, "shorter_messages"),
        (Late, "deadline"),
        (Wordless, "words"),
        (Repeating, "returns_each_once"),
    ],
)
class TestSuite:
    def test_finds_a_channel_that_breaks_its_promise(self, fault, name):
        """The case that is named after it fails, with the error of all suites."""

        def run(function, size):
            outcomes = FakeNetwork(size, 1).run(lambda channel: function(fault(channel)))
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            return outcomes

        (case,) = (case for case in CHANNEL_CONFORMANCE if case.name == name)
        with pytest.raises(ConformanceError):
            case.check(run)


def ring(channel):
    """Send own bytes to the next rank, receive those of the one before, and stop; return the words that are there."""
    taken = channel.receive((channel.rank - 1) % channel.size, 5, other := row(0, 40))
    channel.send((channel.rank + 1) % channel.size, 5, row(2**channel.rank, 40))
    failed = finish(channel, [taken])
    channel.stop(b"failed" if failed else b"done", channel.now() + 600)
    words = channel.read_words(channel.now() + 600)
    channel.close()
    return words, other.tolist()


class TestRun:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_does_the_same_again(self, seed):
        logs = []
        for _ in range(2):
            network = FakeNetwork(3, seed)
            outcomes = network.run(ring)
            logs.append((network.log, network.sends, outcomes))
        assert logs[0] == logs[1]

    def test_reports_a_hang(self):
        def wait_for_each_other(channel):
            channel.receive(1 - channel.rank, 3, row(0, 1))
            channel.wait(float("inf"))

        sentence = (
            r"^No rank can go on after \S+ s, and nothing is on its way: rank 0 waits for a message from rank 1 with "
            r"tag 3; rank 1 waits for a message from rank 0 with tag 3\.$"
        )
        with pytest.raises(HangError, match=sentence):
            FakeNetwork(2, 1).run(wait_for_each_other)


class TestBuffers:
    def test_are_as_long_as_their_messages(self):
        """A message that does not fit ends a real engine's process."""

        def send_more(channel):
            if channel.rank:
                channel.send(0, 1, row(0, 9))
            else:
                channel.receive(1, 1, row(0, 8))
            channel.wait(600.0)
            channel.wait(601.0)

        sentence = (
            "^Rank 0 receives 9 bytes from rank 1 with tag 1 in a buffer of 8, which would end its process. Receive "
            "into a buffer that is at least as long as the message.$"
        )
        with pytest.raises(ChannelUseError, match=sentence):
            FakeNetwork(2, 4).run(send_more)

    def test_are_not_left_to_a_closed_engine(self):
        def close_at_once(channel):
            channel.receive(1 - channel.rank, 3, row(0, 1))
            channel.close()

        sentence = "closes its channel while these are under way: a message from rank . with tag 3."
        with pytest.raises(ChannelUseError, match=sentence):
            FakeNetwork(2, 4).run(close_at_once)
