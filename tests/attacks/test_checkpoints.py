"""Damaged checkpoints: each gives a right average or one of our errors, leaves nothing, and takes little memory."""

import resource
import sys

import numpy as np
import pytest
import torch
from attack import MOST_BYTES, cases, drawing, in_shards, replayable
from averages import array_of, average, mean_of, rebuilt
from damage import KINDS, damaged, tensors
from safetensors.torch import load_file

from treefold.testing import assert_same_bits

FULL = 100_000
WHOLE = {kind: [save(tensors(replica)) for replica in range(2)] for kind, save in KINDS.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of a process are Linux's")
@pytest.mark.usefixtures("little_memory")
class TestDamagedCheckpoints:
    @in_shards
    def test_are_averaged_or_refused(self, shard, tmp_path):
        """A damaged file, alone or behind a whole one: the mean of what its format's own library reads, or nothing."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in cases(FULL, shard):
            with replayable(number):
                strike(number, tmp_path)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        assert grown < MOST_BYTES

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "old.bin"])
    def test_were_whole(self, kind, tmp_path):
        paths = [tmp_path / f"{replica}.{kind}" for replica in range(2)]
        for path, contents in zip(paths, WHOLE[kind], strict=True):
            path.write_bytes(contents)
        assert average(paths, tmp_path / "mean.safetensors")
        check(paths, tmp_path / "mean.safetensors")
        assert (load_file(tmp_path / "mean.safetensors")["weight"] == 1.5).all()


def strike(number, folder):
    """Average one damaged file, alone or as the second of two."""
    random = drawing(number)
    kind = sorted(KINDS)[number % len(KINDS)]
    first, second = folder / f"first.{kind}", folder / f"second.{kind}"
    first.write_bytes(WHOLE[kind][0])
    second.write_bytes(damaged(WHOLE[kind][1], random))
    paths = [first, second] if random.random() < 0.5 else [second]
    output = folder / random.choice(("mean.safetensors", "mean.npz"))
    is_averaged = average(paths, output)
    left = {path.name for path in folder.iterdir()}
    assert left == {first.name, second.name} | ({output.name} if is_averaged else set())
    if is_averaged:
        check(paths, output)
    for name in left:
        (folder / name).unlink()


def check(paths, output):
    """Fail unless the output is the mean of what the formats' own libraries read."""
    read = [contents_of(path) for path in paths]
    mean = contents_of(output)
    assert set(mean) == set(read[0])
    for name, array in mean.items():
        parts = [each[name] for each in read]
        assert_same_bits(array, mean_of(parts))


def contents_of(path):
    """Return the arrays of a file, in native byte order, read by the format's own library."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name].astype(file[name].dtype.newbyteorder("=")) for name in file.files}
    read = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(rebuilt(path.read_bytes()), weights_only=True)
    )
    return {name: array_of(tensor) for name, tensor in read.items()}
