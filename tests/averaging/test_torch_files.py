"""Files of torch.save that ``treefold average`` refuses. No pickle of theirs is ever run."""

import subprocess
import sys
import zipfile

import pytest
import torch
from saved_files import Exploding

NOTHING = " Nothing was written."
MIB = 1 << 20


def write_pt(path, pickled, *, method=zipfile.ZIP_STORED, records=()):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, contents in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n", **dict(records)}.items():
            archive.writestr(f"archive/{name}", contents)


class TestArchives:
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    @pytest.mark.parametrize("name", ["a/data.pkl", "a/DATA.pkl"])
    def test_with_two_records_of_one_name_are_refused(self, refused, tmp_path, name):
        """Also where only case differs: some systems would unpack one over the other."""
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
        with zipfile.ZipFile(tmp_path / "a.pt", "a") as archive:
            archive.writestr(name, b"")
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' is no PyTorch file: it has two records of one name, or of names that are equal but for case."
            + NOTHING
        )

    def test_whose_records_overlap_are_refused(self, refused, tmp_path):
        """The directory says that a record lies where another one does."""
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
        contents = bytearray((tmp_path / "a.pt").read_bytes())
        first = contents.index(b"PK\x01\x02")
        second = contents.index(b"PK\x01\x02", first + 1)
        contents[second + 42 : second + 46] = contents[first + 42 : first + 46]
        (tmp_path / "a.pt").write_bytes(contents)
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' is no PyTorch file: its directory does not agree with its records." + NOTHING
        )

    @pytest.mark.parametrize("change", [(0, b"PK\x05\x06"), (30, b"b")])
    def test_whose_records_are_others_are_refused(self, refused, tmp_path, change):
        """What stands before a record has another signature, or another name, than the directory says."""
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
        contents = bytearray((tmp_path / "a.pt").read_bytes())
        at = contents.index(b"PK\x03\x04", 1) + change[0]
        contents[at : at + len(change[1])] = change[1]
        (tmp_path / "a.pt").write_bytes(contents)
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' is no PyTorch file: its directory does not agree with its records." + NOTHING
        )

    def test_whose_long_lengths_disagree_are_refused(self, refused, tmp_path):
        with (
            zipfile.ZipFile(tmp_path / "a.pt", "w") as archive,
            archive.open("a/data.pkl", "w", force_zip64=True) as file,
        ):
            file.write(b"\x80\x02}.")
        contents = bytearray((tmp_path / "a.pt").read_bytes())
        at = 30 + len("a/data.pkl")
        assert contents[at : at + 4] == b"\x01\x00\x10\x00"
        contents[at + 4] += 1
        (tmp_path / "a.pt").write_bytes(contents)
        assert refused(tmp_path / "a.pt") == (
            "'a.pt' is no PyTorch file: its directory does not agree with its records." + NOTHING
        )

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

    def test_larger_than_its_file_is_refused(self, refused, tmp_path):
        write_pt(tmp_path / "a.pt", b"\x80\x02}X\x01\x00\x00\x00wctorch\nTensor\nJ\x00\x00\x00\x10\x85Rs.")
        assert refused(tmp_path / "a.pt").startswith("'a.pt' is more than plain tensors: it names 'torch.Tensor', ")


class TestTensors:
    @pytest.mark.parametrize("length", [1 << 40, 1000])
    def test_that_was_expanded_is_refused(self, refused, tmp_path, length):
        torch.save({"w": torch.zeros(1).expand(length)}, tmp_path / "a.pt")
        assert refused(tmp_path / "a.pt") == (
            f"'a.pt' holds float32 ({length},) at 'w', which is larger than what is stored of it, as expand() makes "
            "them. Save its contiguous()."
        )

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
