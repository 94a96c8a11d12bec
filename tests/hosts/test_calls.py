"""Calls over hosts that users make seldom: odd outputs, many small arrays, a group that is closed in a call."""

import math
import traceback
import warnings

import fake_groups
import numpy as np
import pytest

from treefold import PerReplica
from treefold.engines.interface import Transfer
from treefold.errors import (
    ArgumentError,
    CallMismatchError,
    DeadlineError,
    DtypeError,
    GroupError,
    OutputError,
    PeerLostError,
)
from treefold.group.links.protocol import VALUE_TAGS

LENGTHS = (3, 5003)  # in a frame, and in chunks


@pytest.mark.parametrize("length", LENGTHS)
class TestOut:
    """``group.all_reduce(value, out=…)``."""

    def test_that_cannot_be_written_is_refused_however_often_the_call_was_made(self, length):
        """On the rank that brings it, and in its words on the others; nothing is written, and the group goes on."""

        def call(group):
            value, end = np.full(length, 2.0**group.rank), np.zeros(length)
            group.all_reduce(value, out=end)
            end[:] = -1
            end.flags.writeable = group.rank != 1
            with pytest.raises(OutputError if group.rank == 1 else CallMismatchError, match="cannot be written"):
                group.all_reduce(value, out=end)
            return np.unique(end).tolist(), np.unique(group.all_reduce(value)).tolist()

        assert fake_groups.run(3, call)[1] == [([-1], [7])] * 3

    def test_may_be_the_array_that_all_replicas_are(self, length):
        """As in one process."""

        def call(group):
            value = np.full(length, 2.0**group.rank)
            group.all_reduce(PerReplica([value, value]), out=value)
            return np.unique(value).tolist()

        assert fake_groups.run(2, call)[1] == [[6], [6]]


class TestManyArrays:
    """``group.all_gather([…])``, ``group.broadcast([…])``."""

    def test_that_are_small_travel_together(self):
        """Engines take as long for a message of a byte as for one of a thousand."""

        def call(group):
            values = [np.full(1 + index % 3, 2.0**group.rank * (index + 1)) for index in range(300)]
            gathered, told = group.all_gather(values), group.broadcast(values, root=1)
            for index, (whole, one) in enumerate(zip(gathered, told, strict=True)):
                assert whole.tolist() == np.repeat([index + 1, 2 * index + 2, 4 * index + 4], 1 + index % 3).tolist()
                assert one.tolist() == [2 * index + 2] * (1 + index % 3)

        network, _ = fake_groups.run(3, call, chunk_bytes=4096)
        data = [sent.nbytes for sent in network.sends if sent.tag >= VALUE_TAGS]
        # 600 elements for each of two others from each of three ranks, and from one: 4,800 bytes each.
        assert sum(data) == 8 * 4800
        assert len(data) == 8 * 2


class TestClose:
    """``group.close()``."""

    def test_in_the_middle_of_a_call_is_what_the_others_hear(self):
        """By a signal handler, for instance: this rank's call fails, and all others name it and say why."""

        def call(group):
            channel, wait = group._link._channel, group._link._channel.wait
            if group.rank == 1:

                def interrupted(_deadline):
                    channel.wait = wait
                    group.close()
                    return Transfer(0, 0, np.empty(0, np.uint8), error="its connections are broken")

                channel.wait = interrupted
            with pytest.raises(GroupError) as raised:
                group.all_reduce(np.full(5003, 2.0**group.rank))
            return type(raised.value), raised.value.ranks, str(raised.value)[:29]

        closed = (GroupError, (), "This group is closed. After c")
        told = (PeerLostError, (1,), "Rank 1 has closed the group, ")
        assert fake_groups.run(3, call, is_prompt=True)[1] == [told, closed, told]


class TestLate:
    @pytest.mark.parametrize("seed", range(5))
    def test_who_comes_when_all_others_have_given_up_gets_an_error(self, seed):
        """It finds that they have, and names nobody: it was late itself."""

        def call(group):
            group.barrier()
            group._link._channel._network.be_busy(group.rank, 100.0 * (group.rank == 0))
            with pytest.raises(DeadlineError) as raised:
                group.barrier()
            return raised.value.ranks

        assert fake_groups.run(3, call, seed=seed, is_prompt=True)[1] == [(), (0,), (0,)]


