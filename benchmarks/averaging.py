"""Averages three checkpoints with treefold, with mergekit and with loops that people write, and copies as many bytes.

Run ``python benchmarks/averaging.py --folder /dev/shm/models --mergekit /path/to/mergekit-yaml``. Three Llama-shaped
models of bfloat16 are made in the folder if they are missing. The page is ``results/averaging-<date>.md``. Every row is
a program of its own. Its figures are wall time with its start, processor time, and its largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

import result_pages
from treefold.cli.tables import Table

NUM_INPUTS, NUM_SHARDS = 3, 4
NUM_SMALL = 50_000
_CUT = 45  # bits of a float64 that a bfloat16 does not have
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 15, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip

TORCH_LOOP = """
import sys, torch
from safetensors.torch import load_file, save_file
*inputs, output = sys.argv[1:]
mean = load_file(inputs[0])
for path in inputs[1:]:
    for name, tensor in load_file(path).items():
        mean[name] += tensor
save_file({name: tensor / len(inputs) for name, tensor in mean.items()}, output)
"""
FLOAT32 = """
import sys, torch
from safetensors import safe_open
from safetensors.torch import save_file
*inputs, output = sys.argv[1:]
files = [safe_open(path, "pt") for path in inputs]
mean = {}
for name in files[0].keys():
    total = files[0].get_tensor(name).float()
    for file in files[1:]:
        total += file.get_tensor(name)
    mean[name] = (total / len(inputs)).bfloat16()
save_file(mean, output)
"""
NUMPY = """
import json, sys
import ml_dtypes, numpy as np
*inputs, output = sys.argv[1:]
def read(path):
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view("<u8")[0])
    return data[:start], json.loads(bytes(data[8:start])), data[start:]
files = [read(path) for path in inputs]
with open(output, "wb") as file:
    file.write(files[0][0].data)
    for name, entry in sorted(files[0][1].items(), key=lambda item: item[1].get("data_offsets", [-1])):
        if name != "__metadata__":
            total = 0
            for _, header, data in files:
                first, last = header[name]["data_offsets"]
                total = total + data[first:last].view(ml_dtypes.bfloat16).astype(np.float32)
            file.write((total / np.float32(len(files))).astype(ml_dtypes.bfloat16).tobytes())
"""
#: Starts a program from a small process: what its parent had resident counts as a program's own.
LAUNCH = """
import json, os, sys, time
began = time.perf_counter()
_, status, used = os.wait4(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ,
    file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]), 0)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss]))
