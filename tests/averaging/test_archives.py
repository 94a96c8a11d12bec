"""PyTorch's files: archives that are written, as Python's reader and ours read them, and nested ones of others."""

import argparse
import zipfile

import pytest
import torch

from treefold.averaging import average_checkpoints
from treefold.averaging.archive import ArchiveWriter, read_archive
from treefold.averaging.mapped import OpenFile

GIB = 1 << 30


def written(path, records):
    """Write records of so many zero bytes as holes of a file, and return it open."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file)
        for name, nbytes in records.items():
            with writer.record(name, nbytes):
                file.seek(nbytes, 1)
        writer.close()
    return OpenFile(path)


class TestArchiveWriter:
    @pytest.mark.parametrize(
        "records",
        [
            {},
            {"a/data/0": 0, "a/data/1": 5},
            {"a/data/0": 4 * GIB - 1, "a/data/1": 7, "a/data/2": 5 * GIB},
            dict.fromkeys((f"a/data/{number}" for number in range(65_537)), 1),
        ],
        ids=["none", "short", "long", "many"],
    )
    def test_is_read_by_both_readers(self, tmp_path, records):
        """Beyond 4 GiB and beyond 65,535 records numbers stand elsewhere."""
        with written(tmp_path / "a.pt", records) as file:
            ours = read_archive(file)
        with zipfile.ZipFile(tmp_path / "a.pt") as archive:
            theirs = {entry.filename: entry for entry in archive.infolist()}
        assert {name: record.nbytes for name, record in ours.items()} == records
        assert {name: entry.file_size for name, entry in theirs.items()} == records
        assert all(record.start % 64 == 0 for record in ours.values())
        assert all(entry.header_offset < ours[name].start for name, entry in theirs.items())

    def test_has_checksums(self, tmp_path):
        """They stand in the directory, and behind the bytes."""
        with (tmp_path / "a.pt").open("wb") as file:
            writer = ArchiveWriter(file)
            with writer.record("a/version", 2) as record:
                record.write(b"3")
                record.write(b"\n")
            writer.close()
        with zipfile.ZipFile(tmp_path / "a.pt") as archive:
            assert archive.testzip() is None
            assert archive.read("a/version") == b"3\n"


class TestNestedFiles:
    def test_of_fairseq_are_found_by_themselves(self, tmp_path):
        """Beside the model stands a Namespace, which is left out and not built."""
        for replica in range(2):
            state = {"args": argparse.Namespace(lr=1), "model": {"w": torch.full((2,), 2.0**replica)}, "epoch": 3}
            torch.save(state, tmp_path / f"{replica}.pt")
        summary = average_checkpoints([tmp_path / "0.pt", tmp_path / "1.pt"], tmp_path / "mean.pt")
        assert torch.load(tmp_path / "mean.pt")["w"].tolist() == [1.5, 1.5]
        assert summary.num_tensors == 1

    def test_of_timm_need_a_key(self, tmp_path):
        """Weights and their moving average are two models; the optimizer's state is none."""
        for replica in range(2):
            model = {"w": torch.full((2,), 2.0**replica)}
            ema = {"w": torch.full((2,), 10.0 * 2**replica)}
            state = {"epoch": 1, "arch": "vit", "state_dict": model, "state_dict_ema": ema, "optimizer": {"state": {}}}
            torch.save(state, tmp_path / f"{replica}.pth.tar")
        inputs = [tmp_path / "0.pth.tar", tmp_path / "1.pth.tar"]
        sentence = r"tensors are at 'state_dict' and 'state_dict_ema'\. Say --key state_dict\. Nothing was written\.$"
        with pytest.raises(ValueError, match=sentence):
            average_checkpoints(inputs, tmp_path / "mean.pt")
        average_checkpoints(inputs, tmp_path / "mean.pt", key="state_dict_ema")
        assert torch.load(tmp_path / "mean.pt")["w"].tolist() == [15.0, 15.0]
