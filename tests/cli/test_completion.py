"""The completions that a shell gets for the tabulator key."""

import os
import shlex
import subprocess
import sys

import pytest

from treefold.bench.baselines import BASELINES
from treefold.bench.work import ACCUMULATIONS, MODELS
from treefold.cli.completion import endings
from treefold.cli.planning.options import WORDS
from treefold.dtypes import REDUCIBLE
from treefold.reduce_op import ReduceOp
from treefold.topology import known_names
from treefold.topology.known import LENDERS


def completed(line):
    """Return what bash offers for the last word of a line."""
    words = shlex.split(line)
    at = len(words) if line.endswith(" ") else len(words) - 1
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(at), "_TREEFOLD_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "treefold.cli"], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


class TestCompletion:
    @pytest.mark.parametrize(
        ("line", "offered"),
        [
            ("treefold to", ["topology"]),
            ("treefold plan -t dgx1", ["dgx1_p100", "dgx1_v100"]),
            ("treefold topology mi300x_", ["mi300x_raw"]),
            ("treefold plan mi300x_", ["mi300x_raw"]),
            ("treefold plan --nvlinks dgx_b", ["dgx_b200"]),
            ("treefold plan --draw out/plan.s", ["out/plan.svg"]),
            ("treefold bench --op m", ["mean", "min", "max"]),
            ("treefold bench --dtype bf", ["bfloat16"]),
            ("treefold bench --model bert", ["bert-base", "bert-large"]),
            ("treefold bench --against numpy,t", ["numpy,torch"]),
            ("treefold simulate -t ./file", []),
        ],
    )
    def test_offers_values(self, line, offered):
        assert completed(line) == offered

    def test_can_be_installed_and_shown(self, treefold):
        assert "--install-completion" in treefold("--help").out

    def test_has_words_about_every_known_machine(self):
        assert tuple(WORDS) == known_names()

    def test_of_a_picture_waits_for_the_dot(self):
        picture = endings(".html", ".svg")
        assert picture("plan") == picture("./.") == []
        assert picture("plan.") == ["plan.html", "plan.svg"]

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            ("bench --op", [op.value.lower() for op in ReduceOp]),
            ("bench --dtype", REDUCIBLE),
            ("bench --model", MODELS),
            ("bench --accumulate", ACCUMULATIONS),
            ("bench --against", ["all", *BASELINES]),
            ("plan --nvlinks", LENDERS),
        ],
    )
    def test_offers_all_that_an_option_takes(self, option, words):
        """Lists are written beside their options, so that completion loads nothing else."""
        assert completed(f"treefold {option} ") == list(words)
