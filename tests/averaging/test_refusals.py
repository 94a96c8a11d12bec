"""Files of other kinds, and folders, that ``treefold average`` refuses by what they hold."""

import os
import pickle
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch
from saved_files import write_index

from treefold.averaging import average_checkpoints

NOTHING = " Nothing was written."


def save_script(path):
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path)


def save_optimizer(path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1)).backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), path)


def save_zero(path):
    """Write what DeepSpeed keeps of a rank in stage 3, in which the model's own tensors are empty."""
    torch.save({"module": {"w": torch.empty(0)}, "ds_version": "0.17"}, path)


def save_bomb(path):
    """Write an npz file of 5 MB that unpacks to a GiB."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (1 << 30,)})
        for _ in range(64):
            member.write(bytes(1 << 24))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 1234\n"


PAGE = b"\n<!DOCTYPE html>\n<html><body>Please log in</body></html>"


OLD = {"_use_new_zipfile_serialization": False}


#: File, how it is written, and the sentence behind its name.
CONTENTS = {
    "GGUF": (
        "a.gguf", lambda path: path.write_bytes(b"GGUF\x03" + bytes(40)),
        "is a GGUF file, whose numbers are packed. Average the checkpoint it was made from, and convert that.",
    ),
    "GGUF under another ending": (
        "a.bin", lambda path: path.write_bytes(b"GGUF\x03" + bytes(40)),
        "is a GGUF file, whose numbers are packed. Average the checkpoint it was made from, and convert that.",
    ),
    "a pointer of Git LFS": (
        "a.safetensors", lambda path: path.write_bytes(LFS),
        "is a pointer of Git LFS, and not the file itself. Run git lfs pull in its repository.",
    ),
    "a pointer in place of a torch file": (
        "a.bin", lambda path: path.write_bytes(LFS),
        "is a pointer of Git LFS, and not the file itself. Run git lfs pull in its repository.",
    ),
    "a page": (
        "a.safetensors", lambda path: path.write_bytes(PAGE),
        "is a page in HTML, as servers send in place of a file. Download it again, logged in where that is needed.",
    ),
    "a page in place of a torch file": (
        "a.ckpt", lambda path: path.write_bytes(PAGE),
        "is a page in HTML, as servers send in place of a file. Download it again, logged in where that is needed.",
    ),
    "safetensors as .bin": (
        "a.bin", lambda path: save_file({"w": np.ones(1)}, path),
        "is a safetensors file under another ending. Rename it to end in .safetensors.",
    ),
    "safetensors as .npz": (
        "a.npz", lambda path: save_file({"w": np.ones(1)}, path),
        "is a safetensors file under another ending. Rename it to end in .safetensors.",
    ),
    "torch as safetensors": (
        "a.safetensors", lambda path: torch.save({"w": torch.ones(1)}, path),
        "is a PyTorch file under another ending. Rename it to end in .pt.",
    ),
    "TorchScript": (
        "a.pt", save_script,
        "is a TorchScript archive, which is a program. Save the state_dict() of what torch.jit.load gives.",
    ),
    "a rank of DeepSpeed": (
        "zero_pp_rank_0_mp_rank_00_model_states.pt", save_zero,
        "is a DeepSpeed ZeRO checkpoint. Make one file of it with its zero_to_fp32.py.",
    ),
    "before PyTorch 1.6": (
        "a.pt", lambda path: torch.save({"w": torch.ones(1)}, path, **OLD),
        "is no PyTorch file: it is no zip archive, which torch.save has written since PyTorch 1.6; load it "
        "and save it again.",
    ),
    "an optimizer": (
        "a.pt", save_optimizer,
        "is the state of an optimizer, which belongs to one run. Average the model's weights.",
    ),
    "a pickle": (
        "a.bin", lambda path: path.write_bytes(pickle.dumps({"w": 1})),
        "is a pickle, and to read one is to run it. Save named tensors as safetensors, or with torch.save.",
    ),
    "HDF5": (
        "a.bin", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)),
        "is an HDF5 file, as Keras writes. Save its weights with numpy.savez, or as safetensors.",
    ),
    "a bomb": (
        "a.npz", save_bomb,
        "has 4.47 MiB and unpacks to 1 GiB. If that is right, save it again with numpy.savez, which does not pack.",
    ),
}  # fmt: skip


class TestContents:
    @pytest.mark.parametrize("what", CONTENTS)
    def test_are_recognised_and_named(self, refused, tmp_path, what):
        name, write, sentence = CONTENTS[what]
        write(tmp_path / name)
        assert refused(tmp_path / name) == f"'{name}' {sentence}{NOTHING}"

    def test_of_folders_are_recognised_too(self, refused, tmp_path):
        step = tmp_path / "run" / "global_step10"
        step.mkdir(parents=True)
        (tmp_path / "run" / "zero_to_fp32.py").write_text("")
        for rank in range(2):
            save_zero(step / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        for folder in ("run", "run/global_step10"):
            assert refused(tmp_path / folder) == (
                f"'{folder}' is a DeepSpeed ZeRO checkpoint. Make one file of it with its zero_to_fp32.py." + NOTHING
            )

    def test_of_a_folder_without_weights_say_so(self, refused, tmp_path):
        (tmp_path / "run").mkdir()
        save_optimizer(tmp_path / "run" / "optimizer.pt")
        assert refused(tmp_path / "run", output="mean.pt") == (
            "The folder 'run' holds no weights. Name one file, or an index of shards." + NOTHING
        )


ELSEWHERE = "does not say that 'u' is in 'model-0.safetensors'"


class TestIndexes:
    @pytest.mark.parametrize(
        ("mapping", "reason"),
        [
            ({"u": "../model-0.safetensors"}, "names '../model-0.safetensors', which is no file beside it"),
            ({"u": "/etc/model.safetensors"}, "names '/etc/model.safetensors', which is no file beside it"),
            ({"u": "model-0.txt"}, "names 'model-0.txt', which is no file of weights"),
            ({"u": "model-0.safetensors", "v": "model-0.safetensors"}, "names 'v', which none of its files has"),
            ({"u": "model-1.safetensors", "v": "model-1.safetensors"}, "names 'u', which none of its files has"),
            ({"v": "model-0.safetensors", "u": "model-1.safetensors"}, ELSEWHERE),
            ({"v": "model-1.safetensors", "x": "model-0.safetensors"}, ELSEWHERE),
            ([], "has no weight_map from tensors to files"),
        ],
    )  # fmt: skip
    def test_that_lie_are_refused(self, refused, shards, mapping, reason):
        write_index(shards, mapping)
        assert refused(shards) == (
            f"The index 'model/model.safetensors.index.json' {reason}. Copy the model again." + NOTHING
        )

    def test_with_a_name_twice_are_refused(self, refused, shards):
        write_index(shards, None, '{"weight_map": {"u": "model-0.safetensors", "u": "model-1.safetensors"}}')
        assert "model.safetensors.index.json' has a name twice. Copy" in refused(shards)

    def test_to_a_missing_file_are_refused(self, refused, shards):
        (shards / "model-1.safetensors").unlink()
        assert refused(shards) == ("'model/model-1.safetensors' cannot be read: no such file or directory." + NOTHING)

    def test_a_tensor_in_two_files_is_refused(self, refused, shards):
        save_file({"u": np.ones(3, "float32"), "v": np.ones(3, "float32")}, shards / "model-1.safetensors")
        assert "model.safetensors.index.json' has 'u' in two files. Copy" in refused(shards)

    def test_to_links_are_followed(self, shards, tmp_path):
        """The cache of Hugging Face's libraries holds links to files elsewhere."""
        (tmp_path / "blobs").mkdir()
        for path in sorted(shards.iterdir()):
            path.rename(tmp_path / "blobs" / path.name)
            path.symlink_to(Path("..") / "blobs" / path.name)
        average_checkpoints([shards], tmp_path / "mean.safetensors")
        assert sorted(load_file(tmp_path / "mean.safetensors")) == ["u", "v"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes with names")
class TestPipes:
    @pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.pt", "model.safetensors.index.json"])
    def test_are_no_inputs(self, refused, tmp_path, name):
        """To open one would wait for a writer."""
        os.mkfifo(tmp_path / name)
        assert refused(tmp_path / name) == f"'{name}' cannot be read: it is not a regular file." + NOTHING

    def test_in_a_folder_are_no_shards(self, refused, shards):
        os.mkfifo(shards / "config.json")
        (shards / "model-1.safetensors").unlink()
        os.mkfifo(shards / "model-1.safetensors")
        assert refused(shards) == "'model/model-1.safetensors' cannot be read: it is not a regular file." + NOTHING

    def test_in_a_distributed_checkpoint_are_refused(self, refused, tmp_path):
        (tmp_path / "run").mkdir()
        os.mkfifo(tmp_path / "run" / ".metadata")
        assert refused(tmp_path / "run", output="mean.pt") == (
            "'run/.metadata' cannot be read: it is not a regular file." + NOTHING
        )


@pytest.fixture
def pieces(tmp_path):
    """Return a function that writes a distributed checkpoint of two pieces, after a change of its metadata."""

    def write(change):
        folder = tmp_path / "run"
        state = {"w": torch.arange(4.0), "v": torch.arange(4.0)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process, which is meant
            dcp.save(state, checkpoint_id=folder, no_dist=True)
        metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
        tensor = metadata.state_dict_metadata
        tensor["w"].size = torch.Size([8])
        [chunk] = tensor["v"].chunks
        tensor["w"].chunks.append(type(chunk)(torch.Size([4]), torch.Size([4])))
        del tensor["v"]
        places = {key.fqn: key for key in metadata.storage_data}
        old = places["v"]
        metadata.storage_data[type(old)("w", torch.Size([4]), 1)] = metadata.storage_data.pop(old)
        change(metadata)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        return folder

    return write


def _move_second(metadata, offset):
    chunk = metadata.state_dict_metadata["w"].chunks[1]
    metadata.state_dict_metadata["w"].chunks[1] = type(chunk)(torch.Size([offset]), chunk.sizes)
    for key in list(metadata.storage_data):
        if key.index == 1:
            moved = type(key)("w", torch.Size([offset]), 1)
            metadata.storage_data[moved] = metadata.storage_data.pop(key)


def _set_length(metadata, length):
    metadata.state_dict_metadata["w"].size = torch.Size([length])


def _lie_of_file(metadata, name):
    for info in metadata.storage_data.values():
        info.relative_path = name


def _forget_second(metadata):
    for key in list(metadata.storage_data):
        if key.index == 1:
            del metadata.storage_data[key]


GAPS = "is in pieces that overlap or leave gaps"


OUTSIDE = "lies in '../x.distcp', which is no file beside the metadata"


#: A change of the metadata, and the reason behind the tensor's name.
CHANGES = {
    "overlap": (lambda metadata: _move_second(metadata, 3), GAPS),
    "a gap between": (lambda metadata: _move_second(metadata, 5), GAPS),
    "a gap at the end": (lambda metadata: _set_length(metadata, 9), GAPS),
    "too many": (lambda metadata: _set_length(metadata, 7), GAPS),
    "a piece less": (lambda metadata: metadata.state_dict_metadata["w"].chunks.pop(), GAPS),
    "a piece twice": (lambda m: m.state_dict_metadata["w"].chunks.append(m.state_dict_metadata["w"].chunks[0]), GAPS),
    "no place": (_forget_second, "has a piece that lies nowhere"),
    "another folder": (lambda m: _lie_of_file(m, "../x.distcp"), OUTSIDE),
}  # fmt: skip


class TestDistributedCheckpoints:
    def test_of_two_pieces_are_averaged(self, pieces, tmp_path):
        average_checkpoints([pieces(lambda _: None)], tmp_path / "mean.npz")
        assert np.load(tmp_path / "mean.npz")["w"].tolist() == [0, 1, 2, 3] * 2

    @pytest.mark.parametrize("change", CHANGES)
    def test_whose_pieces_are_no_whole_are_refused(self, refused, pieces, change):
        damage, reason = CHANGES[change]
        assert refused(pieces(damage), output="mean.pt") == (
            f"'run' is no whole distributed checkpoint: 'w' {reason}. Save it again." + NOTHING
        )

    def test_whose_file_is_short_are_refused(self, refused, pieces):
        folder = pieces(lambda _: None)
        [path] = folder.glob("*.distcp")
        os.truncate(path, path.stat().st_size // 2)
        assert refused(folder, output="mean.pt") == (
            f"'run/{path.name}' ends within the tensor 'w'. Copy it again." + NOTHING
        )

    def test_run_no_code(self, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".metadata").write_bytes(b"cos\nmkdir\nX\x06\x00\x00\x00called\x85R.")
        assert refused(tmp_path / "run", output="mean.pt") == (
            "'run/.metadata' is no torch.distributed.checkpoint file: its metadata holds something else than PyTorch "
            "writes." + NOTHING
        )
        assert not (tmp_path / "called").exists()


class TestQuantized:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("config.json", '{"quantization_config": {"quant_method": "own"}}'),
            ("config.json", '{"quantization": {"bits": 8}}'),
            ("hf_quant_config.json", '{"quantization": {"quant_algo": "FP8"}}'),
        ],
    )
    def test_by_its_configuration_is_refused(self, refused, tmp_path, name, text):
        """Names tell nothing here; the configuration does, also if 8-bit floats are to be converted."""
        for replica in range(2):
            folder = tmp_path / str(replica)
            folder.mkdir()
            save_torch({"l.w": torch.tensor([1.0 + replica]).to(torch.float8_e4m3fn)}, folder / "model.safetensors")
            (folder / name).write_text(text)
        assert refused(tmp_path / "0", tmp_path / "1", "--dtype", "bfloat16") == (
            "The inputs differ in 'l.w', of float8_e4m3fn in a quantized model: they are codes that a scale belongs "
            "to, which have no mean. Average the models before they are quantized; else say --integers first to keep "
            "the first input's, or --integers mean with --dtype bfloat16." + NOTHING
        )

    def test_whole_numbers_say_what_they_may_be(self, refused, tmp_path):
        for replica in range(2):
            save_file({"w": np.array([replica], "uint8")}, tmp_path / f"{replica}.safetensors")
        assert refused(tmp_path / "0.safetensors", tmp_path / "1.safetensors") == (
            "The inputs differ in 'w', of uint8: it may count or index, or hold codes of a quantized model or pickled "
            "state, which have no mean. Average models before they are quantized; else say --integers mean, or "
            "--integers first to keep the first input's." + NOTHING
        )
