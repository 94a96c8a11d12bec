"""Files beside the weights in folders: configurations, adapters, subfolders, files of a run and of others."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from treefold.averaging import average_checkpoints
from treefold.errors import CheckpointError


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a folder of weights of which replica r says 2**r, and files beside them."""

    def write(name, replica, *, weights="model.safetensors", **files):
        made = tmp_path / name
        made.mkdir(parents=True, exist_ok=True)
        save_file({"w": np.full(3, 2.0**replica, "float32")}, made / weights)
        for stem, contents in files.items():
            (made / f"{stem}.json").write_text(json.dumps(contents))
        return made

    return write


class TestAdapters:
    @pytest.mark.parametrize("key", ["r", "lora_alpha", "use_rslora", "alpha_pattern"])
    @pytest.mark.parametrize("are_files", [False, True])
    def test_that_are_scaled_differently_are_refused(self, folder, tmp_path, key, are_files):
        """Their factors have the same shapes, and their products do not mean the same."""
        name, values = "adapter_model.safetensors", {"alpha_pattern": ({"q": 8}, {"q": 4})}.get(key, (8, 16))
        inputs = [
            folder(str(replica), replica, weights=name, adapter_config={"peft_type": "LORA", key: value})
            for replica, value in enumerate(values)
        ]
        if are_files:
            inputs = [path / name for path in inputs]
        first, second = (re.escape(str(value)) for value in values)
        sentence = (
            rf"differ in {key}: {first} and {second}\. It scales their products, so the mean of their factors means "
            r"nothing\. Merge each into its base \(merge_and_unload\), and average those\. Nothing was written\.$"
        )
        with pytest.raises(CheckpointError, match=sentence):
            average_checkpoints(inputs, tmp_path / "m.safetensors")

    def test_that_say_the_same_in_other_words_are_averaged(self, folder, tmp_path):
        """A key that one library leaves out is the same as nothing."""
        name = "adapter_model.safetensors"
        inputs = [
            folder("0", 0, weights=name, adapter_config={"r": 8, "alpha_pattern": {}}),
            folder("1", 1, weights=name, adapter_config={"r": 8, "target_modules": ["q"]}),
        ]
        average_checkpoints(inputs, tmp_path / "m")
        assert load_file(tmp_path / "m" / name)["w"].tolist() == [1.5] * 3


class TestConfigurations:
    def test_that_differ_are_warned_of(self, folder, tmp_path, treefold):
        configs = [
            {"rope_theta": 1e4, "text_config": {"hidden_act": "silu", "n": 1}, "use_cache": 1, "_name": "a"},
            {"rope_theta": 5e5, "text_config": {"hidden_act": "gelu", "n": 1}, "use_cache": 0, "_name": "b"},
        ]  # fmt: skip
        inputs = [folder(str(replica), replica, config=config) for replica, config in enumerate(configs)]
        outcome = treefold("average", *inputs, "-o", tmp_path / "m")
        assert outcome.code == 0
        assert outcome.err == (
            "treefold: The configurations of the inputs differ, so the same weights may mean different models. The "
            f"keys are rope_theta, text_config.hidden_act. That of {inputs[0]} is kept.\n"
        )
        assert json.loads((tmp_path / "m" / "config.json").read_text()) == configs[0]

    def test_that_agree_are_not(self, folder, tmp_path, treefold):
        inputs = [folder("0", 0, config={"n": 1}), folder("1", 1, config={"n": 1}), folder("2", 2)]
        assert treefold("average", *inputs, "-o", tmp_path / "m").err == ""


class TestFilesBeside:
    def test_are_copied_or_named(self, folder, tmp_path, treefold):
        first, second = folder("0", 0, config={}, modules=[]), folder("1", 1)
        (first / "1_Pooling").mkdir()
        (first / "optimizer.pt").write_bytes(b"state")
        (first / ".gitattributes").write_text("")
        outcome = treefold("average", first, second, "-o", tmp_path / "m")
        assert outcome.code == 0
        assert (
            "copied from the first input: config.json, modules.json\nnot copied: 1_Pooling/, optimizer.pt\n"
            in outcome.out
        )
        assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
            "config.json",
            "model.safetensors",
            "modules.json",
        ]

    def test_are_none_of_a_file(self, folder, tmp_path):
        inputs = [folder("0", 0, config={}), folder("1", 1, config={})]
        summary = average_checkpoints(inputs, tmp_path / "m.safetensors")
        assert (summary.copied, summary.not_copied) == ([], [])


class TestSubfolders:
    def test_of_a_pipeline_are_named(self, folder, tmp_path, treefold):
        name = "diffusion_pytorch_model.safetensors"
        for part in ("unet", "vae"):
            folder(f"pipe/{part}", 0, weights=name)
        (tmp_path / "pipe" / "scheduler").mkdir()
        (tmp_path / "pipe" / "model_index.json").write_text("{}")
        outcome = treefold("average", tmp_path / "pipe", "-o", tmp_path / "m")
        assert (outcome.code, outcome.err) == (
            2,
            f"treefold: The folder '{tmp_path}/pipe' holds no weights, but folders that do: 'unet', 'vae'. Name one of "
            "them for each input. Nothing was written.\n",
        )

    def test_of_a_run_are_checkpoints(self, folder, tmp_path, treefold):
        for replica, step in enumerate((900, 1000)):
            folder(f"run/checkpoint-{step}", replica)
        outcome = treefold("average", tmp_path / "run", "-o", tmp_path / "m")
        assert outcome.code == 2
        assert (
            "folders that do: 'checkpoint-900', 'checkpoint-1000'. Say --last with a number, or name them."
            in outcome.err
        )


