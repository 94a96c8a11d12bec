"""Calls over hosts that users make seldom: odd outputs, calls that come late, frames that overtake each other."""

import warnings

import fake_groups
import numpy as np
import pytest

from treefold import PerReplica
from treefold.errors import (
    CallMismatchError,
    DeadlineError,
    GroupError,
    OutputError,
)
from treefold.group.protocol import VALUE_TAGS

LENGTHS = (3, 5003)  # in a frame, and in chunks


@pytest.mark.parametrize("length", LENGTHS)
class TestOut:
    """``group.all_reduce(value, out=…)``."""

    def test_that_cannot_be_written_is_refused_however_often_the_call_was_made(self, length):
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
        def call(group):
            value = np.full(length, 2.0**group.rank)
            group.all_reduce(PerReplica([value, value]), out=value)
            return np.unique(value).tolist()

        assert fake_groups.run(2, call)[1] == [[6], [6]]


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
        def call(group):
            with pytest.raises(GroupError, match=r"^Group.without takes some of the other ranks, of 0 to 2, and got "):
                group.without(ranks)
            return float(group.all_reduce(2.0**group.rank))

        assert fake_groups.run(3, call)[1] == [7, 7, 7]


class TestFrames:
    """The words of ranks in rounds."""

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
    """``connect(…, timeout_seconds=…)``."""

    def test_ends_a_call_whatever_still_arrives(self):
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
        """The others are in the call: a rank that waits for them hears it, and waits on."""

        def call(group):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                group._link._warn([1 - group.rank])

        fake_groups.run(2, call)
        assert "Rank 1 has waited for 30 s in ; absent: 0." in capsys.readouterr().err
