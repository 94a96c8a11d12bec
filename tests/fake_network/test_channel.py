import threading

import numpy as np
import pytest

from fake_network import ChannelUseError, FakeNetwork, HangError
from treefold.engines.interface import Limits
from treefold.errors import ConformanceError
from treefold.testing import CHANNEL_CONFORMANCE
from treefold.testing.channels import finish, leave, row

SEEDS = range(40)


def count_of(function, wanted, *, size=2, **options):
    """Return for how many seeds a run returns this."""
    return sum(FakeNetwork(size, seed, **options).run(function) == wanted for seed in SEEDS)


@pytest.mark.parametrize("sends", ["copied", "received", "never"])
@pytest.mark.parametrize("case", CHANNEL_CONFORMANCE, ids=lambda case: case.name)
class TestFakeChannel:
    def test_is_a_channel(self, case, sends):
        """The suite of all channels, however sends are reported."""

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
        """Return a second after the deadline."""
        return self._channel.wait(deadline + 1)


class Wordless(Faulty):
    def stop(self, word, deadline):
        """Stop without the word."""
        self._channel.stop(b"" if word else word, deadline)


class Repeating(Faulty):
    last = None

    def wait(self, deadline):
        """Return at the deadline what was returned before."""
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
    words = channel.words(channel.now() + 600)
    channel.close()
    return words, other.tolist()


def wait_long(channel):
    """Wait for a message that nobody sends, for ten minutes."""
    channel.receive(1 - channel.rank, 0, row(0, 1))
    return channel.wait(600.0), channel.now()


class TestRun:
    @pytest.mark.parametrize("seed", SEEDS)
    def test_does_the_same_again(self, seed):
        """The seed decides all that happens, and when."""
        logs = []
        for _ in range(2):
            network = FakeNetwork(3, seed)
            outcomes = network.run(ring)
            logs.append((network.log, network.sends, outcomes))
        assert logs[0] == logs[1]

    def test_differs_between_seeds(self):
        """No two seeds do the same."""
        logs = []
        for seed in SEEDS:
            network = FakeNetwork(3, seed)
            network.run(ring)
            logs.append(str(network.log))
        assert len(set(logs)) == len(SEEDS)

    def test_lets_any_rank_go_first(self):
        """And any second, and any last."""
        orders = set()
        for seed in range(100):
            network = FakeNetwork(3, seed)
            network.run(lambda channel: channel.now())
            orders.add(tuple(rank for _, rank, _ in network.log))
        assert len(orders) == 6

    @pytest.mark.parametrize("seed", SEEDS)
    def test_never_goes_back_in_time(self, seed):
        """Even if a deadline is long past."""
        network = FakeNetwork(3, seed)

        def be_late(channel):
            channel.wait(5.0)
            assert channel.wait(1.0) is None
            assert channel.words(2.0) is None
            channel.stop(b"", 2.0)
            channel.wait(6.0)
            channel.close()

        assert network.run(be_late) == [None] * 3
        assert [when for when, _, _ in network.log] == sorted(when for when, _, _ in network.log)

    def test_returns_what_ranks_return_and_raise(self):
        """An error ends its rank only."""

        def divide(channel):
            return 4 // channel.rank

        first, *others = FakeNetwork(3, 1).run(divide)
        assert isinstance(first, ZeroDivisionError)
        assert others == [4, 2]

    def test_takes_no_time_to_wait(self):
        """Ten minutes pass at once, to the second."""
        assert FakeNetwork(2, 1).run(wait_long) == [(None, 600.0), (None, 600.0)]

    def test_reports_a_hang(self):
        """Who waits for what, when nothing is on its way."""

        def wait_for_each_other(channel):
            channel.receive(1 - channel.rank, 3, row(0, 1))
            channel.wait(float("inf"))

        sentence = (
            r"^No rank can go on after \S+ s, and nothing is on its way: rank 0 waits for a message from rank 1 with "
            r"tag 3; rank 1 waits for a message from rank 0 with tag 3\.$"
        )
        with pytest.raises(HangError, match=sentence):
            FakeNetwork(2, 1).run(wait_for_each_other)

    def test_lets_messages_overtake_each_other(self):
        """Those with different tags, in some runs; the suite holds that those with the same do not."""

        def see_order(channel):
            transfers = [channel.receive(0, tag, row(0, 1)) for tag in range(3)] if channel.rank else []
            if channel.rank == 0:
                for tag in range(3):
                    channel.send(1, tag, row(tag, 1))
            order = []
            while len(order) < len(transfers):
                order.append(channel.wait(600.0).tag)
            leave(channel)
            return order

        orders = [tuple(FakeNetwork(2, seed).run(see_order)[1]) for seed in SEEDS]
        assert len(set(orders)) == 6

    def test_uses_its_threads_again(self):
        """As many as the largest network has ranks."""
        FakeNetwork(5, 0).run(ring)
        before = threading.active_count()
        for seed in SEEDS:
            FakeNetwork(5, seed).run(ring)
        assert threading.active_count() == before

    def test_counts_what_is_sent(self):
        """Bytes of each ordered pair, and every message in the order of the sends."""

        def send_some(channel):
            if channel.rank == 0:
                channel.send(1, 4, row(0, 10))
                channel.send(2, 5, row(0, 20))
                channel.send(1, 6, row(0, 30))

        network = FakeNetwork(3, 1)
        network.run(send_some)
        assert list(network.sends) == [(0, 1, 4, 10), (0, 2, 5, 20), (0, 1, 6, 30)]
        assert network.bytes_sent == {(0, 1): 40, (0, 2): 20}

    def test_is_slow_where_it_is_told_to_be(self):
        """By a factor for messages from one host to another."""

        def time_one(channel):
            if channel.rank:
                assert not finish(channel, [channel.receive(0, 0, row(0, 8))], float("inf"))
            else:
                channel.send(1, 0, row(1, 8))
                channel.wait(float("inf"))
            return channel.now()

        for seed in SEEDS:
            (_, fast), (_, slow) = (
                FakeNetwork(2, seed, hosts=[7, 9], sends="received", slow={(7, 9): factor}).run(time_one)
                for factor in (1.0, 1e6)
            )
            assert slow > 10.0 > fast


