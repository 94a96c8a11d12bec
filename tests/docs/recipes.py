"""Programs on pages that need packages of `make test-recipes`, which runs this file."""

import shutil
import subprocess
import sys

import pytest
from papers import PAPERS, ROOT, is_shown, programs_of

PROGRAMS = [
    pytest.param(paper, block, shown, id=f"{paper}:{block.line}")
    for paper in PAPERS
    for block, shown in programs_of(paper, "recipe")
]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(folder, *command):
    """Run a program as a reader does, and return how it ended."""
    return subprocess.run(  # noqa: S603 - the pages' own programs
        [sys.executable, *command], cwd=folder, capture_output=True, encoding="utf-8", timeout=300, check=False
    )


class TestPrograms:
    def test_there_are_some(self):
        assert len(PROGRAMS) >= 3

    @pytest.mark.parametrize(("paper", "block", "shown"), PROGRAMS)
    def test_runs_and_prints_what_is_shown(self, paper, block, shown, tmp_path):
        shutil.copytree(ROOT / "examples" / "callbacks", tmp_path, dirs_exist_ok=True)
        script = tmp_path / "train.py"
        script.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
        done = run(tmp_path, *(TORCHRUN if "init_process_group" in block.text else []), script)
        assert done.returncode == 0, done.stderr
        assert is_shown(shown, done.stdout), f"{paper}:{block.line} prints\n{done.stdout}"


class TestTheBackendsName:
    """As the page says, these look it up in lists of their own."""

    @pytest.mark.parametrize(
        "program",
        [
            "from accelerate import Accelerator, InitProcessGroupKwargs\n"
            "Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend='treefold')])",
            "from transformers import TrainingArguments\n"
            "TrainingArguments('trained', use_cpu=True, ddp_backend='treefold').world_size",
        ],
    )
    def test_is_refused(self, program, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(f"import treefold.torch\n{program}", encoding="utf-8")
        done = run(tmp_path, *TORCHRUN, script)
        assert done.returncode
        assert "treefold is not available" in done.stderr
