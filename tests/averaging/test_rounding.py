"""The command's decimal weights against whole numbers, on files of adversarial floats: a million elements in full."""

import fractions
import itertools
import os

import ml_dtypes  # noqa: F401 - teaches NumPy the name "bfloat16"
import numpy as np
import pytest
import torch
from exact_oracle import WIDTHS, bits_of
from safetensors.torch import load_file, save_file

from treefold.cli import main

COUNT = 10**6 if os.environ.get("TREEFOLD_CASES") == "full" else 10**4
#: A combination whose weights, without signs, are more than the divisor is folded by NumPy.
WEIGHTS = {"mean": ("0.3,0.7", "0.2,0.3,0.5"), "combine": ("1.5,-0.7,0.2",)}


def tensor_of(bits, dtype):
    width, _ = WIDTHS[dtype]
    return torch.from_numpy(bits.view(f"int{width}")).view(getattr(torch, dtype))


def adversarial(dtype, numerators, count, seed):
    """Return the bits of one array per weight: any bits, near cancellations, ties, subnormals and largest numbers."""
    drawing = np.random.default_rng(seed)
    width, precision = WIDTHS[dtype]
    kind, word = np.dtype(dtype), np.dtype(f"uint{width}")
    infinity = ((1 << (width - precision)) - 1) << (precision - 1)

    def draw(size, low=0, high=1 << width):
        return drawing.integers(low, high, size, np.uint64, endpoint=False).astype(word)

    arrays = [draw(count) for _ in numerators]
    quarters = np.array_split(np.arange(count), 5)[1:]
    cancelling, tied, small, large = quarters
    with np.errstate(all="ignore"):
        first = arrays[0][cancelling].view(kind).astype("float64")
        other = (-first * numerators[0] / numerators[1]).astype(kind).view(word)
        arrays[1][cancelling] = other + draw(other.size, 0, 3) - word.type(1)
    for array in arrays[2:]:
        array[cancelling] = draw(cancelling.size, 0, 1 << (precision + 2))
    # With decimal weights a mean lies halfway between two neighbours where contributions are five of them apart.
    arrays[0][tied] = draw(tied.size, 1 << precision, infinity - (64 << 3))
    for array in arrays[1:]:
        array[tied] = arrays[0][tied] + word.type(5) * draw(tied.size, 0, 8)
    signs = draw(count, 0, 2) << word.type(width - 1)
    for array in arrays:
        own = draw(count, 0, 2) << word.type(width - 1)
        array[small] = draw(small.size, 0, 4 << (precision - 1)) | own[small]
        array[large] = draw(large.size, infinity - 64, infinity) | own[large]
        array[tied] ^= signs[tied]
    return arrays


def expected(dtype, arrays, numerators, divisor):
    """Return the bits of the exact combination of each element, rounded once."""
    width, _ = WIDTHS[dtype]
    flips = [1 << (width - 1) if number < 0 else 0 for number in numerators]
    sizes = [abs(number) for number in numerators]
    columns = zip(*(array.tolist() for array in arrays), strict=True)
    found = [
        bits_of(dtype, [bits ^ flip for bits, flip in zip(c, flips, strict=True)], sizes, divisor) for c in columns
    ]
    return np.array(found, f"uint{width}")


def average(op, order, weights, folder):
    """Run the command on files in an order, with their weights, and return the bytes of its output."""
    files = [str(folder / f"{replica}.safetensors") for replica in order]
    given = ",".join(weights[replica] for replica in order)
    with pytest.raises(SystemExit) as stopped:
        main(["average", *files, "-o", str(folder / "out.safetensors"), "--op", op, "--weights", given])
    assert not stopped.value.code
    return (folder / "out.safetensors").read_bytes()


class TestDecimalWeights:
    @pytest.mark.parametrize("dtype", WIDTHS)
    @pytest.mark.parametrize(("op", "text"), [(op, text) for op, texts in WEIGHTS.items() for text in texts])
    def test_give_the_exact_value_rounded_once(self, tmp_path, capsys, op, text, dtype):
        weights = text.split(",")
        numerators = [int(10 * fractions.Fraction(weight)) for weight in weights]
        arrays = adversarial(dtype, numerators, COUNT, seed=len(text))
        for replica, array in enumerate(arrays):
            save_file({"w": tensor_of(array, dtype)}, tmp_path / f"{replica}.safetensors")
        written = {average(op, order, weights, tmp_path) for order in itertools.permutations(range(len(weights)))}
        assert len(written) == 1
        got = load_file(tmp_path / "out.safetensors")["w"].view(getattr(torch, f"int{WIDTHS[dtype][0]}")).numpy()
        wrong = np.flatnonzero(got.view(f"uint{WIDTHS[dtype][0]}") != expected(dtype, arrays, numerators, 10))
        assert wrong.size == 0, f"{wrong.size} wrong, the first at {wrong[0]}: {[int(a[wrong[0]]) for a in arrays]}"
        assert capsys.readouterr().err == ""