class TestLast:
    @pytest.fixture
    def run(self, folder, tmp_path):
        """Return a folder of four checkpoints, a model beside them and a folder that is none."""
        for replica, step in enumerate((90, 100, 900, 1000)):
            folder(f"run/checkpoint-{step}", replica)
        folder("run", 7)
        folder("run/tmp-checkpoint-1100", 8)
        (tmp_path / "run" / "logs-2000").mkdir()
        return tmp_path / "run"

    def test_of_a_folder_takes_the_checkpoints_in_it(self, run, tmp_path):
        summary = average_checkpoints([run], tmp_path / "m", last=3)
        assert summary.inputs == tuple(str(run / f"checkpoint-{step}") for step in (100, 900, 1000))
        assert load_file(tmp_path / "m" / "model.safetensors")["w"].tolist() == [np.float32(14 / 3)] * 3

    def test_of_too_many_says_how_many_there_are(self, run, tmp_path):
        with pytest.raises(CheckpointError, match=r"^--last got 5\. It takes 1 to 4, the number of inputs\.$"):
            average_checkpoints([run], tmp_path / "m", last=5)

    def test_of_lightnings_files_goes_by_number(self, tmp_path):
        torch = pytest.importorskip("torch")
        for name in ("epoch=0-step=90", "epoch=1-step=1000", "epoch=1-step=200", "last"):
            torch.save({"state_dict": {"w": torch.ones(1)}}, tmp_path / f"{name}.ckpt")
        summary = average_checkpoints([tmp_path], tmp_path.parent / "m.pt", last=2)
        assert [path.rpartition("=")[2] for path in summary.inputs] == ["200.ckpt", "1000.ckpt"]

    def test_names_the_files_in_a_dry_run(self, run, tmp_path, treefold):
        outcome = treefold("average", run, "-o", tmp_path / "m", "--last", "2", "--dry-run")
        assert outcome.code == 0
        assert f"inputs:\n  {run}/checkpoint-900\n  {run}/checkpoint-1000\n" in outcome.out
        assert not (tmp_path / "m").exists()


_SHARDS = 100
_LIMITED = """
import resource, sys
from treefold.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
main(sys.argv[2:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
class TestManyShards:
    @pytest.fixture
    def average(self, tmp_path):
        """Return a function that averages two models of many shards, half of them large, under a limit."""
        for replica in range(2):
            model = tmp_path / str(replica)
            model.mkdir()
            for shard in range(_SHARDS):
                tensors = {f"w{shard}": np.full(8 << (10 * (shard % 2)), 2.0**replica, "float32")}
                save_file(tensors, model / f"model-{shard + 1:05}-of-{_SHARDS:05}.safetensors")

        def run(most):
            arguments = [tmp_path / "0", tmp_path / "1", "-o", tmp_path / "m.safetensors"]
            command = [sys.executable, "-c", _LIMITED, str(most), "average", *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
            return done.returncode, done.stderr

        return run

    def test_are_averaged_where_the_system_allows_as_many_files(self, average, tmp_path):
        """The limit of a shell is lower than that of the system, and a file needs no more than one descriptor."""
        assert average(2 * _SHARDS + 40) == (0, "")
        mean = load_file(tmp_path / "m.safetensors")
        assert len(mean) == _SHARDS
        assert all((values == 1.5).all() for values in mean.values())

    def test_say_what_to_do_where_it_does_not(self, average):
        code, err = average(_SHARDS)
        assert code == 2
        assert err.endswith(
            " cannot be read: too many open files; raise the limit, for example with ulimit -n 4096. Nothing was "
            "written.\n"
        )


class TestPackages:
    def test_are_asked_for_by_their_dtypes_alone(self, folder, tmp_path):
        """The library imports without ml_dtypes, and averages what NumPy knows; bfloat16 names the package."""
        code = (
            "import sys; sys.modules['ml_dtypes'] = None\n"
            "from treefold.averaging import average_checkpoints\n"
            "average_checkpoints(sys.argv[1:3], 'mean.safetensors')\n"
            "try: average_checkpoints(sys.argv[1:3], 'other.safetensors', dtype='bfloat16')\n"
            "except ValueError as error: print(error)\n"
        )
        command = [sys.executable, "-c", code, folder("0", 0), folder("1", 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)  # noqa: S603 - ours
        assert done.stdout == (
            'This command needs ml_dtypes, which is not installed. Run pip install "treefold[files]".\n'
        ), done.stderr
        assert load_file(tmp_path / "mean.safetensors")["w"].tolist() == [1.5] * 3
