"""Actions of users beside a group over gloo, and mistakes in starting it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torchrun_ranks
import trap_ranks
from rank_processes import World


@pytest.fixture
def run(gloo, stores):
    """Return a function that runs ranks on a store of this process, and returns what they return."""

    def run_body(body, size=3, **arguments):
        given = {"port": stores(), **arguments}
        ended = gloo.run(World(body, size, given, timeout_seconds=None, may_leave=("folder",), seconds=90))
        assert [(one.error, one.stack) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run_body


class TestBeside:
    def test_collectives_on_the_process_group_of_the_user(self, run):
        assert run(trap_ranks.collectives_of_the_user) == [(True, True)] * 3

    def test_groups_that_are_dropped(self, run):
        for counts in run(trap_ranks.drop):
            threads = {number for number, _ in counts}
            assert threads == {1}
            assert counts[-1][1] <= counts[0][1] + 3  # a client of the store for each

    def test_a_fork_of_a_rank(self, run):
        sentence = (
            "This process was forked from rank 1 and is no rank itself. Only the process that called connect can use "
            "the group; let it reduce, or start workers before it connects."
        )
        assert run(trap_ranks.fork) == [("", 7.0), (sentence, 7.0), ("", 7.0)]


class TestConnect:
    """Ranks that do not fit together all raise one sentence, at once, with what differs."""

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"guarantee": "per_plan"}, "rank 1 has guarantee 'per_plan' where rank 0 has 'exact'."),
            ({"version": "0.0"}, "rank 1 has treefold '0.0' where rank 0 has "),
        ],
        ids=["guarantee", "version"],
    )
    def test_options_that_differ(self, run, options, sentence):
        stories = run(torchrun_ranks.connect_unlike, options=options)
        assert {name for name, _ in stories} == {"ConnectError"}
        assert len(set(stories)) == 1
        assert stories[0][1].startswith(f"The group did not form: {sentence}")


class TestANewProcess:
    def test_of_an_elastic_job_that_grows_and_shrinks(self, run, stores):
        """Its ranks meet at once, whatever those of other numbers have left in the store."""
        port = stores()
        for size in (2, 3, 2, 3):
            total = 2.0**size - 1
            assert run(torchrun_ranks.connect_in_a_run, size=size, port=port) == [total] * size


class TestGlooConnects:
    """All ranks have come, and gloo connects them, when one fails."""

    def test_ctrl_c(self, run):
        """The others hear of it at once, and nobody's store is kept waiting."""
        stories = run(trap_ranks.be_interrupted_while_connecting)
        own = stories.pop(2)
        assert own[0] == "KeyboardInterrupt"
        assert {one[1] for one in stories} == {"The group did not form: rank 2 has given up: KeyboardInterrupt."}
        assert all(seconds < 20 and answer < 10 for *_, seconds, answer in (own, *stories))

    def test_a_script_that_ends_with_groups_that_nobody_has_closed(self):
        command = [sys.executable, Path(__file__).with_name("dropping_script.py")]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")


class TestWithout:
    def test_is_decided_once(self, run):
        """A rank that leaves out others than the first hears it; the first waits for one that is dead. Both connect."""
        first, second, *_ = run(trap_ranks.lose_two_and_name_one, 4)
        before = "Group.without was called before on this group, and who goes on is decided once. Connect again."
        assert first == [(1, 3), before]
        assert second == [
            "It was decided that ranks 0, 1, 3 may go on, and rank 1 asked for 0, 1. All ranks that go on must leave "
            "out the same ones, and it is decided once. Connect again.",
            before,
        ]
