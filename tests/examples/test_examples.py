"""The examples run as they stand and print what they promise."""

import ast
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

from treefold.group import Ticket

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTS = {
    "clipping": [
        "the norm in one piece is 29.0678",
        "the same bits in 2, 3, 5 and 8 pieces: True",
        "the norm after clipping is 1.000000",
    ],
    "federated": ["round 5: loss", "the server found y = 1.92x + 0.94; the data say y = 2x + 1"],
    "federated_stream": [
        "server A, round 1: clients [2, 4, 3, 6, 5, 0, 1, 7], 1030 samples",
        "both servers had the same bits in every round: True",
    ],
    "hosts_numpy": ["40 means over 2 ranks: 280.00 K, humidity 0.500", "all ranks hold the same bits: True"],
    "hosts_torch": ["step  0: mean loss of 2 ranks", "all ranks hold the same bits: True"],
    "jax_optax": ["step  0: mean loss of 4 replicas 1.84", "step 59: mean loss of 4 replicas 0.008"],
    "keras_training": ["2 ranks, ", "all ranks hold the same bits: True"],
    "measure_machine": ["8192 KiB each:", "memory of 4 results: 32.0 MiB in use", "32.0 MiB kept for the next call"],
    "merge_ranks": [
        "ranks averaged 200 checkpoints, each in 40 KiB of memory",
        "all ranks hold the same bits: True",
        "they are the bits of one process that adds all: True",
    ],
    "numpy_gradients": [
        "4 results, one per replica",
        "equal to the mean in float64, rounded once: True",
        "every replica now holds the same bits: True",
    ],
    "one_sha": ["step  0: loss 2.3", "step 29: loss 0.8"],
    "plan_machine": [
        "2 trees carry 37.5 GB/s of all-reduce",
        "nothing can carry more than 37.5 GB/s",
        "for 256 MB take HierarchicalCopyAllReduce(num_packs='auto', topology='machine')",
    ],
    "ranks": ["ranks found y = 2.00x + 1.00; the data say y = 2x + 1", "all ranks hold the same bits: True"],
    "same_training_jax": ["ranks: 3, loss 0.", "the same bits on 1, 2 and 3 ranks, after each step"],
    "same_training_torch": ["ranks: 3, loss 0.079", "the same bits on 1, 2 and 3 ranks, after each step"],
    "server_restart": [
        "the server is killed",
        "the server goes on after 5 updates",
        "the bits are those of all updates at once: True",
    ],
    "soup": ["with run4.safetensors it is 0.20644: left out", "the soup of 3 checkpoints has loss 0.00148"],
    "tensorflow_mirrored": ["every one of them gets [7.0, 7.0, 7.0]", "was found as y = 3.000x + -1.000"],
    "torch_processes": ["step  0: mean loss of 2 ranks", "all ranks hold the same bits: True"],
    "torch_training": ["step  0: mean loss of 4 replicas", "all replicas hold the same bits: True"],
}
#: Those that a launcher starts several times, and the command that they tell; here `treefold run` starts them.
LAUNCHED = {
    "hosts_numpy": "torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint host0:29500",
    "hosts_torch": "torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint host0:29500",
    "keras_training": "treefold run -n 2",
    "merge_ranks": "treefold run -n 4",
    "ranks": "treefold run -n 4",
}

#: Of these, those whose ranks are forked with frameworks in them, and are told what `treefold run` tells.
HEAVY = {"hosts_torch", "keras_training"}


def launched(programs, path, environment, count=2):
    """Return what the ranks of an example print; they are forked with frameworks in them."""
    with contextlib.ExitStack() as files:
        nothing = files.enter_context(Path(os.devnull).open())
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        ranks = [
            programs.start(
                [path], env=environment | {"TREEFOLD_TICKET": ticket}, streams=[nothing.fileno(), output.fileno(), 2]
            )
            for ticket, output in zip(Ticket.for_ranks(count), outputs, strict=True)
        ]
        assert [rank.wait() for rank in ranks] == [0] * count
        return "".join(output.seek(0) or output.read().decode() for output in outputs)


class TestExamples:
    @pytest.mark.parametrize("name", sorted(PRINTS))
    def test_prints_what_a_stranger_understands(self, name, tmp_path, programs):
        path, environment = EXAMPLES / f"{name}.py", os.environ | {"PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
        if name in HEAVY and sys.platform == "linux":
            printed = launched(programs, path, environment)
        else:
            launcher = ["-m", "treefold.cli", "run", "-n", "2"] if name in LAUNCHED else []
            done = programs.run([*launcher, path], cwd=tmp_path, env=environment)
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        assert [words for words in PRINTS[name] if words not in printed] == [], printed

    @pytest.mark.skipif(sys.platform != "linux", reason="ranks need shared memory of Linux")
    def test_one_sha_is_the_same_on_any_number_of_ranks(self, tmp_path, programs):
        """A rank alone, and the first of two and of three, print the same losses, norms and digests."""
        path, environment = EXAMPLES / "one_sha.py", os.environ | {"PYTHONIOENCODING": "utf-8"}
        done = programs.run([path], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        printed = [done.stdout, *(launched(programs, path, environment, count) for count in (2, 3))]
        assert len(printed[0].splitlines()) == 4
        assert printed[1:] == [printed[0]] * 2

    def test_all_of_them_run_here(self):
        assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PRINTS)

    @pytest.mark.parametrize("name", sorted(PRINTS))
    def test_is_short_and_says_how_to_run_it(self, name):
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 60
        command = LAUNCHED.get(name, "python")
        assert f"Run it: {command} examples/{name}.py" in ast.get_docstring(ast.parse(text))
