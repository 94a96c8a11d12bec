import json
import re
import sys

import pytest
from written_runs import rows_of_csv, run_of_json

from treefold.cli import main
from treefold.execution.host import describe_machine

QUICK = ("bench", "-n", "2", "-w", "0", "--devices", "3", "--threads", "1")


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([*QUICK, *arguments])
    return ended.value.code or 0


class TestBenchCommand:
    def test_prints_a_table_and_writes_what_is_asked(self, tmp_path, capsys):
        paths = {kind: tmp_path / f"run.{kind}" for kind in ("json", "csv")}
        outputs = ("--json", str(paths["json"]), "--csv", str(paths["csv"]))
        assert run("-b", "4K", "-e", "64K", "-f", "4", "--against", "numpy", *outputs) == 0
        written = run_of_json(paths["json"].read_text())
        assert [row.nbytes for row in written.rows] == [4096, 16384, 65536]
        assert all(row.wrong == 0 and row.rivals[0].wrong == 0 for row in written.rows)
        assert rows_of_csv(paths["csv"].read_text()) == written.rows
        captured = capsys.readouterr()
        assert "busbw (GB/s)" in captured.out
        assert "np.add(out=)" in captured.out

    def test_names_what_stands_above_the_table(self, capsys):
        assert run("-b", "4K", "-e", "4K") == 0
        header = capsys.readouterr().out.partition("\n\n")[0].splitlines()
        names = [line.partition(":")[0] for line in header]
        assert names[-6:] == ["versions", "work", "plain copy", "time", "% of limit", "#wrong"]
        assert names[:-6] == list(describe_machine())
        assert "work:         3 replicas, 1 thread, accumulate=exact, sizes per replica" in header

    def test_json_has_the_derived_bandwidths(self, tmp_path):
        path = tmp_path / "run.json"
        assert run("-b", "4K", "-e", "4K", "--out-of-place", "--json", str(path)) == 0
        row = json.loads(path.read_text())["rows"][0]
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * 4 / 3)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("-b", "4Q"), "-b got '4Q'. It takes a number of bytes of at least 1, with K, M or G: 4K, 256M."),
            (("-b", "8K", "-e", "4K"), "-b got 8192 bytes and -e got 4096. The sweep goes up: -e must be at least -b."),
            (("-f", "1"), "-f got 1. It takes a whole number of at least 2."),
            (("-n", "0"), "-n got 0. It takes a whole number of at least 1."),
            (("--threads", "0"), "--threads got 0. It takes a whole number of at least 1."),
            (("--new", "--shared"), "--new, --shared all say where results go; give one of them."),
            (
                ("--against", "numpy,nccl"),
                "--against got 'nccl'. It takes one of all, numpy, torch.",
            ),
            (
                ("--model", "resnet51"),
                "--model got 'resnet51'. It takes one of resnet50, vgg16, bert-base, bert-large, gpt2, vit-b-16.",
            ),
            (("--json", "no/such/run.json"), "--json cannot write 'no/such/run.json': no such file or directory."),
        ],
    )
    def test_refuses_in_one_sentence_with_exit_code_2(self, arguments, sentence, capsys):
        assert run(*arguments) == 2
        assert capsys.readouterr().err == f"treefold: {sentence}\n"

    def test_a_named_baseline_that_is_missing_is_refused(self, monkeypatch, capsys):
        monkeypatch.setattr("treefold.cli.bench_ranks.has_module", lambda _: False)
        assert run("--against", "torch") == 2
        sentence = '--against torch needs torch, which is not installed. Run pip install "treefold[bench]".'
        assert capsys.readouterr().err == f"treefold: {sentence}\n"

    def test_one_of_all_that_is_missing_is_a_row(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert run("-b", "4K", "-e", "4K", "--against", "all") == 0
        out = capsys.readouterr().out
        assert re.search(r"^4 KiB in-place +torch +not installed ", out, re.MULTILINE)
        assert re.search(r"^4 KiB in-place +numpy +np\.add\(out=\) ", out, re.MULTILINE)
