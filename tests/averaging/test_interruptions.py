"""Runs of ``treefold average`` that end early, two at once, and what changes meanwhile: nothing is half written."""

import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file
from saved_files import save

from treefold.averaging import average_checkpoints, writers
from treefold.errors import CheckpointError

OUTPUTS = ("mean.safetensors", "mean.pt", "mean.npz", "mean")


class TestReplacedInputs:
    @pytest.mark.parametrize("name", ["0.safetensors", "0.pt", "0.npz", "0"])
    def test_are_read_as_they_were_checked(self, tmp_path, name):
        """Another file gets the name of an input between the check and the reading: it is not seen."""
        path = save(tmp_path / name, 1)
        save(tmp_path / f"other{path.suffix}", 9)
        inner = "model.safetensors" if path.is_dir() else ""
        replacement = tmp_path / f"other{path.suffix}" / inner
        average_checkpoints([path], tmp_path / "mean.npz", on_start=lambda _: replacement.replace(path / inner))
        assert np.load(tmp_path / "mean.npz")["w"].tolist() == [1.0] * 3


class TestInterruptions:
    @pytest.mark.parametrize("output", ["mean.safetensors", "mean.npz"])
    def test_leave_nothing(self, pair, tmp_path, monkeypatch, output):
        (tmp_path / output).write_bytes(b"older")

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(writers, "combine", interrupt)
        with pytest.raises(KeyboardInterrupt):
            average_checkpoints(pair, tmp_path / output)
        assert sorted(tmp_path.iterdir()) == sorted([*pair, tmp_path / output])
        assert (tmp_path / output).read_bytes() == b"older"

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
    def test_by_signals_leave_nothing(self, pair, tmp_path, name):
        """SIGTERM from a scheduler, SIGHUP from a terminal that closes: as Ctrl-C, and the exit code says which."""
        code = (
            "import os, signal, sys; from treefold.cli import main; from treefold.averaging import writers; "
            f"writers.combine = lambda *_: os.kill(os.getpid(), signal.{name}); main(sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, "average", *pair, "-o", tmp_path / "mean.npz"]
        run = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        assert run.returncode == 128 + getattr(signal, name)
        assert sorted(tmp_path.iterdir()) == pair

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    def test_that_are_ignored_stay_ignored(self, pair, tmp_path):
        """Under nohup the end of the terminal is not the end of the run."""
        code = (
            "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from treefold.cli import main; "
            "from treefold.averaging import writers; combine = writers.combine; "
            "writers.combine = lambda *a: (os.kill(os.getpid(), signal.SIGHUP), combine(*a)); main(sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, "average", *pair, "-o", tmp_path / "mean.npz"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
        assert (tmp_path / "mean.npz").exists()


#: Runs the command; in the middle it says so and waits to be told to go on, or to be killed.
WAITING = """
import sys
from treefold.averaging import writers
from treefold.cli import main
combine = writers.combine
def wait(*arguments):
    print("in the middle", flush=True)
    sys.stdin.readline()
    combine(*arguments)
writers.combine = wait
main(sys.argv[1:])
"""


@pytest.fixture
def in_the_middle(tmp_path):
    """Return a function that starts a run and returns when it is within the first tensor."""
    running = []

    def start(source, output):
        command = [sys.executable, "-c", WAITING, "average", source, "-o", output]
        run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)  # noqa: S603 - our own
        running.append(run)
        assert run.stdout.readline() == "in the middle\n"
        return run

    yield start
    for run in running:
        run.kill()
        run.communicate()


def drafts(folder):
    return list(folder.glob(".treefold-*.tmp"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
class TestRuns:
    @pytest.mark.parametrize("output", OUTPUTS)
    def test_that_were_killed_leave_a_draft_until_the_next(self, in_the_middle, tmp_path, output):
        source = save(tmp_path / "model", 1)
        killed = in_the_middle(source, output)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(drafts(tmp_path)) == 1
        for name, left in ((f"another-{output}", 1), (output, 0)):
            average_checkpoints([source], tmp_path / name)
            assert len(drafts(tmp_path)) == left

    @pytest.mark.parametrize("output", OUTPUTS)
    def test_to_one_output_are_not_two(self, in_the_middle, tmp_path, output):
        source = save(tmp_path / "model", 1)
        first = in_the_middle(source, output)
        sentence = r"^Another run is writing to --output '.*'\. Wait for it, or name another output\.$"
        with pytest.raises(CheckpointError, match=sentence):
            average_checkpoints([source], tmp_path / output)
        assert len(drafts(tmp_path)) == 1
        first.communicate("go on\n")
        assert first.returncode == 0
        assert drafts(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
class TestFullDisks:
    @pytest.mark.parametrize("output", OUTPUTS)
    def test_are_one_sentence(self, refused, tmp_path, output):
        (tmp_path / "big").mkdir()
        save_file({"w": np.ones(1 << 19)}, tmp_path / "big" / "model.safetensors")
        (tmp_path / "other").write_bytes(b"older")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            assert refused(tmp_path / "big", output=output) == f"--output cannot write '{output}': file too large."
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
