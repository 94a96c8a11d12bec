"""Every block of code on every page runs, and prints what the page shows."""

import contextlib
import json
import os
import re
import shlex
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from papers import PAPERS, ROOT, blocks_of, is_shown, programs_of

LANGUAGES = {"python", "text", "console", "sh", "json", "diff", "", "{toctree}", "{eval-rst}", "{raw} html"}
# As in conftest.py: behind TensorFlow, Triton aborts the process. Where a page has its title, a program has this line.
FIRST_LINE = "with __import__('contextlib').suppress(ImportError): import triton._C.libtriton"
END_OF_BLOCK = "\x1e"
#: The programs that pages run, and their modules.
COMMANDS = {"treefold": "treefold.cli", "torchrun": "torch.distributed.run"}


def having(*languages):
    return [paper for paper in PAPERS if any(block.language in languages for block in blocks_of(paper))]


@pytest.fixture
def run(programs, folder):
    """Return what runs a program or a command without colours and returns what it prints; it must end well."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0", "NO_COLOR": "1", "COLUMNS": "120"}

    def run(*command, **options):
        environment = os.environ | quiet | {"PYTHONIOENCODING": "utf-8"}
        done = programs.run(command, cwd=folder, env=environment, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the pages' commands read."""
    import torch  # noqa: PLC0415 - loaded by those who ask
    from safetensors.numpy import save_file  # noqa: PLC0415 - as above

    top = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", top / "examples")
    for number, name in enumerate("abc"):
        tensors = {"weight": np.full(3, 2.0**number, np.float32)}
        save_file(tensors, top / f"{name}.safetensors")
        np.savez(top / f"delta{name}.npz", **tensors)
        (top / f"run{name}").mkdir()
        torch.save({"weight": torch.from_numpy(tensors["weight"])}, top / f"run{name}" / "model.pt")
    save_layouts(top)
    h100 = 'class="0x030200" vendor="0x10de" device="0x2330" link_speed="32 GT/s" link_width="16"'
    slots = "".join(f'<pci busid="0000:{number}0:00.0" {h100}/>' for number in range(1, 9))
    (top / "cloud.xml").write_text(f'<system version="1"><cpu numaid="0" arch="x86_64">{slots}</cpu></system>')
    for block in (block for paper in having("json") for block in blocks_of(paper) if block.language == "json"):
        if name := json.loads(block.text).get("name"):
            (top / f"{name}.json").write_text(block.text)
    for block in (block for paper in having("python") for block in blocks_of(paper) if block.file):
        (top / block.file).write_text(block.text)
    return top


def save_layouts(top):
    """Write a tiny checkpoint of every layout that the page on averaging names."""
    import torch  # noqa: PLC0415 - loaded by those who ask
    from safetensors.torch import save_file  # noqa: PLC0415 - as above
    from torch.distributed import checkpoint as distributed  # noqa: PLC0415 - as above

    (top / "lightning").mkdir()
    for replica in range(2):
        weights = {"embed.weight": torch.full((4, 2), 2.0**replica), "head.weight": torch.full((4, 2), 2.0**replica)}
        for name in (f"llama{replica}", f"trainer/checkpoint-{(9, 10)[replica]}00"):
            (top / name).mkdir(parents=True)
            save_file(weights, top / name / "model.safetensors", metadata={"format": "pt"})
            (top / name / "config.json").write_text('{"dtype": "float32"}')
        torch.save({"state_dict": weights, "epoch": replica}, top / "lightning" / f"step={replica}.ckpt")
        torch.save({"model": weights, "ema": weights}, top / f"timm{replica}.pt")
        with warnings.catch_warnings(action="ignore"):  # that no process group is there
            distributed.save({"model": weights}, checkpoint_id=top / f"fsdp{replica}", no_dist=True)


@pytest.mark.parametrize("paper", PAPERS)
class TestBlocks:
    def test_say_what_they_are(self, paper):
        blocks = blocks_of(paper)
        literal = [block for block in blocks if not block.language.startswith("{literalinclude}")]
        assert {block.language for block in literal} <= LANGUAGES
        assert [block.line for block in blocks if not block.language and not re.search("[│├─→]", block.text)] == []
        before = dict(zip(blocks[1:], blocks[:-1], strict=True))
        texts = [block for block in blocks if block.language == "text"]
        assert [one.line for one in texts if not one.follows or before[one].language != "python"] == []


@pytest.mark.parametrize(
    "paper", [paper for paper in PAPERS if paper != "CHANGELOG.md" and not paper.startswith("docs/adr")]
)
class TestWords:
    """Paragraphs have at most 90 words, and cells of tables 25; records of decisions and changes are not cut."""

    def test_are_not_too_many(self, paper):
        text = re.sub(r"^```.*?^```$", "", (ROOT / paper).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        parts = [part for part in re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\|))", text) if not part.startswith("#")]
        cells = [cell for part in parts if part.startswith("|") for cell in part.split("|")]
        assert [part for part in parts if len(part.split()) > 90 and not part.startswith("|")] == []
        assert [cell for cell in cells if len(cell.split()) > 25] == []


