"""Damaged checkpoints: each gives a right average or one of our errors, leaves nothing, and takes little memory."""

import fractions
import io
import resource
import sys
import zipfile

import numpy as np
import pytest
import torch
from attack import cases, drawing, in_shards, replayable
from damage import KINDS, damaged, tensors
from safetensors.torch import load_file

from treefold.averaging.run import Request, Run
from treefold.errors import CheckpointError
from treefold.testing import assert_same_bits, fold_arrays

FULL = 100_000
#: Beyond what the process has: the blocks of the files, 64 MiB in all, and what a library takes at its first call.
MOST_BYTES = 512 << 20
WHOLE = {kind: [save(tensors(replica)) for replica in range(2)] for kind, save in KINDS.items()}


@pytest.fixture
def little_memory():
    """Let the process allocate little more than it has: what asks for more fails, and fails the test."""
    with open("/proc/self/statm", encoding="ascii") as figures:  # noqa: PTH123 - no file
        used = int(figures.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


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
        """What the damage starts from is averaged, so that damage is what is tested."""
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


def average(paths, output):
    """Tell whether files are averaged; every other way to end than a refusal is the test's failure."""
    try:
        with Run(paths, output, Request()) as run:
            run.write()
    except CheckpointError as error:
        sentence = str(error)
        assert 0 < len(sentence) < 2_000
        assert "\n" not in sentence
        return False
    return True


def check(paths, output):
    """Fail unless the output is the mean of what the formats' own libraries read."""
    read = [contents_of(path) for path in paths]
    mean = contents_of(output)
    assert set(mean) == set(read[0])
    for name, array in mean.items():
        parts = [each[name] for each in read]
        assert_same_bits(array, mean_of(parts))


def mean_of(parts):
    """Return the mean as the command promises it: floats by the oracle, integers to the nearest, the rest if equal."""
    kind = parts[0].dtype.kind
    if kind in "iu":
        columns = zip(*(part.reshape(-1).tolist() for part in parts), strict=True)
        numbers = [round(fractions.Fraction(sum(column), len(parts))) for column in columns]
        return np.array(numbers, parts[0].dtype).reshape(parts[0].shape)
    if kind == "b" or parts[0].dtype.itemsize == 1:
        assert all(part.tobytes() == parts[0].tobytes() for part in parts)
        return parts[0]
    return fold_arrays(parts, "MEAN")


def contents_of(path):
    """Return the arrays of a file, in native byte order, read by the format's own library."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name].astype(file[name].dtype.newbyteorder("=")) for name in file.files}
    read = load_file(path) if path.suffix == ".safetensors" else torch.load(rebuilt(path), weights_only=True)
    return {name: array_of(tensor) for name, tensor in read.items()}


def rebuilt(path):
    """Return an archive of the same records with nothing else wrong: PyTorch reads any memory behind some headers."""
    contents, file = path.read_bytes(), io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(file, "w") as clean:
        for entry in archive.infolist():
            header = contents[entry.header_offset :]
            start = 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            is_stored = entry.compress_type == zipfile.ZIP_STORED
            clean.writestr(entry.filename, header[start:][: entry.file_size] if is_stored else archive.read(entry))
    file.seek(0)
    return file


def array_of(tensor):
    """Return a tensor as an array; of 8-bit floats, their bytes."""
    tensor = tensor.detach().contiguous()
    if tensor.dim() > 64:  # more axes than NumPy has
        tensor = tensor.reshape(-1)
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes  # noqa: PLC0415 - few damaged files come to this

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return (tensor.view(torch.uint8) if "float8" in str(tensor.dtype) else tensor).numpy()
