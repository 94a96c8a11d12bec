"""What users do beside a group over gloo, and what they get wrong when they start it."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torchrun_ranks
import trap_ranks
from rank_processes import RankProcesses, World
from torch import distributed

from treefold import _native

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)


@pytest.fixture(scope="module")
def gloo():
    """What starts ranks whose channels are on this machine's loopback."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
    processes = RankProcesses({**loopback, "TREEFOLD_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"})
    yield processes
    processes.close()


@pytest.fixture
def run(gloo):
    """Return a function that runs ranks on a store of this process, and returns what they return."""
    stores = []

    def run_body(body, size=3, **arguments):
        stores.append(
            distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
        )
        port = arguments.pop("port", stores[-1].port)
        given = {**arguments, "port": port}
        ended = gloo.run(World(body, size, given, timeout_seconds=None, may_leave=("folder",), seconds=90))
        assert [(one.error, one.stack) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run_body


class TestBeside:
    def test_collectives_on_the_process_group_of_the_user(self, run):
        """Both are right: their messages never meet."""
        assert run(trap_ranks.collectives_of_the_user) == [(True, True)] * 3

    def test_a_loss_that_a_neighbour_on_the_host_does_not_see(self, run):
        """It waits for another rank of its host, in their memory, and hears from that one at once."""
        stories = run(trap_ranks.lose_a_rank_beside_a_neighbour)
        assert stories[0] == stories[1]
        assert stories[0][0] == "PeerLostError"
        assert stories[0][1].startswith("Rank 2 has ended, or its host cannot be reached"), stories

    def test_groups_that_are_dropped(self, run):
        """No thread and no descriptor of theirs is left, though nobody has closed them."""
        for counts in run(trap_ranks.drop):
            threads = {number for number, _ in counts}
            assert threads == {1}
            assert counts[-1][1] <= counts[0][1] + 3  # a client of the store for each

    def test_a_fork_of_a_rank(self, run):
        """The child is refused in words, whatever it does the group goes on."""
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
            ({"guarantee": "per_plan"}, "rank 1 has guarantee 'per_plan' where rank 0 has 'replica_order'."),
            ({"version": "0.0"}, "rank 1 has treefold '0.0' where rank 0 has "),
        ],
        ids=["guarantee", "version"],
    )
    def test_options_that_differ(self, run, options, sentence):
        """Both sides are in the sentence."""
        stories = run(torchrun_ranks.connect_unlike, variable={}, options={1: options})
        assert {name for name, _ in stories} == {"ConnectError"}
        assert len(set(stories)) == 1
        assert stories[0][1].startswith(f"The group did not form: {sentence}")

    def test_a_topology_that_one_rank_cannot_read(self, run):
        """The others hear why, and do not wait for their deadlines."""
        stories = run(torchrun_ranks.connect_unlike, variable={}, options={1: {"topology": "nosuch.json"}})
        own = stories.pop(1)
        assert "nosuch.json" in own[1]
        assert {name for name, _ in stories} == {"ConnectError"}
        assert {words for _, words in stories} == {
            f"The group did not form: rank 1 has given up: {own[1].rstrip('.')}."
        }

    def test_a_rank_that_does_not_come(self, run):
        """The error says for how long connect has waited in all, also for PyTorch."""
        for words in run(torchrun_ranks.miss_a_rank, seconds=6)[:2]:
            seconds = re.search(r"Rank 2 did not connect within ([\d.]+) s\. Start all ranks", words)
            assert seconds, words
            assert float(seconds[1]) >= 6

    def test_a_network_interface_that_is_not_there(self, run):
        """All ranks hear gloo's words, of which rank, and which variable names it."""
        stories = run(torchrun_ranks.connect_unlike, variable={1: {"GLOO_SOCKET_IFNAME": "nosuch0"}}, options={})
        own = stories.pop(1)[1]
        assert re.match(r"gloo did not connect the hosts: .* GLOO_SOCKET_IFNAME is 'nosuch0' on this rank", own), own
        assert stories == [("ConnectError", f"The group did not form: rank 1 has given up: {own.rstrip('.')}.")] * 2

    def test_the_engines_own_sums(self, run):
        """They are refused between hosts, and the sentence says what to take."""
        stories = run(
            torchrun_ranks.connect_unlike, variable={}, options={rank: {"guarantee": "engine"} for rank in range(3)}
        )
        assert stories[0][1] == (
            "The group did not form: guarantee='engine' is asked for over 3 hosts, between which treefold folds values "
            "itself. Take 'replica_order' or 'per_plan', or call the engine's own all-reduce."
        )
        assert len(set(stories)) == 1

    def test_numbers_of_ranks_that_differ(self, run):
        """All hear of it, whichever of them comes first."""
        stories = run(torchrun_ranks.connect_unlike, variable={0: {"WORLD_SIZE": "2"}}, options={})
        sentence = "The group did not form: rank 1 has size 3 where rank 0 has 2."
        assert stories == [("ConnectError", sentence)] * 3

    def test_agents_that_have_restarted_other_numbers_of_times(self, run):
        """Each of torchrun's agents counts what it has restarted itself."""
        variable = {2: {"TORCHELASTIC_RESTART_COUNT": "1"}}
        assert run(torchrun_ranks.connect_unlike, variable=variable, options={}) == ["done"] * 3

    @pytest.mark.parametrize("hosts", [(0, 0, 1), (1, 0, 0)], ids=["the first host", "the second"])
    def test_ranks_of_one_host_that_do_not_fit(self, run, hosts):
        """The other hosts hear the sentence, with the numbers of all ranks, and do not wait for their deadline."""
        first, other = (rank for rank in range(3) if hosts[rank] == 0)
        variable = {other: {"TREEFOLD_GROUP_BYTES": str(1 << 20)}}
        stories = run(torchrun_ranks.connect_unlike, variable=variable, options={}, hosts=hosts)
        sentence = f"rank {other} has bytes for results 1048576 where rank {first} has 1073741824."
        assert stories == [("ConnectError", f"The group did not form: {sentence}")] * 3