sys.exit(os.waitstatus_to_exitcode(status))
"""
COPY = 'for path in "$@"; do cp "$path" "$path.copy"; done'


class Row(NamedTuple):
    """A program to be timed, and the path that it writes."""

    name: str
    command: list[str]
    output: Path


class Figures(NamedTuple):
    """The time and memory of one run."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def make_models(folder: Path) -> None:
    """Write three models, each as a folder of shards, as one safetensors file and as a PyTorch file."""
    for replica in range(NUM_INPUTS):
        if (folder / f"{replica}.pt").exists():
            continue
        torch.manual_seed(replica)
        state = {name: torch.randn(shape).mul_(0.02).bfloat16() for name, shape in shapes().items()}
        save_file(state, folder / f"{replica}.safetensors", {"format": "pt"})
        names = list(state)
        model = folder / f"model{replica}"
        model.mkdir()
        places = {}
        for shard in range(NUM_SHARDS):
            file = f"model-{shard + 1:05}-of-{NUM_SHARDS:05}.safetensors"
            inside = names[len(names) * shard // NUM_SHARDS : len(names) * (shard + 1) // NUM_SHARDS]
            save_file({name: state[name] for name in inside}, model / file, {"format": "pt"})
            places |= dict.fromkeys(inside, file)
        index = {"metadata": {}, "weight_map": places}
        (model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        torch.save(state, folder / f"{replica}.pt")


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the model's tensors by name."""
    width, inner = 1024, 2816
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32000, width)}
    for layer in range(15):
        begin = f"model.layers.{layer}"
        for name, shape in (
            ("self_attn.q_proj", (width, width)), ("self_attn.k_proj", (width // 4, width)),
            ("self_attn.v_proj", (width // 4, width)), ("self_attn.o_proj", (width, width)),
            ("mlp.gate_proj", (inner, width)), ("mlp.up_proj", (inner, width)), ("mlp.down_proj", (width, inner)),
            ("input_layernorm", (width,)), ("post_attention_layernorm", (width,)),
        ):  # fmt: skip
            found[f"{begin}.{name}.weight"] = shape
    return found | {"model.norm.weight": (width,), "lm_head.weight": (32000, width)}


def make_small(folder: Path) -> None:
    """Write two models of many tensors of a few bytes, as safetensors and as PyTorch files."""
    for replica in range(2):
        if not (folder / f"small{replica}.pt").exists():
            numbers = torch.arange(4.0) * 2**replica
            state = {f"layers.{number // 100}.w{number % 100}": numbers.clone() for number in range(NUM_SMALL)}
            save_file(state, folder / f"small{replica}.safetensors")
            torch.save(state, folder / f"small{replica}.pt")


def rows(folder: Path, mergekit: str | None) -> list[Row]:
    """Return the programs to be timed."""
    ours = [str(Path(sys.executable).with_name("treefold")), "average"]
    single = [str(folder / f"{replica}.safetensors") for replica in range(NUM_INPUTS)]
    folders = [str(folder / f"model{replica}") for replica in range(NUM_INPUTS)]
    archives = [str(folder / f"{replica}.pt") for replica in range(NUM_INPUTS)]
    out = folder / "out"
    file = out / "mean.safetensors"
    found = [
        Row("copy of the three files (cp)", ["sh", "-c", COPY, "sh", *single], file),
        Row("treefold, folders of 4 shards", [*ours, *folders, "-o", str(out / "mean")], out / "mean"),
        Row("treefold, safetensors files", [*ours, *single, "-o", str(file)], file),
        Row("treefold, .pt files", [*ours, *archives, "-o", str(out / "mean.pt")], out / "mean.pt"),
        Row("loop in PyTorch, bfloat16", [sys.executable, "-c", TORCH_LOOP, *single, str(file)], file),
        Row("sequential float32 in PyTorch", [sys.executable, "-c", FLOAT32, *single, str(file)], file),
        Row("loop in NumPy, float32", [sys.executable, "-c", NUMPY, *single, str(file)], file),
    ]
    if mergekit is not None:
        config = folder / "mergekit.yml"
        models = "".join(f"  - model: {path}\n    parameters:\n      weight: 1\n" for path in folders)
        config.write_text(f"models:\n{models}merge_method: linear\ndtype: bfloat16\n", encoding="utf-8")
        command = [mergekit, str(config), str(out / "mean"), "--no-copy-tokenizer", "--quiet"]
        found.append(Row("mergekit linear, folders of 4 shards", command, out / "mean"))
    return found


def small_rows(folder: Path) -> list[Row]:
    """Return the programs for many small tensors."""
    ours = [str(Path(sys.executable).with_name("treefold")), "average"]
    made = []
    for suffix in ("safetensors", "pt"):
        output = folder / "out" / f"small.{suffix}"
        inputs = [str(folder / f"small{replica}.{suffix}") for replica in range(2)]
        made.append(Row(f"{NUM_SMALL:,} tensors of 16 bytes, .{suffix}", [*ours, *inputs, "-o", str(output)], output))
    return made


def run(row: Row, folder: Path) -> Figures:
    """Run a program once, with an empty path for its output."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    for copy in folder.glob("*.copy"):
        copy.unlink()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    command = [sys.executable, "-c", LAUNCH, *row.command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - our own
    if done.returncode:
        sys.exit(f"{row.name} failed: {done.stderr[-2000:]}")
    return Figures(*json.loads(done.stdout))


def measure(programs: list[Row], folder: Path, rounds: int, after: Callable[[Row], None]) -> dict[str, list[Figures]]:
    """Run every program in turn, round by round. ``after`` is called with the output of each in the last round."""
    found: dict[str, list[Figures]] = {row.name: [] for row in programs}
    for number in range(rounds):
        for row in programs:
            found[row.name].append(run(row, folder))
            print(number, row.name, found[row.name][-1], flush=True)
            if number == rounds - 1:
                after(row)
    return found


def read_output(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors that a program has written."""
    if path.suffix == ".pt":
        state: dict[str, torch.Tensor] = torch.load(path)
        return state
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def share_wrong(output: Path, exact: dict[str, torch.Tensor]) -> str:
    """Return the share of elements that differ from the exact ones in any bit."""
    state = read_output(output)
    wrong = sum(int((state[name].view(torch.int16) != exact[name].view(torch.int16)).sum()) for name in exact)
    return f"{100 * wrong / sum(tensor.numel() for tensor in exact.values()):.2g} %" if wrong else "0"


def exact_mean(folder: Path) -> dict[str, torch.Tensor]:
    """Return the exact mean, rounded once.

    The sum of three of these numbers is exact in float64. Its third is rounded, but stays on the same side of the
    middle between two numbers of bfloat16. Its bits are rounded to 8 here, because PyTorch would round twice: to
    float32 first.
    """
    states = [load_file(folder / f"{replica}.safetensors") for replica in range(NUM_INPUTS)]
    found = {}
    for name in states[0]:
        total = sum((state[name].double() for state in states), torch.zeros((), dtype=torch.float64))
        bits = (total / NUM_INPUTS).view(torch.int64)
        bits += (bits >> _CUT & 1) + (1 << (_CUT - 1)) - 1
        found[name] = (bits >> _CUT << _CUT).view(torch.float64).bfloat16()
    return found


def main() -> None:
    """Run the measurement, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where models are, or are made: 7 GB, in memory best"
    )
    parser.add_argument("--mergekit", help="the program mergekit-yaml, of a virtual environment of its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="print the table of many small tensors, and end")
    parser.add_argument("--make", action="store_true", help="make the models and end")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    make_models(options.folder)
    make_small(options.folder)
    if options.make:
        return
    small = measure(small_rows(options.folder), options.folder, options.rounds, lambda _: None)
    if options.small:
        print(_small_table(small))
        return
    machine = result_pages.describe(["numpy", "torch", "safetensors"])
    exact = exact_mean(options.folder)
    wrong: dict[str, str] = {}

    def look(row: Row) -> None:
        wrong[row.name] = share_wrong(row.output, exact) if row.output.exists() else ""

    programs = rows(options.folder, options.mergekit)
    large = measure(programs, options.folder, options.rounds, look)
    shutil.rmtree(options.folder / "out", ignore_errors=True)
    for copy in options.folder.glob("*.copy"):
        copy.unlink()
    nbytes = (options.folder / "0.safetensors").stat().st_size
    title = f"Averaging three models of {nbytes / 1e6:.0f} MB, bfloat16"
    print(result_pages.save("averaging", title, [machine, _table(large, wrong), _small_table(small)]))


def _median(figures: list[Figures]) -> Figures:
    wall, cpu, peak = (statistics.median(column) for column in zip(*figures, strict=True))
    return Figures(wall, cpu, int(peak))


def _table(large: dict[str, list[Figures]], wrong: dict[str, str]) -> str:
    copies, *_ = large.values()
    cells = []
    for name, figures in large.items():
        median = _median(figures)
        ratio = statistics.median(copy.wall_s / one.wall_s for copy, one in zip(copies, figures, strict=True))
        cells.append([
            name, f"{median.wall_s:.2f}", f"{ratio:.2f}", f"{median.cpu_s:.2f}", f"{median.peak_bytes / 1e6:.0f}",
            wrong[name],
        ])  # fmt: skip
    head = ["program", "wall, s", "of the copy's speed", "CPU, s", "peak, MB", "elements wrong"]
    return Table(head, cells, words=(0,)).to_markdown()


def _small_table(small: dict[str, list[Figures]]) -> str:
    cells = [
        [name, f"{median.wall_s:.2f}", f"{median.cpu_s:.2f}", f"{median.peak_bytes / 1e6:.0f}"]
        for name, median in ((name, _median(figures)) for name, figures in small.items())
    ]
    return Table(["treefold, two files", "wall, s", "CPU, s", "peak, MB"], cells, words=(0,)).to_markdown()


if __name__ == "__main__":
    main()
