import io
import json
import sys

import pytest

SIMULATE = ("simulate", "-t", "ring:4", "-s", "64K,16M")


class TestSimulate:
    def test_sweeps_sizes(self, treefold):
        plain = json.loads(treefold(*SIMULATE, "--json").out)
        assert {row["size"] for row in plain["predicted"]} == {2**16, 2**24}
        assert len({row["method"] for row in plain["predicted"]}) == 8
        assert all(row["size"] / row["seconds"] <= 100e9 / 3 for row in plain["predicted"])
        table = treefold(*SIMULATE).out
        assert table.splitlines()[:2] == [
            "ring:4, 4 GPUs, 16 MiB per GPU: 515 µs, by rings as NCCL's",
            "predicted time (GB/s of algorithm bandwidth, at most 33.33 GB/s)",
        ]
        assert [line.split()[0] for line in table.splitlines()[5:7]] == ["64", "16"]
        assert "\nchecked:     from 256 MiB on, against published bandwidths " in table

    def test_shows_its_table_and_its_curves_on_the_page(self, treefold, tmp_path):
        treefold(*SIMULATE, "--plot", tmp_path / "s.html")
        page = (tmp_path / "s.html").read_text()
        assert page.count("<section>") == page.count("<table>") == 1
        assert "<h1>ring:4, 4 GPUs, 16 MiB per GPU: 515 µs, by rings as NCCL&#x27;s</h1>" in page
        treefold("simulate", "-t", "ring:4", "-s", "1M", "--plot", tmp_path / "one.svg")
        assert (tmp_path / "one.svg").read_text().count('class="tf-bar ') == 8

    def test_says_that_one_device_has_nothing_to_reduce(self, treefold, tmp_path):
        for kind in ("html", "svg"):
            outcome = treefold("simulate", "-t", "ring:1", "--plot", tmp_path / f"s.{kind}")
            assert outcome.code == 0
            assert outcome.out.splitlines()[0] == "ring:1: one device, nothing to reduce"
            assert "gpu:0" in (tmp_path / f"s.{kind}").read_text()

    def test_takes_a_plan_from_a_file_and_from_a_pipe(self, treefold, tmp_path, monkeypatch):
        path = tmp_path / "p.json"
        treefold("plan", "-t", "ring:4", "-s", "1M", "--save", path)
        from_file = treefold(*SIMULATE, "--plan", path, "--json").out
        monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
        assert treefold(*SIMULATE, "--plan", "-", "--json").out == from_file
        assert {row["method"] for row in json.loads(from_file)["predicted"]} == {"this plan"}

    def test_writes_a_trace(self, treefold, tmp_path):
        treefold(*SIMULATE, "--trace", tmp_path / "t.json")
        assert json.loads((tmp_path / "t.json").read_text())["otherData"]["nbytes"] == 2**24

    @pytest.mark.parametrize("machine", [["-"], ["-t", "-"]])
    def test_refuses_two_pipes(self, treefold, machine):
        outcome = treefold("simulate", *machine, "--plan", "-")
        assert outcome.code == 2
        assert outcome.err == (
            "treefold: The machine and --plan are both '-', and there is one standard input; save one of them to a "
            "file.\n"
        )

    def test_refuses_a_plan_that_is_none(self, treefold, tmp_path):
        outcome = treefold(*SIMULATE, "--plan", "none.json")
        assert outcome.code == 2
        assert outcome.err == (
            "treefold: --plan cannot read 'none.json': no such file or directory. Write plans with treefold plan "
            "--save.\n"
        )
        (tmp_path / "p.json").write_bytes(b"\xff")
        assert ": it is no text. Write plans with " in treefold(*SIMULATE, "--plan", tmp_path / "p.json").err
        (tmp_path / "p.json").write_text("{}")
        outcome = treefold(*SIMULATE, "--plan", tmp_path / "p.json")
        assert outcome.code == 2
        assert outcome.err.startswith("treefold: This text is no plan: ")
