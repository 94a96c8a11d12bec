"""The report of a few small works: what it writes, and what it keeps when it cannot go on."""

import importlib.util
from pathlib import Path

import pytest
from written_runs import run_of_json

from memory_bench import report as report_module
from memory_bench.figures import Entry
from memory_bench.report import Report, make_report
from treefold.bench.clock import Pace
from treefold.bench.sweep import Progress
from treefold.bench.work import Work

PACE = Pace(rounds=2, warmup=0)
SMALL = Entry("in-place 4096", Work("4 KiB", ((1024,),), threads=1), PACE, ("numpy",), is_in_sweep=True)
TOO_LARGE = Entry("in-place huge", Work("huge", ((1 << 50,),), threads=1), PACE)


@pytest.fixture
def report(monkeypatch, tmp_path):
    """Return a function that makes the report of some entries, and returns the run that was written."""

    def make(entries, progress=None):
        monkeypatch.setattr(report_module, "make_entries", lambda _pace, **_: entries)
        asked = Report(tmp_path, "2026-01-02", PACE, 1, "python benchmarks/memory.py")
        page = make_report(asked, progress=progress or Progress(), on_entry=lambda _done, _all: None)
        assert page == tmp_path / "2026-01-02.md"
        return run_of_json((tmp_path / "2026-01-02.json").read_text())

    return make


class TestMakeReport:
    def test_writes_a_page_its_data_and_its_picture(self, report, tmp_path):
        run = report([SMALL])
        assert [(row.name, row.wrong, [rival.peer for rival in row.rivals]) for row in run.rows] == [
            ("4 KiB", 0, ["numpy"])
        ]
        assert "| 4 KiB" in (tmp_path / "2026-01-02.md").read_text()
        assert (tmp_path / "2026-01-02.png").read_bytes().startswith(b"\x89PNG")

    def test_notes_what_does_not_fit(self, report, tmp_path):
        run = report([TOO_LARGE, SMALL])
        assert [row.name for row in run.rows] == ["4 KiB"]
        assert "- huge needs " in (tmp_path / "2026-01-02.md").read_text()

    def test_keeps_what_was_measured_before_an_interrupt(self, report):
        begun = []

        def begin(name):
            begun.append(name)
            if begun.count(begun[0]) == 2:
                raise KeyboardInterrupt

        run = report([SMALL, SMALL], Progress(begin))
        assert [row.name for row in run.rows] == ["4 KiB"]
        assert run.notes[-1] == "interrupted at 4 KiB: 1 of 2 works are measured"


class TestProgram:
    @pytest.fixture
    def program(self, monkeypatch):
        """Return ``benchmarks/memory.py`` as a module, which measures one small work."""
        path = Path(__file__).parents[2] / "benchmarks" / "memory.py"
        spec = importlib.util.spec_from_file_location("benchmarks_memory", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(report_module, "make_entries", lambda _pace, **_: [SMALL])
        return module

    def test_writes_the_report_and_says_where(self, program, tmp_path, capsys):
        assert program.main(["-n", "2", "-w", "0", "--threads", "1", "--output", str(tmp_path / "new")]) == 0
        page = Path(capsys.readouterr().out.strip())
        assert sorted(path.suffix for path in page.parent.iterdir()) == [".json", ".md", ".png"]
        assert "- made by `python benchmarks/memory.py" in page.read_text()

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["-n", "0"], "-n got 0. It takes a whole number of at least 1."),
            (["-w", "-1"], "-w got -1. It takes a whole number of at least 0."),
            (["--threads", "0"], "--threads got 0. It takes a whole number of at least 1."),
            (["--output", "/dev/null"], "--output cannot write '/dev/null/report.md'"),
        ],
    )
    def test_refuses_what_it_cannot_do(self, program, words, sentence, capsys):
        assert program.main(words) == 2
        assert capsys.readouterr().err.startswith(f"benchmarks/memory.py: {sentence}")
