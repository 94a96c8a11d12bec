import subprocess
import sys

import treefold as package


class TestTreefold:
    def test_shows_its_commands_when_called_alone(self, treefold):
        """Without arguments the help is shown, and it names the commands."""
        assert "demo" in treefold().out

    def test_prints_its_version(self, treefold):
        """--version prints the package's version and nothing else."""
        outcome = treefold("--version")
        assert (outcome.code, outcome.out) == (0, f"treefold {package.__version__}\n")

    def test_runs_as_a_module(self):
        """``python -m treefold.cli`` is the same command."""
        run = subprocess.run(
            [sys.executable, "-m", "treefold.cli", "--version"], capture_output=True, text=True, check=True
        )
        assert run.stdout == f"treefold {package.__version__}\n"

    def test_loads_no_learning_library_to_show_its_help(self):
        """The command line is quick: scikit-learn is imported by the training, not by the help."""
        code = (
            "import sys, treefold.cli.app; print([m for m in ('sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        assert run.stdout == "[]\n"

    def test_refuses_an_unknown_command(self, treefold):
        """An unknown command is an error of usage: exit code 2."""
        assert treefold("dance").code == 2


class TestMissingExtra:
    """Without its extra a command says in one sentence what to install."""

    def test_names_the_extra_of_the_demo(self, treefold, monkeypatch):
        """No scikit-learn: the demo needs ``treefold[demo]``."""
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        outcome = treefold("demo", "--steps", 1)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == (
            "treefold: This command needs the module sklearn, which is not installed; "
            "run: pip install 'treefold[demo]'\n"
        )
