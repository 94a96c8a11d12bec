"""``treefold average`` on files that were made to harm: one sentence, exit code 2, and memory that does not grow."""

import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from treefold.averaging import average_checkpoints

MIB = 1 << 20
#: A few blocks of 4 MiB.
LITTLE = 32 * MIB


@pytest.fixture
def refused(treefold, refused):
    """Return a function that does what ``refused`` does, and sees that it takes little memory."""

    def run(*arguments, **options):
        treefold("average")  # what is imported once is not what is measured
        tracemalloc.start()
        try:
            sentence = refused(*arguments, **options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < LITTLE
        return sentence

    return run


def peak_of(paths, output):
    """Average files and return the most bytes that were held at once."""
    tracemalloc.start()
    try:
        average_checkpoints(paths, output)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def npy(shape, descr="<f8", order="False", version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text


def write_npz(path, contents, method=zipfile.ZIP_DEFLATED, name="w.npy"):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, contents)


def write_pt(path, pickled, *, method=zipfile.ZIP_STORED, records=()):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, contents in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n", **dict(records)}.items():
            archive.writestr(f"archive/{name}", contents)


class TestNpz:
    @pytest.mark.parametrize("header", [npy("(1, 1)", order="True"), npy("(1,)", ">f8"), npy("(1,)")])
    def test_with_more_than_its_shape_is_refused(self, refused, tmp_path, header):
        write_npz(tmp_path / "a.npz", header + bytes(64 * MIB))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' is no npz file: 'w' in it has more bytes than its shape says. Nothing was written."
        )

    def test_with_an_endless_header_is_refused(self, refused, tmp_path):
        write_npz(tmp_path / "a.npz", b"\x93NUMPY\x02\x00" + struct.pack("<I", 64 * MIB) + bytes(64 * MIB))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' is no npz file: a header of 67108864 bytes is too long. Nothing was written."
        )

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_packed_as_numpy_never_does_is_refused(self, refused, tmp_path, method):
        """bzip2 and LZMA unpack a thousandfold, and Python unpacks them without a limit."""
        write_npz(tmp_path / "a.npz", npy("(8388608,)") + bytes(64 * MIB), method)
        assert refused(tmp_path / "a.npz") == (
            f"'a.npz' is no npz file: 'w' in it is packed by method {method}, and NumPy writes 0 and 8. "
            "Nothing was written."
        )

    def test_for_a_later_unzip_is_refused(self, refused, tmp_path):
        """The archive says which version it needs, and Python's gives up before it looks at a member."""
        write_npz(tmp_path / "a.npz", npy("()") + bytes(8))
        contents = bytearray((tmp_path / "a.npz").read_bytes())
        contents[contents.index(b"PK\x01\x02") + 6] = 99
        (tmp_path / "a.npz").write_bytes(contents)
        assert refused(tmp_path / "a.npz") == "'a.npz' is no npz file: zip file version 9.9. Nothing was written."

    @pytest.mark.parametrize("text", ["{'descr': '<f8', 'shape': (1,", "{[]: 1}", "-" * 9000 + "1", "{'a': '\\", "é"])
    def test_with_a_broken_header_is_refused(self, refused, tmp_path, text):
        header = text.encode("latin-1")
        write_npz(tmp_path / "a.npz", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        sentence = refused(tmp_path / "a.npz")
        assert sentence.startswith("'a.npz' is no npz file: ")
        assert sentence.endswith(". Nothing was written.")

    @pytest.mark.parametrize("shape", [f"(0, {2**63})", f"({10**30}, 0)", "(-1,)"])
    def test_of_impossible_lengths_is_refused(self, refused, tmp_path, shape):
        write_npz(tmp_path / "a.npz", npy(shape))
        assert refused(tmp_path / "a.npz").startswith("'a.npz' is no npz file: 'w' in it has the shape (")

    def test_with_flags_for_lengths_has_numbers(self, tmp_path):
        """True is a length to NumPy, and is written as 1."""
        write_npz(tmp_path / "a.npz", npy("(True,)") + bytes(8))
        peak_of([tmp_path / "a.npz"], tmp_path / "mean.safetensors")
        assert b'"shape":[1]' in (tmp_path / "mean.safetensors").read_bytes()

    @pytest.mark.parametrize("make", [np.asfortranarray, lambda array: array.astype(">f8")])
    def test_in_another_order_takes_no_more_memory(self, tmp_path, make):
        """48 MiB by columns, or in foreign byte order, are put in order block by block."""
        array = np.arange(6 * MIB, dtype=np.float64).reshape(3, 1024, -1)
        np.savez(tmp_path / "a.npz", w=make(array))
        assert peak_of([tmp_path / "a.npz"], tmp_path / "mean.npz") < LITTLE
        assert np.array_equal(np.load(tmp_path / "mean.npz")["w"], array)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "mean.npz"]


