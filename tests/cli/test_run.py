import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from treefold.cli.run import _one_at_a_time, _wait_for, lost_rank
from treefold.errors import DeadlineError, PeerLostError

CONNECT = "import os, signal, sys, time, numpy as np, treefold\nwith treefold.{} as group:\n"


def run(*words, folder=None):
    """Run the command in a process of its own, as a user would."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "treefold.cli", *words],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "120"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.fixture
def script(tmp_path):
    """Return what writes a script of these lines within a group, and its path."""

    def write(*lines, connect="connect()"):
        path = tmp_path / "script.py"
        path.write_text(CONNECT.format(connect) + "".join(f"    {line}\n" for line in lines))
        return str(path)

    return write


class TestRun:
    def test_connects_the_ranks_and_marks_what_they_print(self, script):
        done = run(
            "run", "-n", "3", script("print(group.all_reduce(np.full(2, 2.0**group.rank)), *sys.argv[1:])"), "-n", "x"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == [f"[{rank}] [7. 7.] -n x" for rank in range(3)]

    def test_connects_the_ranks_though_tmpdir_is_too_long_for_a_socket(self, script, tmp_path, monkeypatch):
        """Sockets' names have 107 bytes at most."""
        folder = tmp_path / ("long" * 30)
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        done = run("run", "-n", "2", script("print(group.all_reduce(np.full(2, 2.0**group.rank)))"))
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == ["[0] [3. 3.]", "[1] [3. 3.]"]

    def test_names_the_first_rank_that_fails_and_ends_the_others(self, script):
        done = run("run", "-n", "3", script("if group.rank == 1: sys.exit(7)", "group.barrier()"))
        assert done.returncode == 7
        assert "treefold run: rank 1 exited with code 7" in done.stderr
        assert "PeerLostError: Rank 1 has left the group with an error" in done.stderr

    def test_names_the_signal_that_killed_a_rank(self, script):
        done = run(
            "run", "-n", "2", script("if group.rank == 1: os.kill(os.getpid(), signal.SIGKILL)", "group.barrier()")
        )
        assert done.returncode == 128 + 9
        assert "treefold run: rank 1 was killed by SIGKILL" in done.stderr

    def test_names_the_rank_whose_deadline_passes_and_not_the_late_one(self, script):
        """A late rank has not failed. It is ended by the command, which never reports its own signal as a failure."""
        lines = script("if group.rank == 1: time.sleep(60)", "group.barrier()", connect="connect(timeout_seconds=1)")
        done = run("run", "-n", "2", lines)
        assert "DeadlineError: Rank 1 had not come by the deadline" in done.stderr
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "treefold run: rank 0 exited with code 1")

    def test_names_the_rank_whose_deadline_passes_though_the_late_one_fails_too(self, script):
        """It comes while the command still waits for it, and raises the error that blames itself."""
        lines = script("if group.rank == 1: time.sleep(2)", "group.barrier()", connect="connect(timeout_seconds=1)")
        done = run("run", "-n", "2", lines)
        assert done.stderr.count("DeadlineError: Rank 1 had not come by the deadline") == 2
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "treefold run: rank 0 exited with code 1")

    def test_leaves_no_folder(self, script, tmp_path, monkeypatch):
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        run("run", "-n", "2", script("pass"))
        run("run", "-n", "2", "-m", "this")
        assert not list(folder.glob("treefold-*"))

    def test_ranks_agree_in_functions_that_lie_elsewhere_in_each(self, script):
        """Static data of a pytree, such as a model's, may be functions: of one name they are one."""
        done = run("run", "-n", "2", script("key = lambda: 0", "print(*group.all_reduce({key: np.ones(1)}).values())"))
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == ["[0] [2.]", "[1] [2.]"]

    def test_ends_when_nobody_reads_its_output(self, script):
        lines = script("while True: print('more', flush=True)")
        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "treefold.cli", "run", "-n", "2", lines],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(timeout=60) != 0

    def test_waits_for_a_slow_reader(self, monkeypatch):
        """As long as somebody reads, nothing is left out; then not for long."""
        monkeypatch.setattr("treefold.cli.run._END_S", 0.2)
        passed, ended = [], threading.Event()

        def pass_on():
            with _one_at_a_time:
                time.sleep(1)
                passed.append("line")
            ended.wait(20)  # for more, which a program left behind might write

        reader = threading.Thread(target=pass_on, daemon=True)
        reader.start()
        _wait_for([reader])
        ended.set()
        assert passed == ["line"]

    def test_waits_once_for_programs_that_ranks_leave_behind(self, script):
        begun = time.monotonic()
        done = run("run", "-n", "2", script("os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '30')"))
        assert done.returncode == 0
        assert time.monotonic() - begun < 25

    def test_refuses_what_is_no_file(self, treefold):
        done = treefold("run", "nosuch.py")
        assert (done.code, done.out) == (2, "")
        assert done.err == "treefold: There is no file 'nosuch.py'. Name a script, or a module behind -m.\n"