class TestBuffers:
    def test_are_read_late(self):
        """A send buffer that is used again too early sends other bytes, in most runs but not in all."""

        def reuse(channel):
            buffer = row(1, 64)
            if channel.rank == 0:
                channel.send(1, 0, buffer)
                channel.wait(1e-3)
                buffer[:] = 2
                leave(channel)
                return None
            assert not finish(channel, [channel.receive(0, 0, buffer)])
            leave(channel)
            return set(buffer.tolist())

        assert len(SEEDS) // 8 < count_of(reuse, [None, {1}]) < len(SEEDS) * 7 // 8

    def test_are_written_in_two_halves(self):
        """A buffer that is read before its transfer is done is seen as it was, torn, and whole."""

        def peek(channel):
            seen, buffer = set(), row(0, 64)
            if channel.rank == 0:
                channel.send(1, 0, row(1, 64))
            else:
                taken = channel.receive(0, 0, buffer)
                while not seen or not finish_now(channel, taken):
                    seen.add(tuple(sorted(set(buffer.tolist()))))
                seen.add(tuple(sorted(set(buffer.tolist()))))
            leave(channel)
            return seen

        def finish_now(channel, taken):
            return channel.wait(channel.now() + 1e-4) is taken

        seen = [FakeNetwork(2, seed).run(peek)[1] for seed in SEEDS]
        assert all((1,) in one for one in seen)
        assert sum((0, 1) in one for one in seen) > len(SEEDS) // 4

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (lambda channel: channel.send(0, 1, row(0, 1)), "Rank 0 calls send with peer 0: others are 0 to 1 without"),
            (lambda channel: channel.receive(2, 1, row(0, 1)), "Rank 0 calls receive with peer 2: others are 0 to 1 "),
            (lambda channel: channel.send(1, 8, row(0, 1)), "Rank 0 calls send with tag 8: they count from 0 to 7."),
            (lambda channel: channel.send(1, 0, row(0, 101)), "Rank 0 calls send with 101 bytes: 100 at most."),
            (lambda channel: channel.send(1, 0, np.zeros(2)), r"with float64 \(2,\): a buffer is a row of bytes."),
            (lambda channel: channel.send(1, 0, row(0, 9)[::2]), r"a buffer is a row of bytes."),
            (lambda channel: channel.wait(float("nan")), "Rank 0 waits until nan."),
            (lambda channel: channel.without([0], 1.0), "Rank 0 leaves itself out."),
        ],
    )
    def test_are_checked_with_all_other_arguments(self, call, sentence):
        """What no engine allows ends the run, even if the code under test catches the error."""

        def swallow(channel):
            try:
                if channel.rank == 0:
                    call(channel)
            except AssertionError:
                return 0

        network = FakeNetwork(2, 1, limits=Limits(tags=8, message_bytes=100))
        with pytest.raises(ChannelUseError, match=sentence):
            network.run(swallow)

    def test_are_writeable_until_their_transfers_are_done(self):
        """What goes wrong in the engine ends the run."""

        def lock(channel):
            if channel.rank:
                channel.send(0, 0, row(1, 8))
            else:
                channel.receive(1, 0, buffer := row(0, 8))
                buffer.flags.writeable = False
            channel.wait(600.0)
            channel.wait(600.0)

        with pytest.raises(ValueError, match="read-only"):
            FakeNetwork(2, 1).run(lock)

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
        """Who closes with something under way has not waited for it."""

        def close_at_once(channel):
            channel.receive(1 - channel.rank, 3, row(0, 1))
            channel.close()

        sentence = "closes its channel while these are under way: a message from rank . with tag 3."
        with pytest.raises(ChannelUseError, match=sentence):
            FakeNetwork(2, 4).run(close_at_once)

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (
                lambda channel: channel.send(1 - channel.rank, 0, row(0, 1)),
                "calls send after stop: nothing can be sent",
            ),
            (lambda channel: channel.stop(b"", 1.0), "calls stop twice."),
            (lambda channel: channel.close() or channel.wait(1.0), "uses its channel after close: wait."),
        ],
    )
    def test_are_not_sent_after_stop(self, call, sentence):
        """Nothing but ``wait``, ``words``, ``without`` and ``close`` can follow it."""
        with pytest.raises(ChannelUseError, match=sentence):
            FakeNetwork(2, 4).run(lambda channel: (channel.stop(b"", 1.0), call(channel)))