class TestRanksOfOneHost:
    """While one of them waits for the other, in their memory."""

    def test_that_do_not_meet_in_time(self, run):
        """The one that is missing is named by its number among all ranks."""
        stories = run(trap_ranks.miss_a_fellow, seconds=3)
        assert stories[2] is None
        assert all(name == "ConnectError" and 2 in ranks for name, ranks in stories[:2]), stories

    @pytest.mark.parametrize("victim", [0, 2], ids=["the one that listens", "a rank of another host"])
    def test_a_rank_that_gives_up(self, run, victim):
        """All others hear of it, and do not wait for their deadline."""
        stories = run(trap_ranks.wait_for_a_fellow, victim=victim)
        assert stories.pop(victim)[0] == "MemoryError"
        assert [name for (name, _), _ in stories] == ["ConnectError"] * 2, stories
        assert all(seconds < 20 for _, seconds in stories)

    def test_that_never_begin_to_meet(self, run):
        """The folder in which they would have met is gone."""
        assert run(trap_ranks.fail_before_the_ticket) == [[]] * 3


class TestANewProcess:
    def test_of_a_rank_that_was_killed_while_it_waited(self, run):
        """The others, who have met only its words, meet the new process."""
        assert run(trap_ranks.come_after_a_death) == [7.0] * 3

    def test_of_an_elastic_job_that_grows_and_shrinks(self, run):
        """Its ranks meet at once, whatever those of other numbers have left in the store."""
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for size in (2, 3, 2, 3):
            total = 2.0**size - 1
            assert run(torchrun_ranks.connect_in_a_run, size=size, port=store.port) == [total] * size


class TestGlooConnects:
    """All ranks have come, and gloo connects them, when one fails."""

    def test_a_rank_that_dies(self, run):
        """The others give up at the deadline of the first."""
        stories = run(trap_ranks.fail_while_connecting, how="die", seconds=4)
        assert stories[2] is None
        assert {name for name, *_ in stories[:2]} == {"ConnectError"}
        assert all(seconds < 9 for *_, seconds, _ in stories[:2])

    def test_a_rank_that_gloo_cannot_connect(self, run):
        """All hear gloo's words at once."""
        stories = run(trap_ranks.fail_while_connecting, how="raise")
        sentence = (
            "gloo did not connect the hosts: no address. GLOO_SOCKET_IFNAME is 'lo' on this rank: it names the network "
            "interface by which the others are reached, such as 'eth0'."
        )
        told = f"The group did not form: rank 2 has given up: {sentence}"
        assert [one[1] for one in stories] == [told, told, sentence]
        assert all(seconds < 20 for *_, seconds, _ in stories)

    @pytest.mark.parametrize(("how", "interrupted"), [("interrupt", 2), ("interrupt another", 0)])
    def test_ctrl_c(self, run, how, interrupted):
        """The others hear of it at once, and nobody's store is kept waiting."""
        stories = run(trap_ranks.fail_while_connecting, how=how)
        own = stories.pop(interrupted)
        assert own[0] == "KeyboardInterrupt"
        assert {one[1] for one in stories} == {
            f"The group did not form: rank {interrupted} has given up: KeyboardInterrupt."
        }
        assert all(seconds < 20 and answer < 10 for *_, seconds, answer in (own, *stories))

    def test_a_script_that_is_interrupted(self):
        """It ends as Python does after Ctrl-C: nothing of gloo asks a store any more."""
        script = Path(__file__).with_name("interrupted_script.py")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (-signal.SIGINT, b"KeyboardInterrupt")

    def test_a_script_that_ends_before_the_threads_that_wait_for_messages(self):
        """It waits for them: Python would abort."""
        assert _ended("slow_script.py") == (0, b"")

    def test_a_script_that_ends_with_groups_that_nobody_has_closed(self):
        """As if they had been closed."""
        assert _ended("dropping_script.py") == (0, b"")


def _ended(name, *options):
    script = Path(__file__).with_name(name)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, script, *options]
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stderr


class TestWithout:
    def test_a_rank_that_gives_up(self, run):
        """It is named by its number in the group before, as in ``error.ranks``, and in words by both."""
        _, (sentence, ranks), own = run(trap_ranks.fail_to_go_on)
        assert (ranks, own) == ((2,), ("", ()))
        assert sentence.startswith("Rank 1 has given up connecting")
        assert sentence.endswith(
            "Ranks have their new numbers here: 0, 1 were 1, 2 in the group before, as in error.ranks."
        )

    def test_is_decided_once(self, run):
        """The survivors leave one out, and hear of the other while they wait for it; then they connect again."""
        decided = (
            "It was decided that ranks 0, 1, 3 may go on, and rank {} asked for 0, 1. All ranks that go on must leave "
            "out the same ones, and it is decided once. Connect again."
        )
        told = run(trap_ranks.lose_two_and_name_one, 4)
        assert told == [[(3,), decided.format(rank)] for rank in range(2)] + [None] * 2
