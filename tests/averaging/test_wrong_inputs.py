"""Inputs that ``treefold average`` refuses: files that disagree, lie, or cannot be written. Nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from treefold.averaging import average_checkpoints, writers
from treefold.errors import CheckpointError


@pytest.fixture
def pair(tmp_path):
    paths = [tmp_path / f"{replica}.safetensors" for replica in range(2)]
    for replica, path in enumerate(paths):
        save_file({"w": np.full(3, 2.0**replica)}, path)
    return paths


def write_safetensors(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(start, stop, dtype="F32", shape=(1,)):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


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


LIES = {
    "beyond the file": lambda path: write_safetensors(path, {"a": entry(0, 8, shape=(2,))}, b"1234"),
    "overlapping": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(0, 4)}, b"1234"),
    "half overlapping": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(2, 6)}, b"123456"),
    "holes": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12),
    "backwards": lambda path: write_safetensors(path, {"a": entry(4, 0)}, b"1234"),
    "more than it says": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"12345678"),
    "another size": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(3,))}, b"1234"),
    "overflowing shape": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(2**62, 4))}, b"1234"),
    "negative shape": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(-1, -1))}, b"1234"),
    "header of 2**63": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 2**63),
    "header of 1 GB": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 10**9),
    "header beyond the file": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 10**3),
    "unknown dtype": lambda path: write_safetensors(path, {"a": entry(0, 4, "X7")}, b"1234"),
    "its header has 'a' twice": lambda path: write_safetensors(
        path, b'{"a":%b,"a":%b}' % ((json.dumps(entry(0, 4)).encode(),) * 2), b"1234"
    ),
    "numbers in metadata": lambda path: write_safetensors(path, {"__metadata__": {"a": 1}}),
    "no JSON": lambda path: write_safetensors(path, b"{a}"),
    "no UTF-8": lambda path: write_safetensors(path, b"\xff\xfe"),
    "a list": lambda path: write_safetensors(path, []),
    "empty": lambda path: path.write_bytes(b""),
    "seven bytes": lambda path: path.write_bytes(b"1234567"),
}


class TestLyingFiles:
    @pytest.mark.parametrize("lie", LIES)
    def test_of_safetensors_are_refused(self, refused, pair, tmp_path, lie):
        LIES[lie](tmp_path / "bad.safetensors")
        sentence = refused(pair[0], tmp_path / "bad.safetensors")
        assert sentence.startswith(f"'bad.safetensors' is no safetensors file: {lie if 'twice' in lie else ''}")
        assert sentence.endswith(". Nothing was written.")

    def test_of_dtypes_below_a_byte_are_refused(self, refused, tmp_path):
        write_safetensors(tmp_path / "a.safetensors", {"q": entry(0, 8, "F4", (16,))}, b"12345678")
        assert refused(tmp_path / "a.safetensors") == (
            "'a.safetensors' holds F4 at 'q', which cannot be averaged. Cast it, or leave it out."
        )

    def test_that_become_shorter_are_refused(self, pair, tmp_path):
        """A file that shrinks after its header was read ends within a tensor."""

        def cut(_):
            os.truncate(pair[1], pair[1].stat().st_size - 1)

        with pytest.raises(CheckpointError, match=r"1\.safetensors' ends within the tensor 'w'\. Copy it again\. "):
            average_checkpoints(pair, tmp_path / "mean.safetensors", on_start=cut)
        assert sorted(tmp_path.iterdir()) == pair

    def test_of_npz_are_refused(self, refused, tmp_path):
        good = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%b), }"
        bodies = [
            ("File is not a zip file.", None),
            ("'a.txt' in it is no npy file.", [("a.txt", b"")]),
            ("it has 'a' twice.", [("a.npy", (good % b"1,").ljust(127) + b"\n12345678")] * 2),
            ("(9, 0).", [("a.npy", b"\x93NUMPY\x09\x00v\x00")]),
            ("", [("a.npy", b"12345678")]),
            ("", [("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': exit(), 'shape': ()}".ljust(117) + b"\n")]),
            ("", [("a.npy", (good % b"-1,").ljust(127) + b"\n12345678")]),
        ]
        for reason, members in bodies:
            path = tmp_path / "bad.npz"
            path.write_bytes(b"12345678")
            if members is not None:
                with zipfile.ZipFile(path, "w") as archive, pytest.MonkeyPatch.context() as patch:
                    patch.setattr("warnings.warn", lambda *_, **__: None)  # that a name is there twice
                    for member, contents in members:
                        archive.writestr(member, contents)
            assert refused(path).startswith(f"'bad.npz' is no npz file: {reason}"), members
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", (good % b"9,").ljust(127) + b"\n12345678")
        assert refused(path) == "'bad.npz' ends within the tensor 'a'. Copy it again. Nothing was written."

    def test_of_npz_with_wrong_bytes_are_refused(self, refused, tmp_path):
        path = tmp_path / "bad.npz"
        np.savez(path, w=np.arange(1000.0))
        contents = bytearray(path.read_bytes())
        contents[4000] ^= 1
        path.write_bytes(contents)
        assert refused(path).startswith("'bad.npz' is no npz file: Bad CRC-32")


class Exploding:
    def __reduce__(self):
        return open, ("exploded", "w")


class TestPickles:
    def test_are_never_loaded_from_torch_files(self, treefold, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        torch.save({"w": torch.full((3,), 2.0), "x": Exploding()}, tmp_path / "a.pt")
        outcome = treefold("average", "a.pt", "-o", "mean.safetensors")
        assert (outcome.code, outcome.out) == (
            0,
            "mean of 1 file: 1 tensor in mean.safetensors\nleft out, being no part of the model: x\n",
        )
        assert not (tmp_path / "exploded").exists()

    def test_are_never_loaded_from_arrays(self, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        np.savez(tmp_path / "a.npz", w=np.array([Exploding()], object))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' holds Python objects at 'w', and to read those is to run what the file says. "
            "Save arrays of numbers."
        )
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize(
        ("contents", "got"),
        [
            ([torch.ones(1)], "a list"),
            ({0: torch.ones(1)}, "a int for a name"),
        ],
    )
    def test_of_more_than_tensors_say_what_to_save(self, refused, tmp_path, contents, got):
        torch.save(contents, tmp_path / "a.pt")
        assert refused(tmp_path / "a.pt") == (
            f"'a.pt' holds {got}. Save named tensors alone, as torch.save(model.state_dict(), ...) does."
        )

    def test_of_sparse_tensors_are_refused(self, refused, tmp_path):
        torch.save({"w": torch.eye(2).to_sparse()}, tmp_path / "a.pt")
        assert refused(tmp_path / "a.pt").startswith(
            "'a.pt' is more than plain tensors: it names 'torch._utils._rebuild_sparse_tensor', "
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


class TestInterruptions:
    @pytest.mark.parametrize("output", ["mean.safetensors", "mean.npz"])
    def test_leave_nothing(self, pair, tmp_path, monkeypatch, output):
        (tmp_path / output).write_bytes(b"older")

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(writers, "combine", interrupt)
        with pytest.raises(KeyboardInterrupt):
            average_checkpoints(pair, tmp_path / output)
        assert sorted(tmp_path.iterdir()) == sorted([*pair, tmp_path / output])
        assert (tmp_path / output).read_bytes() == b"older"

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
    def test_by_signals_leave_nothing(self, pair, tmp_path, name):
        """SIGTERM from a scheduler, SIGHUP from a terminal that closes: as Ctrl-C, and the exit code says which."""
        code = (
            "import os, signal, sys; from treefold.cli import main; from treefold.averaging import writers; "
            f"writers.combine = lambda *_: os.kill(os.getpid(), signal.{name}); main(sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, "average", *pair, "-o", tmp_path / "mean.npz"]
        run = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        assert run.returncode == 128 + getattr(signal, name)
        assert sorted(tmp_path.iterdir()) == pair

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    def test_that_are_ignored_stay_ignored(self, pair, tmp_path):
        """Under nohup the end of the terminal is not the end of the run."""
        code = (
            "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from treefold.cli import main; "
            "from treefold.averaging import writers; combine = writers.combine; "
            "writers.combine = lambda *a: (os.kill(os.getpid(), signal.SIGHUP), combine(*a)); main(sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, "average", *pair, "-o", tmp_path / "mean.npz"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
        assert (tmp_path / "mean.npz").exists()


class TestMemory:
    @pytest.mark.skipif(sys.platform == "win32", reason="needs the peak of resident memory")
    def test_does_not_grow_with_the_tensors(self, tmp_path):
        """Four files of one 192 MiB tensor (holes on disk) take less than 96 MiB."""
        nbytes = 192 << 20
        for replica in range(4):
            path = tmp_path / f"{replica}.safetensors"
            write_safetensors(path, {"w": entry(0, nbytes, "F32", (nbytes // 4,))})
            os.truncate(path, path.stat().st_size + nbytes)
        code = """
import resource, sys
from treefold.averaging import average_checkpoints
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform != "darwin" else 1024)
before = peak()
average_checkpoints([f"{replica}.safetensors" for replica in range(4)], "mean.safetensors")
print(peak() - before)
"""
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603
        assert int(run.stdout) < 96 << 10
        assert (tmp_path / "mean.safetensors").stat().st_size > nbytes