class TestLostRank:
    @pytest.mark.parametrize("cause", ["lost", "interrupted", "left", "failed"])
    @pytest.mark.parametrize("prefix", ["treefold.errors.groups.PeerLostError: ", "treefold: "])
    def test_is_the_rank_that_an_error_says_is_gone(self, prefix, cause):
        assert lost_rank(f"{prefix}{PeerLostError.of(cause, 12)}\n".encode()) == 12

    def test_is_no_rank_that_is_late(self):
        errors = [DeadlineError.of(1, state) for state in "RTtZ"]
        for line in [f"{prefix}{error}\n" for error in errors for prefix in ("e.DeadlineError: ", "treefold: ")]:
            assert lost_rank(line.encode()) is None


class TestDemoOfRanks:
    def test_ends_with_the_bits_of_one_process(self):
        pytest.importorskip("sklearn")
        done = run("run", "-n", "2", "-m", "treefold.cli", "demo", "--connect", "--steps", "15", "--shuffle")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("[0] ok  ") == 3

    def test_is_refused_for_one_process(self):
        pytest.importorskip("sklearn")
        done = run("run", "-n", "1", "-m", "treefold.cli", "demo", "--connect")
        assert done.returncode == 2
        sentence = "--connect found 1 process. The demo takes 2 to 10: each holds at least one of the 10 digits."
        assert f"[0] treefold: {sentence}\n" in done.stderr

    def test_names_a_rank_that_ends(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, treefold\nfrom treefold.cli import main\ngroup = treefold.connect()\n"
            "def quit_or_wait(*_, **__):\n    sys.exit(7) if group.rank == 1 else group.barrier()\n"
            "import treefold.cli.demo as command\ncommand.train_connected = quit_or_wait\n"
            "main(['demo', '--connect'])\n"
        )
        pytest.importorskip("sklearn")
        done = run("run", "-n", "2", str(script))
        assert "[0] treefold: Rank 1 has " in done.stderr
        assert "treefold run: rank 1 exited with code 7" in done.stderr
        assert done.returncode == 7


class TestBenchOfRanks:
    def test_shows_every_path_beside_one_process(self):
        done = run("bench", "--ranks", "2", "-b", "4K", "-e", "128K", "-f", "32", "-n", "1")
        assert done.returncode == 0, done.stderr
        for name in ("in place", "into a shared result", "from group.empty", "one process, in place"):
            assert done.stdout.count(name) >= 2

    def test_takes_the_gradients_of_a_model_in_one_call(self, tmp_path):
        file = tmp_path / "run.json"
        done = run("bench", "--ranks", "2", "--model", "resnet50", "-n", "1", "--json", str(file))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("resnet50") == 4
        written = json.loads(file.read_text())
        assert (written["ranks"], {figure["work"] for figure in written["figures"]}) == (2, {"resnet50"})
        assert all(figure["cpu_ms"] > 0 for figure in written["figures"])

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--op", "max"), "--op does not go with --ranks, which measures sums of float32."),
            (("--against", "mpi"), "--against got 'mpi'. It takes one of all, gloo."),
        ],
    )
    def test_refuses_what_it_would_not_heed(self, treefold, words, sentence):
        done = treefold("bench", "--ranks", "2", *words)
        assert done.code == 2
        assert sentence in " ".join(done.err.split())

    def test_measures_beside_gloo(self):
        done = run("bench", "--ranks", "2", "-b", "4K", "-e", "4K", "-n", "1", "--against", "gloo")
        assert done.returncode == 0, done.stderr
        assert re.search(r"^4 KiB +gloo ", done.stdout, re.MULTILINE)
        assert "gloo / it, CPU" in done.stdout
