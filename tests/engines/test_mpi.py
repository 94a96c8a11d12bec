import ast
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pretended_hosts
import pytest
from channel_cases import CHANNEL_CONFORMANCE

_IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
_CALLS = 400 if _IS_FULL else 8
_PATIENCE_S = 1200 if _IS_FULL else 120
_MPIEXEC = Path(sys.executable).with_name("mpiexec")
#: MPICH sends by TCP even within a host.
_TCP = {"UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"}

if importlib.util.find_spec("mpi4py") is None:
    pytest.skip("needs mpi4py, of the extra `bench`", allow_module_level=True)
if not (_MPIEXEC.exists() or shutil.which("mpiexec")):
    pytest.skip("needs mpiexec, of MPICH", allow_module_level=True)


def run(function, size):
    """Run a function of the suite on this many processes."""
    plain, options = function, {}
    if isinstance(function, functools.partial):
        plain, options = function.func, function.keywords
    return run_named(plain.__name__, options, size)


def launched(size, script, *arguments, environment=()):
    """Run a script on this many processes, to its end."""
    launcher = str(_MPIEXEC) if _MPIEXEC.exists() else "mpiexec"
    command = [launcher, "-n", str(size), sys.executable, str(Path(__file__).with_name(script)), *arguments]
    given = {**os.environ, **dict(environment)}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)  # noqa: S603 - our own


def run_named(name, options, size, environment=()):
    """Run a function of the suite, or one of the ranks' own, on this many processes, which end well."""
    done = launched(size, "mpi_ranks.py", name, json.dumps(options), environment=environment)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("returned ")]
    assert len(lines) == 1, done.stderr
    return [ast.literal_eval(one) for one in json.loads(lines[0].removeprefix("returned "))]


class TestMpiChannel:
    @pytest.mark.parametrize(
        "case",
        [case for case in CHANNEL_CONFORMANCE if not case.needs_survivors and not case.needs_store],
        ids=lambda case: case.name,
    )
    def test_is_a_channel(self, case):
        """The suite of all channels, but for deaths, which end the whole job."""
        case.check(run)


class TestFinalize:
    def test_by_the_user_with_a_group_open(self):
        done = launched(2, "finalized_script.py")
        assert (done.returncode, done.stderr) == (0, "")


class TestConnect:
    def test_fails_for_a_rank_that_comes_late(self):
        """Its messages are not written where the users' arrays are now, and it hears that time is over."""
        first, second = run_named("come_late", {}, 2)
        assert (re.match(r"Rank 1 did not connect within 2.* s\. Start all ranks", first[0]) is not None, first[1]) == (
            True,
            True,
        )
        assert second[1]
        assert "connect_timeout_seconds of rank 1" in second[0]


class TestGroup:
    """Over hosts, between which MPI carries what is sent; tests/hosts/test_bits.py has more, over gloo and the fake."""

    @pytest.mark.parametrize("layout", pretended_hosts.LAYOUTS, ids=str)
    def test_gives_the_bits_of_one_process(self, layout):
        first = pretended_hosts.LAYOUTS.index(layout) * 100_000
        options = {"hosts": layout, "first": first, "calls": _CALLS, "chunks": (256, 4096)}
        alike = run_named("bits", options, sum(map(len, layout)))
        assert {len(of_rank) for of_rank in alike} == {_CALLS}
        assert len(set(map(tuple, alike))) == 1

    @pytest.mark.parametrize("network", [{}, _TCP], ids=["any", "tcp"])
    def test_tells_the_others_of_an_interrupt_among_large_messages(self, network, tmp_path):
        """Though its words lie behind them; and what is under way until MPI ends has memory until then."""
        done = run_named("interrupt_among_large_messages", {"folder": str(tmp_path)}, 3, network)
        assert done == [("PeerLostError", (1,)), ("KeyboardInterrupt", ()), ("PeerLostError", (1,))]

    def test_has_told_its_part_when_it_returns(self, tmp_path):
        """Whatever the user does next, for however long: here MPI sends nothing before the receiver asks for it."""
        network = {**_TCP, "UCX_RNDV_THRESH": "8192"}
        assert run_named("return_before_another", {"folder": str(tmp_path)}, 2, network) == [9.0, 9.0]

    def test_is_followed_by_one_of_those_that_are_left(self):
        """Without a store no group of ranks is chosen to go on: the sentence has a remedy, and it works."""
        sentence = (
            "Group.without needs an engine with a store, as gloo has one. Over MPI, connect again on a communicator of "
            "the ranks that are left: "
            "`treefold.connect(communicator.Create_group(communicator.group.Excl(error.ranks)))`."
        )
        told = (2,), sentence, 2, 3.0
        assert run_named("connect_those_that_are_left", {}, 3) == [told, told, None]

    def test_gives_no_result_to_who_comes_when_all_have_given_up(self):
        """They have told their part before, and that the call did not happen; they name it, and it misses nobody."""
        assert run_named("come_when_all_have_given_up", {}, 3) == [(), (0,), (0,)]

    @pytest.mark.parametrize("call", ["all_reduce", "all_gather"])
    def test_keeps_what_it_still_sends_after_a_deadline(self, call):
        """MPI may read it when the late rank comes, and the caller may have dropped it."""
        assert run_named("drop_what_is_sent", {"call": call}, 2)[0] == ((1,), True, 3.0)

    @pytest.mark.long
    @pytest.mark.parametrize("size", range(2, 9))
    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_has_no_bit_that_differs_in_many_elements(self, dtype, replicas, size):
        """10**7 sums of values that cancel, for each of 14 kinds of groups and dtype; in chunks of several sizes."""
        hosts = [[rank] for rank in range(size)]
        done = run_named("many", {"hosts": hosts, "dtype": dtype, "replicas": replicas, "count": 10**7}, size)
        assert {differing for _, differing in done} == {0}
        assert sum(compared for compared, _ in done) >= 10**7