def written(script, *blocks):
    """Write a program that has each block on the lines that it has on its page, as an error names them."""
    lines = [""] * (max(block.line + block.text.count("\n") for block in blocks) + 1)
    lines[0] = FIRST_LINE
    for block in blocks:
        end = block.line - 1 + block.text.count("\n")
        lines[block.line - 1 : end] = block.text.splitlines()
        lines[end] = f"print({END_OF_BLOCK!r})"
    script.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("paper", [paper for paper in PAPERS if programs_of(paper, "page")])
class TestPython:
    def test_runs_and_prints_what_is_shown(self, paper, run, tmp_path):
        blocks = programs_of(paper, "page")
        script = tmp_path / "page.py"
        written(script, *(block for block, _ in blocks))
        options = {} if re.search(r"\b(torch|tensorflow|keras)\b", script.read_text()) else {"is_fresh": True}
        *outputs, rest = run(script, **options).split(END_OF_BLOCK + "\n")
        assert (len(outputs), rest) == (len(blocks), "")
        for (block, shown), output in zip(blocks, outputs, strict=True):
            assert shown is None or is_shown(shown, output), f"{paper}:{block.line} prints\n{output}"


@pytest.mark.parametrize(
    ("paper", "program"),
    [
        pytest.param(paper, program, id=f"{paper}:{program[0].line}")
        for paper in PAPERS
        for program in programs_of(paper, "ranks")
    ],
)
class TestRanks:
    def test_run_and_print_what_is_shown(self, paper, program, programs, folder, tmp_path):
        """Two ranks have the variables of torchrun, whose store this process holds."""
        from torch.distributed import TCPStore  # noqa: PLC0415 - loaded by those who ask

        (block, shown), script = program, tmp_path / "ranks.py"
        written(script, block)
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
        variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
        with contextlib.ExitStack() as files:
            nothing = files.enter_context(Path(os.devnull).open())
            outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            started = [
                programs.start(
                    [script],
                    cwd=folder,
                    env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    streams=[nothing.fileno(), output.fileno(), output.fileno()],
                )
                for rank, output in enumerate(outputs)
            ]
            codes = [rank.wait(60) for rank in started]
            printed = [output.seek(0) or output.read().decode() for output in outputs]
        assert codes == [0, 0], printed
        assert shown is None or is_shown(shown, printed[0].replace(END_OF_BLOCK, "")), (
            f"{paper}:{block.line}: {printed}"
        )


@pytest.mark.parametrize("paper", having("console"))
class TestConsole:
    def test_runs_and_prints_what_is_shown(self, paper, folder, run):
        for block in blocks_of(paper):
            if block.language != "console":
                continue
            for command in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, shown = command.partition("\n")
                program, *arguments = shlex.split(line, comments=True)
                found = [sorted(folder.glob(one)) if "*" in one else [one] for one in arguments]
                printed = run("-m", COMMANDS[program], *(one for some in found for one in some), is_fresh=True)
                assert not shown or is_shown(shown, printed), f"{paper}:{block.line} prints\n{printed}"


@pytest.mark.parametrize("paper", having("sh"))
class TestShell:
    def test_names_what_there_is(self, paper, treefold, monkeypatch):
        """Commands that install, test or measure for long are not run: what they name exists, but for `train.py`."""
        monkeypatch.setenv("COLUMNS", "120")
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        extras = re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
        text = "".join(block.text for block in blocks_of(paper) if block.language == "sh")
        for target in re.findall(r"\bmake ([\w-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for extra in re.findall(r"""["'](?:\.|treefold)\[([\w-]+)\]["']""", text):
            assert extra in extras
        for path in re.findall(r"\bpython (?!-|train\.py)(\S+)", text) + re.findall(r"\b(tests/\S+)", text):
            assert (ROOT / path).exists(), path
        for command, options in re.findall(r"\btreefold (\w+)(.*)", text):
            help_ = treefold(command, "--help").out
            assert [one for one in re.findall(r"(?<= )-[-\w]+", options.partition("#")[0]) if one not in help_] == []


class TestOthers:
    def test_json_is_json(self):
        blocks = [block for paper in having("json") for block in blocks_of(paper) if block.language == "json"]
        assert [json.loads(block.text) for block in blocks]

    def test_what_a_diff_adds_compiles(self):
        for paper in having("diff"):
            for block in blocks_of(paper):
                if block.language == "diff":
                    added = re.findall(r"^\+ (.*)$", block.text, re.MULTILINE)
                    assert compile("\n".join(added), paper, "exec").co_code