class TestWithout:
    """``group.without(ranks)``."""

    @pytest.mark.parametrize("ranks", [1, None, [7], ["1"], [0, 1, 2]])
    def test_takes_some_of_the_other_ranks(self, ranks):
        """Anything else is refused in words, and the group goes on."""

        def call(group):
            with pytest.raises(GroupError, match=r"^Group.without takes some of the other ranks, of 0 to 2, and got "):
                group.without(ranks)
            return float(group.all_reduce(2.0**group.rank))

        assert fake_groups.run(3, call)[1] == [7, 7, 7]


class TestEmpty:
    """``group.empty(shape, dtype)``."""

    def test_holds_no_python_objects(self):
        """Their addresses mean nothing in another process."""

        def call(group):
            with pytest.raises(DtypeError) as raised:
                group.empty(3, object)
            return str(raised.value)

        sentence = "object has elements that are Python objects, which no other process can read. Take numbers."
        assert fake_groups.run(2, call)[1] == [sentence] * 2


class TestFrames:
    """What ranks tell each other in rounds."""

    def test_may_overtake_each_other(self):
        """MPI promises in which order messages are matched, not in which they have arrived."""

        def call(group):
            channel, wait, held = group._link._channel, group._link._channel.wait, []

            def swapped(deadline):
                one = held.pop() if held else wait(deadline)
                if one is None or one.is_send or one.tag >= VALUE_TAGS or one in seen:
                    return one
                seen.add(one)
                other = wait(min(deadline, channel.now() + 0.05))
                held.extend([] if other is None else [one])
                return other or one

            seen, channel.wait = set(), swapped if group.rank == 0 else wait
            return [float(group.all_reduce(np.full(length, 2.0**group.rank))[0]) for length in (3, 5003) * 10]

        assert fake_groups.run(2, call, is_prompt=True)[1] == [[3.0] * 20] * 2


class TestTimeout:
    """``connect(…, timeout_seconds=…)``, ``group.without(…, connect_timeout_seconds=…)``."""

    def test_may_be_infinite(self):
        """Engines wait for so long as their clocks can count."""

        def call(group):
            channel, wait, deadlines = group._link._channel, group._link._channel.wait, []
            channel.wait = lambda deadline: (deadlines.append(deadline), wait(deadline))[1]
            group._link.timeout_seconds = math.inf
            assert group.all_reduce(2.0**group.rank) == 3
            return max(deadlines) < math.inf

        assert fake_groups.run(2, call)[1] == [True, True]

    @pytest.mark.parametrize("seconds", [0, math.nan, "a", True])
    def test_that_is_no_time_is_refused_before_the_group_is_left(self, seconds):
        """It can be used on."""

        def call(group):
            with pytest.raises(ArgumentError, match=r"without\(\) got connect_timeout_seconds="):
                group.without([1 - group.rank], connect_timeout_seconds=seconds)
            return float(group.all_reduce(2.0**group.rank))

        assert fake_groups.run(2, call)[1] == [3, 3]

    def test_ends_a_call_whatever_still_arrives(self):
        """A rank that has more to do than it has time gives up at its deadline, and nobody is named."""

        def work(group):
            channel, wait = group._link._channel, group._link._channel.wait

            def busy_wait(deadline):
                transfer = wait(deadline)
                if transfer is not None and transfer.tag >= VALUE_TAGS:
                    channel._network.be_busy(channel.rank, 0.02)
                return transfer

            channel.wait, group._link.timeout_seconds = busy_wait, 5.0
            began = channel.now()
            with pytest.raises(DeadlineError, match=r"^No rank is missing, but the network or a rank") as caught:
                group.all_reduce(np.full(1_000_000, 2.0**group.rank))
            return caught.value.ranks, channel.now() - began

        _, told = fake_groups.run(2, work, is_prompt=True)
        assert [ranks for ranks, _ in told] == [(), ()]
        assert all(seconds < 5.2 for _, seconds in told), told

    def test_that_is_near_is_no_error_where_warnings_are(self, capsys):
        """The others are in the call: who waits for them is told, and waits on."""

        def call(group):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                group._link._warn([1 - group.rank])

        fake_groups.run(2, call)
        assert "Rank 1 has waited for 30 s in ; absent: 0." in capsys.readouterr().err


class TestBroken:
    """A group of which a rank is gone."""

    def test_holds_nothing_of_the_calls_that_it_refuses(self):
        """A program may go on trying."""

        def call(group):
            if group.rank == 1:
                return None
            errors = []
            for _ in range(20):
                with pytest.raises(PeerLostError) as raised:
                    group.all_reduce(np.full(3, 2.0))
                errors.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
            return errors[1:]

        lengths = fake_groups.run(2, call)[1][0]
        assert len(set(lengths)) == 1
