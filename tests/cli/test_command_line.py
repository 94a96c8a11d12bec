import errno
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import typer

import treefold as package
from treefold.cli.app import COMMANDS, make_app
from treefold.cli.needs import EXTRAS


class TestTreefold:
    def test_shows_its_commands_when_called_alone(self, treefold):
        outcome = treefold()
        assert (outcome.code, outcome.err) == (2, "")
        assert "demo" in outcome.out

    def test_prints_its_version(self, treefold):
        outcome = treefold("--version")
        assert (outcome.code, outcome.out) == (0, f"treefold {package.__version__}\n")

    def test_runs_as_a_module(self):
        run = subprocess.run(
            [sys.executable, "-m", "treefold.cli", "--version"], capture_output=True, text=True, check=True
        )
        assert run.stdout == f"treefold {package.__version__}\n"

    def test_loads_no_learning_library_to_show_its_help(self):
        """The command line is quick: scikit-learn is imported by the training, not by the help."""
        code = (
            "import sys; from treefold.cli.app import make_app; make_app(); "
            "print([m for m in ('sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert run.stdout == "[]\n"


class TestHelp:
    @pytest.mark.parametrize("command", [command.name for command in COMMANDS])
    def test_is_short_for_h_and_has_two_examples(self, treefold, command):
        outcome = treefold(command, "-h")
        assert outcome == treefold(command, "--help")
        examples = outcome.out.partition("  Examples:\n")[2].splitlines()
        assert len(examples) >= 2
        assert all("treefold " in example for example in examples)

    @pytest.mark.parametrize("example", [example for command in COMMANDS for example in command.examples])
    def test_examples_can_be_called(self, example):
        program, name, *arguments = shlex.split(example.rpartition("| ")[2].partition(" > ")[0])
        assert program == "treefold"
        command = typer.main.get_command(make_app()).commands[name]
        assert command.make_context(name, arguments).params

    def test_is_plain_in_a_pipe(self, treefold):
        assert not set("╭│\x1b") & set(treefold("plan", "--help").out)

    def test_lists_every_command_in_a_whole_line(self, treefold):
        help_ = treefold("--help").out
        assert [command.summary for command in COMMANDS if command.summary not in help_] == []


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["dance"], "No such command 'dance'. See treefold --help."),
            (["pln"], "No such command 'pln'. Did you mean 'plan'? See treefold --help."),
            (["plan", "--nosuch"], "No such option: --nosuch. See treefold plan --help."),
            (["average", "a.npz"], "Missing option '--output' / '-o'. See treefold average --help."),
            (["topology", "--draw", "m.gif"], "--draw got 'm.gif'. It draws .html, .svg; name the file so."),
        ],
    )
    def test_are_one_line_each(self, treefold, arguments, sentence):
        outcome = treefold(*arguments)
        assert (outcome.code, outcome.out, outcome.err) == (2, "", f"treefold: {sentence}\n")

    @pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")
    @pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
    def test_are_none_where_a_stream_is_closed(self, closed):
        command = f"{shlex.quote(sys.executable)} -m treefold.cli topology dgx2 {closed}"
        assert subprocess.run(command, shell=True, check=False).returncode == 0  # noqa: S602 - the test's own words

    @pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
    def test_of_a_full_disk_is_one_line_too(self):
        with pathlib.Path("/dev/full").open("w") as full:
            run = subprocess.run(
                [sys.executable, "-m", "treefold.cli", "topology", "dgx2"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert (run.returncode, run.stderr) == (
            2,
            "treefold: The output cannot be used any further: no space left on device.\n",
        )

    @pytest.mark.skipif(os.name != "posix", reason="needs a shell that limits open files")
    def test_of_too_few_open_files_says_how_to_raise_the_limit(self):
        command = f"ulimit -n 10; {shlex.quote(sys.executable)} -m treefold.cli run -n 2 {shlex.quote(__file__)}"
        run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - as above
        assert (run.returncode, run.stderr) == (
            2,
            "treefold: The system lets this process open too few files (too many open files). Raise the limit, for "
            "example with ulimit -n 4096; treefold run needs about two files for every rank.\n",
        )

    def test_of_too_many_processes_says_what_to_raise(self, treefold, monkeypatch):
        def refuse(*_, **__):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr("treefold.cli.run.subprocess.Popen", refuse)
        outcome = treefold("run", "-n", 2, __file__)
        assert (outcome.code, outcome.err) == (
            2,
            "treefold: The system starts no more processes (resource temporarily unavailable). Raise the limit of this "
            "user (ulimit -u) or of the container, or start fewer ranks.\n",
        )

    def test_of_a_wrong_value_names_its_option(self, treefold):
        err = treefold("demo", "--devices", "foo").err
        assert err.startswith("treefold: Invalid value for '--devices': Input should be a valid integer")
        assert err.count("\n") == 1


class TestMissingExtra:
    """Without its extras a command says in one sentence what to install, and that is enough."""

    def test_names_the_extra_of_the_demo(self, treefold, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        outcome = treefold("demo", "--steps", 1)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == (
            'treefold: This command needs scikit-learn, which is not installed. Run pip install "treefold[demo]".\n'
        )

    def test_names_the_extra_of_an_average(self, treefold, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        outcome = treefold("average", "a.pt", "b.pt", "-o", tmp_path / "m.safetensors")
        assert outcome.err == (
            'treefold: This command needs ml_dtypes, which is not installed. Run pip install "treefold[files]".\n'
        )

    def test_asks_for_nothing_that_an_average_does_without(self, treefold, monkeypatch, tmp_path):
        for module in ("safetensors", "torch"):
            monkeypatch.setitem(sys.modules, module, None)
        for replica in range(2):
            np.savez(tmp_path / f"{replica}.npz", w=np.full(3, 2.0**replica))
        for output in ("m.safetensors", "m.pt"):
            outcome = treefold("average", tmp_path / "0.npz", tmp_path / "1.npz", "-o", tmp_path / output)
            assert outcome.code == 0
        assert treefold("average", tmp_path / "m.pt", tmp_path / "m.safetensors", "-o", tmp_path / "n.npz").code == 0

    @pytest.mark.parametrize("name", EXTRAS)
    def test_are_those_of_the_project(self, name):
        text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        wanted = tomllib.loads(text)["project"]["optional-dependencies"][name]
        brought = {re.match(r"[\w.-]+", one)[0] for one in wanted}
        assert set(EXTRAS[name].packages.values()) <= brought
