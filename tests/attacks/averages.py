"""Shared by the attacks on checkpoints: averages of damaged files, and the right results."""

import fractions
import io
import zipfile

import numpy as np
import torch

from treefold.averaging import average_checkpoints
from treefold.errors import CheckpointError
from treefold.testing import fold_arrays


def average(paths, output, key=None):
    """Tell whether files are averaged; every other way to end than a refusal is the test's failure."""
    try:
        average_checkpoints(paths, output, key=key)
    except CheckpointError as error:
        sentence = str(error)
        assert 0 < len(sentence) < 2_000
        assert "\n" not in sentence
        return False
    return True


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


def rebuilt(contents):
    """Return an archive of the same records with nothing else wrong: PyTorch reads any memory behind some headers."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(contents)) as archive, zipfile.ZipFile(file, "w") as clean:
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
