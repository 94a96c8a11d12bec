"""Commands with output that nobody reads to its end, as in ``treefold … | head -1``."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

#: As a shell reports a program that SIGPIPE has killed.
SIGPIPE = 128 + 13


@pytest.fixture
def unread(tmp_path):
    """Return a function that runs the command with an output that nobody reads, and returns its code and its words."""

    def run(*words):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                [sys.executable, "-m", "treefold.cli", *words],
                cwd=tmp_path,
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        finally:
            os.close(writer)
        return done.returncode, done.stderr

    return run


class TestClosedPipe:
    @pytest.mark.parametrize(
        "words",
        [
            ("--help",),
            ("topology", "dgx2"),
            ("bench", "-e", "4K", "-n", "1"),
            ("demo", "--devices", "3", "--steps", "2"),
        ],
    )
    def test_ends_a_command_as_sigpipe_would(self, unread, words):
        """Without a word, whether its lines are printed one by one or all at the end."""
        assert unread(*words) == (SIGPIPE, "")

    @pytest.mark.parametrize(
        ("words", "file"),
        [
            (("plan", "-t", "ring:3", "-s", "1M", "--draw"), "plan.html"),
            (("plan", "-t", "ring:3", "-s", "1M", "--json", "--save"), "plan.json"),
            (("simulate", "-t", "ring:3", "-s", "1M", "--plot"), "sizes.svg"),
            (("topology", "ring:3", "--draw"), "machine.svg"),
            (("bench", "-e", "4K", "-n", "1", "--json"), "run.json"),
            (("bench", "--ranks", "2", "-e", "4K", "-n", "1", "--json"), "ranks.json"),
            (("demo", "--devices", "3", "--steps", "2", "--report"), "demo.html"),
        ],
    )
    def test_loses_no_file(self, unread, tmp_path, words, file):
        assert unread(*words, file) == (SIGPIPE, "")
        assert (tmp_path / file).stat().st_size > 0


class TestProgress:
    @pytest.mark.parametrize("force", [{}, {"FORCE_COLOR": "1"}])
    @pytest.mark.parametrize(
        "words",
        [
            ("average", "0.npz", "1.npz", "-o", "mean.npz"),
            ("demo", "--devices", "3", "--steps", "2"),
            ("plan", "ring:4"),
            ("simulate", "ring:4"),
        ],
    )
    def test_does_not_reach_a_pipe(self, tmp_path, words, force):
        for replica in range(2):
            np.savez(tmp_path / f"{replica}.npz", w=np.full(3, 2.0**replica))
        command = [sys.executable, "-m", "treefold.cli", *words]
        environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | force
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout

    @pytest.mark.parametrize("command", ["plan", "simulate"])
    def test_of_plans_names_what_runs(self, in_terminal, command):
        sent = in_terminal(command, "ring:4", "--size", "64K,1M")
        assert re.search(r"2/3.*predicting 1 MiB", sent)  # the last that is drawn
