"""Calls of ``treefold average`` that are refused: files that disagree, options, and what cannot be written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch


class TestDisagreements:
    def test_are_all_listed(self, treefold, tmp_path):
        save_file({"a": np.ones(3), "b": np.ones((2, 3)), "c": np.ones(1)}, tmp_path / "0.safetensors")
        save_file({"a": np.ones(3), "b": np.ones((3, 2)), "d": np.ones(1)}, tmp_path / "1.safetensors")
        save_file({"a": np.ones(3, "float32"), "b": np.ones((2, 3)), "c": np.ones(1)}, tmp_path / "2.safetensors")
        paths = [tmp_path / f"{replica}.safetensors" for replica in range(3)]
        outcome = treefold("average", *paths, "-o", tmp_path / "mean.npz")
        rows = [re.split(r" {2,}", line) for line in outcome.out.replace(str(tmp_path) + os.sep, "").splitlines()]
        assert [row for row in rows if not row[0].startswith("-")] == [
            ["tensor", "0.safetensors", "file", "has"],
            ["a", "float64 (3,)", "2.safetensors", "float32 (3,)"],
            ["b", "float64 (2, 3)", "1.safetensors", "float64 (3, 2)"],
            ["c", "float64 (1,)", "1.safetensors", "nothing"],
            ["d", "nothing", "1.safetensors", "float64 (1,)"],
        ]
        assert outcome.code == 2
        assert outcome.err == (
            "treefold: The 3 files disagree on the name, shape or dtype of 4 tensors, listed above. "
            "Average files of one model. Nothing was written.\n"
        )
        assert not (tmp_path / "mean.npz").exists()

    def test_of_flags_have_no_mean(self, refused, tmp_path):
        for name, on in (("a", True), ("b", False)):
            save_torch({"on": torch.tensor([True, on])}, tmp_path / f"{name}.safetensors")
        assert refused(tmp_path / "a.safetensors", tmp_path / "b.safetensors") == (
            "The files differ in 'on', and the mean of bool is not defined: only equal ones are kept. "
            "Cast it, or leave it out. Nothing was written."
        )

    def test_of_nothing_but_flags_have_no_sum(self, refused, tmp_path):
        save_torch({"on": torch.tensor([True])}, tmp_path / "a.safetensors")
        assert refused(tmp_path / "a.safetensors", "--op", "sum") == (
            "The sum of bool at 'on' is not defined. Cast it, or take the mean of equal ones."
        )


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (
                ["--weights", "1,x"],
                "--weights got '1,x'. It takes one number per file, with commas between: 1,2,0.5 or 1/3,2/3.",
            ),
            (["--weights", "1"], "--weights has 1 number for 2 files. Give one for each file."),
            (["--weights", "0,0"], "--weights of a mean are numbers ≥ 0, not all 0. "),
            (["--weights", "2,-1"], "--weights of a mean are numbers ≥ 0, not all 0. "),
            (["--weights", "1,2", "--op", "sum"], "--weights goes with --op mean or --op combine."),
            (["--weights", "1,2", "--decay", "linear"], "--weights and --decay say the same thing in two ways; "),
            (["--decay", "square"], "--decay got 'square'. It takes linear, cosine or 1-sqrt."),
            (["--op", "combine"], "--op combine goes with --weights, one number of any sign for each input."),
            (["--op", "median"], "--op got 'median'. It takes mean, sum or combine."),
            (["--dtype", "int8"], "--dtype got 'int8'. It takes float16, bfloat16, float32 or float64."),
            (["--last", "3"], "--last got 3. It takes 1 to 2, the number of inputs."),
            (["--max-shard-size", "5GB"], "--max-shard-size goes with an output that is a folder."),
            (["--only", "x*"], "--only leaves no tensor to average. Nothing was written."),
            (["*.nothing"], "No file or folder matches '*.nothing'. Nothing was written."),
            (["-o", "mean.txt"], "'mean.txt' ends in '.txt'. It takes a file named \".safetensors\", \".npz\", "),
            (["missing.npz"], "'missing.npz' cannot be read: no such file or directory. Nothing was written."),
            (["missing.pt"], "'missing.pt' cannot be read: no such file or directory. Nothing was written."),
            ([f"{'n' * 300}.npz"], f"'{'n' * 300}.npz' cannot be read: file name too long. Nothing was written."),
            (["a.txt"], "'a.txt' ends in '.txt'. It takes a file named \".safetensors\", \".npz\", "),
            (["a.pkl"], "'a.pkl' is a pickle, and to read one is to run it. Save named tensors as safetensors, "),
        ],
    )
    def test_that_make_no_sense_are_refused(self, treefold, pair, tmp_path, arguments, sentence):
        outcome = treefold("average", *pair, "-o", tmp_path / "mean.npz", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"treefold: {sentence}")
        assert sorted(tmp_path.iterdir()) == pair


class TestOutputs:
    def test_output_is_no_input(self, refused, pair):
        assert refused(*pair, output="1.safetensors") == (
            "--output '1.safetensors' is one of the files to average. Name another."
        )

    def test_output_is_no_input_by_another_name(self, refused, pair, tmp_path):
        (tmp_path / "link.safetensors").symlink_to(pair[1])
        assert refused(*pair, output="link.safetensors") == (
            "--output 'link.safetensors' is one of the files to average. Name another."
        )

    def test_output_must_be_a_place_to_write(self, refused, pair, tmp_path):
        assert refused(*pair, output="0.safetensors/mean.npz") == (
            "--output cannot write '0.safetensors/mean.npz': not a directory."
        )
        assert refused(*pair, output=f"{'n' * 300}.npz").endswith(".npz': file name too long.")
        (tmp_path / "is.npz").mkdir()
        assert refused(*pair, output="is.npz") == "--output cannot write 'is.npz': it is a directory."

    def test_output_must_hold_the_tensors(self, refused, tmp_path):
        """NumPy has no bfloat16 of its own, safetensors no complex128, nor a tensor of its metadata's name."""
        save_torch({"w": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")
        assert refused(tmp_path / "a.safetensors", output="mean.npz") == (
            "--output 'mean.npz' cannot hold bfloat16, which 'w' is. Write a .safetensors file."
        )
        np.savez(tmp_path / "b.npz", w=np.ones(1, "complex128"))
        assert refused(tmp_path / "b.npz") == (
            "--output 'older.safetensors' cannot hold complex128, which 'w' is. Write a .npz file."
        )
        np.savez(tmp_path / "c.npz", __metadata__=np.ones(1))
        assert refused(tmp_path / "c.npz") == (
            "--output 'older.safetensors' cannot hold a tensor named '__metadata__'. Write a .npz file."
        )

    @pytest.mark.parametrize("output", ["model/mean.safetensors", "model/new/mean.safetensors", "model", "."])
    def test_in_an_input_or_around_one_are_refused(self, refused, shards, output):
        assert refused(shards, output=output).startswith("--output '")

    def test_that_are_there_and_not_empty_are_refused(self, refused, shards, tmp_path):
        (tmp_path / "older").mkdir()
        (tmp_path / "older" / "file").write_bytes(b"")
        assert refused(shards, output="older") == (
            "--output 'older' is a folder that is not empty. Name a new one, or remove it."
        )

    @pytest.mark.parametrize("name", ["a\0b", "n" * 65532])
    def test_refuses_names_that_zip_archives_cannot_hold(self, refused, tmp_path, name):
        save_file({name: np.ones(1)}, tmp_path / "a.safetensors")
        sentence = refused(tmp_path / "a.safetensors", output="mean.npz")
        assert sentence.startswith(f"--output 'mean.npz' cannot hold a tensor named '{name[:1]}")
        assert sentence.endswith(". Write a .safetensors file.")

    @pytest.mark.parametrize("shape", [(1,) * 65, (0, 1 << 62, 4)])
    def test_refuses_shapes_that_numpy_does_not_have(self, refused, tmp_path, shape):
        header = f'{{"w":{{"dtype":"U8","shape":{list(shape)},"data_offsets":[0,{int(0 not in shape)}]}}}}'.encode()
        contents = len(header).to_bytes(8, "little") + header + b"1" * (0 not in shape)
        (tmp_path / "a.safetensors").write_bytes(contents)
        assert refused(tmp_path / "a.safetensors", output="mean.npz") == (
            f"--output 'mean.npz' cannot hold the shape of uint8 {shape}, which 'w' is. Write a .safetensors file."
        )


class TestNames:
    def test_of_tensors_do_not_command_the_terminal(self, treefold, tmp_path):
        save_file({"w\x1b[2J": np.ones(1)}, tmp_path / "a.safetensors")
        save_file({"w": np.ones(1)}, tmp_path / "b.safetensors")
        outcome = treefold("average", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "m.npz")
        assert "\nw\\x1b[2J " in outcome.out
        assert "\x1b" not in outcome.out

    @pytest.mark.skipif(sys.platform != "linux", reason="needs a system where names of files are bytes")
    def test_of_files_may_be_any_bytes(self, tmp_path):
        save_file({"w": np.ones(1)}, tmp_path / "a.safetensors")
        output = os.fsencode(tmp_path) + b"/\xff.npz"
        command = [sys.executable, "-m", "treefold.cli", "average", tmp_path / "a.safetensors", "-o", output]
        run = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONUTF8": "1"})  # noqa: S603
        assert run.returncode == 0
        assert run.stdout.endswith(b"/\\udcff.npz\n")
        assert Path(os.fsdecode(output)).exists()
