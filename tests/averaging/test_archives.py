"""PyTorch's files: archives that are written, as Python's reader and ours read them, and nested ones of others."""

import argparse
import contextlib
import warnings
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from treefold.averaging import average_checkpoints
from treefold.averaging.archive import ArchiveWriter, read_archive
from treefold.averaging.tensors import OpenFile

GIB = 1 << 30


def written(path, records):
    """Write records of this many zero bytes as holes of a file, and return it open."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file)
        for name, nbytes in records.items():
            with writer.record(name, nbytes):
                file.seek(nbytes, 1)
        writer.close()
    return contextlib.closing(OpenFile(path))


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

    @pytest.mark.parametrize("beside", ["best_acc1", "rng_state", "cuda_rng_state", "loss", "step", "class_weights"])
    @pytest.mark.parametrize("key", ["state_dict", "model"])
    def test_with_a_tensor_beside_the_model_give_the_model(self, tmp_path, key, beside):
        for replica in range(2):
            state = {key: {"w": torch.full((2,), 2.0**replica)}, beside: torch.ones(1), "optimizer": {"state": {}}}
            torch.save(state, tmp_path / f"{replica}.pt")
        summary = average_checkpoints([tmp_path / "0.pt", tmp_path / "1.pt"], tmp_path / "mean.pt")
        assert torch.load(tmp_path / "mean.pt")["w"].tolist() == [1.5, 1.5]
        assert summary.others == [beside]

    @pytest.mark.parametrize("inner", [{"generator": {"w": torch.ones(2)}}, {"models": [{"w": torch.ones(2)}]}])
    def test_in_which_the_model_may_be_in_two_places_list_them(self, tmp_path, inner):
        place = "generator" if "generator" in inner else "models.0"
        torch.save(inner | {"v": torch.full((2,), 4.0)}, tmp_path / "a.pt")
        sentence = (
            rf"a\.pt' holds tensors at '{place}', and at its top 'v'\. Say --key {place}, or --key \. for those at its "
            r"top\. Nothing was written\.$"
        )
        with pytest.raises(ValueError, match=sentence):
            average_checkpoints([tmp_path / "a.pt"], tmp_path / "mean.pt")
        for key, expected in ((place, {"w": [1.0, 1.0]}), (".", {"v": [4.0, 4.0]})):
            average_checkpoints([tmp_path / "a.pt"], tmp_path / "mean.pt", key=key)
            assert {name: t.tolist() for name, t in torch.load(tmp_path / "mean.pt").items()} == expected


class TestDistributedCheckpoints:
    @pytest.fixture
    def saved(self, tmp_path):
        """Return a function that writes a state as two checkpoints of one rank and averages them."""

        def write(make, **options):
            for replica in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that there is one process, which is meant
                    dcp.save(make(2.0**replica), checkpoint_id=tmp_path / str(replica), no_dist=True)
            summary = average_checkpoints([tmp_path / "0", tmp_path / "1"], tmp_path / "mean.pt", **options)
            return {name: t.tolist() for name, t in torch.load(tmp_path / "mean.pt").items()}, summary.others

        return write

    def test_with_a_tensor_beside_the_model_give_the_model(self, saved):
        found = saved(lambda value: {"model": {"w": torch.full((2,), value)}, "step": torch.tensor(value)})
        assert found == ({"w": [1.5, 1.5]}, ["step"])

    def test_of_an_app_give_its_model(self, saved):
        """The optimizer's moments are no weights, and the application's name is none of theirs."""
        moments = {"state": {"w": {"exp_avg": torch.ones(2)}}}
        found = saved(lambda value: {"app": {"model": {"w": torch.full((2,), value)}, "optim": moments}})
        assert found == ({"w": [1.5, 1.5]}, ["app.optim.state.w.exp_avg"])

    def test_keep_nested_names_of_a_model(self, saved):
        inner = {"encoder": {"w": torch.ones(1)}, "scaler": {"w": torch.ones(1)}}
        assert saved(lambda _: {"model": inner})[0] == {"encoder.w": [1.0], "scaler.w": [1.0]}

    def test_in_which_the_model_may_be_in_two_places_list_them(self, saved):
        state = {"net": {"w": torch.ones(1)}, "ema": {"w": torch.full((1,), 4.0)}, "step": torch.ones(1)}
        with pytest.raises(
            ValueError, match=r"holds tensors at 'ema' and 'net', and at its top 'step'\. Say --key ema"
        ):
            saved(lambda _: state)
        assert saved(lambda _: state, key="ema")[0] == {"w": [4.0]}
        assert saved(lambda _: state, key=".")[0] == {"step": [1.0]}

    def test_in_safetensors_of_one_rank_are_refused(self, tmp_path):
        """Such a file holds a part of each tensor, as if it were the whole."""
        metadata = {"format": "pt", "DCP_SHARDING_INFO": '{"w": {"saved_offsets": [2]}}'}
        save_file({"w": torch.ones(2)}, tmp_path / "shard-00002-model-00001-of-00001.safetensors", metadata)
        sentence = (
            r"is one rank's part of a distributed checkpoint\. Make whole files of all parts with "
            r"torch\.distributed\.checkpoint's consolidate_safetensors_files\. Nothing was written\.$"
        )
        for given in (tmp_path, tmp_path / "shard-00002-model-00001-of-00001.safetensors"):
            with pytest.raises(ValueError, match=sentence):
                average_checkpoints([given], tmp_path.parent / "mean.safetensors")
