import re
import types

import pytest

import lab
from treefold.cli import main


@pytest.fixture
def treefold(capfd):
    """Run the command line in this process; what programs that it starts print is there, too."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        written = capfd.readouterr()
        return types.SimpleNamespace(code=stopped.value.code or 0, out=written.out, err=written.err)

    return run


class TestBenchOfHosts:
    """``treefold bench --hosts`` runs the benchmark of the clone that the package belongs to."""

    def test_passes_its_options_on(self, treefold):
        outcome = treefold("bench", "--hosts", "--", "--help")
        assert outcome.code == 0
        assert "Measure all-reduces between emulated hosts." in outcome.out

    def test_passes_its_exit_code_on(self, treefold):
        outcome = treefold("bench", "--hosts", "--", "--scenes", "moon")
        assert outcome.code == 2
        assert "invalid choice: 'moon'" in outcome.err

    def test_passes_on_why_there_is_no_lab(self, treefold, monkeypatch):
        monkeypatch.setenv("PATH", "")
        outcome = treefold("bench", "--hosts")
        assert outcome.code == 2
        assert re.fullmatch(r"A lab needs unshare, nsenter, ip, tc \(.*\) on the PATH\.\n", outcome.err)

    def test_measures(self, treefold):
        if reason := lab.missing():
            pytest.skip(reason)
        words = ["--rounds", "1", "--scenes", "two NICs", "--peers", "raw sockets"]
        outcome = treefold("bench", "--hosts", "--", *words)
        assert outcome.code == 0
        assert "| network (Mbit/s) | ranks | value | X\\*, MB/s | raw sockets |" in outcome.out

    def test_finds_the_clone_in_the_current_folder(self, treefold, monkeypatch, tmp_path):
        monkeypatch.setattr("treefold.__file__", str(tmp_path / "lib" / "python3.11" / "treefold" / "__init__.py"))
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks" / "hosts.py").write_text("import sys; print('the clone got', *sys.argv[1:])")
        (tmp_path / "tools" / "lab").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        outcome = treefold("bench", "--hosts", "--", "--rounds", "1")
        assert (outcome.code, outcome.out) == (0, "the clone got --rounds 1\n")

    def test_is_refused_without_a_clone(self, treefold, monkeypatch, tmp_path):
        monkeypatch.setattr("treefold.__file__", str(tmp_path / "lib" / "python3.11" / "treefold" / "__init__.py"))
        monkeypatch.chdir(tmp_path)
        outcome = treefold("bench", "--hosts")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == (
            "treefold: --hosts runs benchmarks/hosts.py, which is in treefold's repository and not in the package. Run "
            "it in a clone, as root on Linux.\n"
        )

    def test_words_need_hosts(self, treefold):
        outcome = treefold("bench", "smoke")
        assert outcome.err == (
            "treefold: treefold bench got 'smoke'. Only --hosts takes words behind --; options begin with -.\n"
        )
        assert outcome.code == 2