class TestTorch:
    @pytest.mark.parametrize("length", [1 << 40, 1000])
    def test_that_was_expanded_is_refused(self, refused, tmp_path, length):
        torch.save({"w": torch.zeros(1).expand(length)}, tmp_path / "a.pt")
        assert refused(tmp_path / "a.pt") == (
            f"'a.pt' holds float32 ({length},) at 'w', which is larger than what is stored of it, as expand() makes "
            "them. Save its contiguous()."
        )

    def test_larger_than_its_file_is_refused(self, refused, tmp_path):
        write_pt(tmp_path / "a.pt", b"\x80\x02}X\x01\x00\x00\x00wctorch\nTensor\nJ\x00\x00\x00\x10\x85Rs.")
        assert refused(tmp_path / "a.pt").startswith("'a.pt' is more than plain tensors: it names 'torch.Tensor', ")

    @pytest.mark.parametrize(
        ("pickled", "what"),
        [
            (b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x10\x85R.", "builtins.bytearray"),
            (b"\x80\x02c_codecs\nencode\nU\x01aU\x03hex\x86R.", "_codecs.encode"),
        ],
    )
    def test_that_names_what_tensors_do_not_need_is_refused(self, refused, tmp_path, pickled, what):
        """weights_only allows functions by which a few bytes ask for any amount of memory; here nothing is called."""
        write_pt(tmp_path / "a.pt", pickled)
        assert refused(tmp_path / "a.pt").startswith(f"'a.pt' holds {what}. Save named tensors alone, ")

    def test_whose_records_are_packed_is_refused(self, refused, tmp_path):
        write_pt(tmp_path / "a.pt", b"\x80\x02" + b"N0" * (32 * MIB) + b"}.", method=zipfile.ZIP_DEFLATED)
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' is no PyTorch file: its records are packed, which torch.save does not do. Nothing was written."
        )

    @pytest.mark.parametrize(("length", "nbytes"), [(3, 16), (5, 16)])
    def test_whose_records_are_of_other_sizes_is_refused(self, refused, tmp_path, length, nbytes):
        """PyTorch would map what comes behind a record that is too short: somebody else's numbers."""
        torch.save({"w": torch.zeros(4), "x": torch.ones(4)}, tmp_path / "whole.pt")
        with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
            for name in whole.namelist():
                contents = whole.read(name)
                archive.writestr(name, (contents * 2)[: 4 * length] if name.endswith("/data/0") else contents)
        assert refused(tmp_path / "a.pt") == (
            f"'a.pt' is no PyTorch file: its record '0' has {4 * length} bytes in place of {nbytes}. "
            f"Nothing was written."
        )

    @pytest.mark.parametrize(
        "pickled",
        [
            b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
            b"\x80\x02ctorch._utils\n_rebuild_parameter\n)R.",
            b"\x80\x02(U\x07storageU\x01atQ.",
            b"\x80\x02]}s.",
            b"\x80\x02R.",
            b"\x80\x02}(X\x01\x00\x00\x00wu.",
            b"\x80\x02",
            b"",
        ],
    )
    def test_whose_pickle_is_broken_is_refused(self, refused, tmp_path, pickled):
        write_pt(tmp_path / "a.pt", pickled)
        sentence = refused(tmp_path / "a.pt")
        assert sentence.startswith(("'a.pt' is no PyTorch file: ", "'a.pt' holds "))
        assert sentence.endswith((". Nothing was written.", " does."))

    def test_with_a_name_that_is_no_text_is_refused(self, refused, tmp_path):
        torch.save({"w\ud800": torch.zeros(1)}, tmp_path / "a.pt")
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' holds a tensor named 'w\\ud800', which is no Unicode text. Rename it."
        )

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files as they are while they are mapped")
    @pytest.mark.parametrize(
        "tensors",
        [
            '"a": torch.ones(1), "w": torch.ones(3 << 20)',
            '"a": torch.ones(1), "w": torch.ones(3 << 10, 1 << 10).T',
            '"w": torch.ones(3 << 10, 1 << 10).T',
        ],
    )
    def test_that_becomes_shorter_is_refused(self, tmp_path, tensors):
        """Another program cuts the file before a tensor, or within one with strides: no bus error."""
        code = f"""
import os, sys, torch
from treefold.averaging import run, writers
torch.save({{{tensors}}}, "a.pt")
average = writers.average
def cut(outputs, writer, on_bytes):
    average(outputs, writer, lambda _: os.truncate("a.pt", 0))
run.average = cut
from treefold.cli import main
main(["average", "a.pt", "-o", "mean.safetensors"])
"""
        command = [sys.executable, "-c", code]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)  # noqa: S603
        assert outcome.returncode == 2
        assert outcome.stderr.endswith(
            "treefold: 'a.pt' ends within the tensor 'w'. Copy it again. Nothing was written.\n"
        )
        assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


class TestSafetensors:
    def test_with_a_number_of_a_million_digits_is_refused(self, refused, tmp_path):
        entry = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":%b}' % (b"1" * 10**6)
        header = b'{"w":%b}' % entry
        (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
        assert refused(tmp_path / "a.safetensors").startswith("'a.safetensors' is no safetensors file: ")


class TestNames:
    def test_of_tensors_do_not_command_the_terminal(self, treefold, tmp_path):
        save_file({"w\x1b[2J": np.ones(1)}, tmp_path / "a.safetensors")
        save_file({"w": np.ones(1)}, tmp_path / "b.safetensors")
        outcome = treefold("average", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "m.npz")
        assert "\nw\\x1b[2J " in outcome.out
        assert "\x1b" not in outcome.out

    def test_of_what_a_library_repeats_do_not_either(self, refused, tmp_path):
        header = b'{"w":{"dtype":"F\\u001b[2J","shape":[1],"data_offsets":[0,4]}}'
        (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
        assert "'F\\x1b[2J' in it, of 'w', is no dtype" in refused(tmp_path / "a.safetensors")

    @pytest.mark.skipif(sys.platform != "linux", reason="needs a system where names of files are bytes")
    def test_of_files_may_be_any_bytes(self, tmp_path):
        save_file({"w": np.ones(1)}, tmp_path / "a.safetensors")
        output = os.fsencode(tmp_path) + b"/\xff.npz"
        command = [sys.executable, "-m", "treefold.cli", "average", tmp_path / "a.safetensors", "-o", output]
        run = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"PYTHONUTF8": "1"})  # noqa: S603
        assert run.returncode == 0
        assert run.stdout.endswith(b"/\\udcff.npz\n")
        assert Path(os.fsdecode(output)).exists()


class TestOutput:
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
