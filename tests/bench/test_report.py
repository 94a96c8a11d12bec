"""The report of a few small works: what it writes, and what it keeps when it cannot go on."""

import pytest
from written_runs import run_of_json

from treefold.bench import report_run
from treefold.bench.clock import Pace
from treefold.bench.figures import Entry
from treefold.bench.report_run import Report, make_report
from treefold.bench.sweep import Progress
from treefold.bench.work import Work

PACE = Pace(rounds=2, warmup=0)
SMALL = Entry("in-place 4096", Work("4 KiB", ((1024,),), threads=1), PACE, ("numpy",), is_in_sweep=True)
TOO_LARGE = Entry("in-place huge", Work("huge", ((1 << 50,),), threads=1), PACE)


@pytest.fixture
def report(monkeypatch, tmp_path):
    """Return a function that makes the report of some entries, and returns the run that was written."""

    def make(entries, progress=None):
        monkeypatch.setattr(report_run, "make_entries", lambda _pace, **_: entries)
        asked = Report(tmp_path, "2026-01-02", PACE, 1, "treefold bench --report x")
        page = make_report(asked, progress=progress or Progress(), on_entry=lambda _done, _all: None)
        assert page == tmp_path / "2026-01-02.md"
        return run_of_json((tmp_path / "2026-01-02.json").read_text())

    return make


class TestMakeReport:
    def test_writes_a_page_its_data_and_its_picture(self, report, tmp_path):
        """The row is on the page, with its rival; the picture is a PNG."""
        run = report([SMALL])
        assert [(row.name, row.wrong, [rival.peer for rival in row.rivals]) for row in run.rows] == [
            ("4 KiB", 0, ["numpy"])
        ]
        assert "| 4 KiB" in (tmp_path / "2026-01-02.md").read_text()
        assert (tmp_path / "2026-01-02.png").read_bytes().startswith(b"\x89PNG")

    def test_notes_what_does_not_fit(self, report, tmp_path):
        """The sentence of the error stands on the page, and the other works are measured."""
        run = report([TOO_LARGE, SMALL])
        assert [row.name for row in run.rows] == ["4 KiB"]
        assert "- huge needs " in (tmp_path / "2026-01-02.md").read_text()

    def test_keeps_what_was_measured_before_an_interrupt(self, report):
        """Ctrl-C ends the measuring, not the report."""
        begun = []

        def begin(name):
            begun.append(name)
            if begun.count(begun[0]) == 2:
                raise KeyboardInterrupt

        run = report([SMALL, SMALL], Progress(begin))
        assert [row.name for row in run.rows] == ["4 KiB"]
        assert run.notes[-1] == "interrupted at 4 KiB: 1 of 2 works are measured"
