"""``treefold average`` on files that go together. ``TREEFOLD_CASES``: examples of each property."""

import fractions
import json
import os
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from treefold.averaging import average_checkpoints
from treefold.averaging.arithmetic import Op, nearest_whole
from treefold.averaging.writers import MOST_BLOCK_BYTES
from treefold.testing import rounded

ASKED = os.environ.get("TREEFOLD_CASES", "60")
CASES = 600 if ASKED == "full" else int(ASKED)
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint64")


def averaged(paths, output, op=Op.MEAN, weights=None):
    average_checkpoints(paths, output, op=op, weights=weights, integers="mean")
    return dict(np.load(output)) if str(output).endswith(".npz") else load_file(output)


def save(path, arrays):
    """Write NumPy arrays in the kind of file that the name says."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path)
    else:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


@pytest.fixture
def saved(tmp_path):
    """Return a function that writes one file per replica and returns their paths."""

    def write(make, count=3, suffix=".safetensors"):
        paths = [tmp_path / f"{replica}{suffix}" for replica in range(count)]
        for replica, path in enumerate(paths):
            save(path, make(replica))
        return paths

    return write


def owners(replica):
    """Return a small model of which replica r says 2**r."""
    return {
        "w": np.full((3, 4), 2.0**replica, "float32"),
        "h": np.full(5, 2.0**replica, "float16"),
        "steps": np.array(10 * 2**replica),
        "none": np.zeros((0, 3), "float32"),
        "mask": np.array([True, False]),
    }


class TestCommand:
    @pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
    @pytest.mark.parametrize("out", ["mean.safetensors", "mean.npz"])
    def test_writes_the_mean(self, treefold, saved, tmp_path, suffix, out):
        outcome = treefold("average", *saved(owners, suffix=suffix), "-o", tmp_path / out)
        assert (outcome.code, outcome.out) == (0, f"mean of 3 files: 5 tensors in {tmp_path / out}\n")
        mean = dict(np.load(tmp_path / out)) if out.endswith("npz") else load_file(tmp_path / out)
        expected = owners(0) | {
            "w": np.full((3, 4), np.float32(7 / 3)),
            "h": np.full(5, np.float16(7 / 3)),
            "steps": np.array(23),
        }
        assert mean.keys() == expected.keys()
        for name, array in expected.items():
            assert (mean[name].dtype, mean[name].shape) == (array.dtype, array.shape)
            assert np.array_equal(mean[name], array)

    @pytest.mark.parametrize(
        ("inputs", "kind"), [(("a", "b"), "folders"), (("a", "b/model.safetensors"), "checkpoints")]
    )
    def test_says_what_was_averaged(self, treefold, tmp_path, inputs, kind):
        for name in "ab":
            (tmp_path / name).mkdir()
            save(tmp_path / name / "model.safetensors", owners(0))
        outcome = treefold("average", *(tmp_path / one for one in inputs), "-o", tmp_path / "mean")
        assert outcome.out.startswith(f"mean of 2 {kind}: 5 tensors in "), outcome

    def test_writes_the_sum(self, treefold, saved, tmp_path):
        paths = saved(lambda r: {"w": np.array([2.0**r]), "n": np.array([2**r])})
        assert treefold("average", *paths, "-o", tmp_path / "sum.npz", "--op", "sum").code == 0
        assert {name: array.item() for name, array in np.load(tmp_path / "sum.npz").items()} == {"w": 7.0, "n": 7}

    def test_weighs_the_files(self, treefold, saved, tmp_path):
        paths = saved(lambda r: {"w": np.array([2.0**r if r < 2 else np.nan]), "n": np.array(2**r)})
        assert treefold("average", *paths, "-o", tmp_path / "mean.npz", "--weights", "1,3,0").code == 0
        assert {name: array.item() for name, array in np.load(tmp_path / "mean.npz").items()} == {"w": 1.75, "n": 2}

    def test_takes_files_of_several_kinds(self, saved, tmp_path):
        paths = [saved(lambda r: {"w": np.array([2.0**r])}, 3, suffix)[i] for i, suffix in enumerate((".npz", ".pt"))]
        assert averaged(paths, tmp_path / "mean.safetensors")["w"].item() == 1.5

    def test_reads_bfloat16(self, tmp_path):
        tensors = [torch.full((2, 3), 3.0**r, dtype=torch.bfloat16) for r in range(2)]
        save_torch({"w": tensors[0]}, tmp_path / "a.safetensors")
        torch.save({"w": tensors[1].T.contiguous().T}, tmp_path / "b.pt")
        average_checkpoints([tmp_path / "a.safetensors", tmp_path / "b.pt"], tmp_path / "m.safetensors")
        mean = load_torch(tmp_path / "m.safetensors")["w"]
        assert torch.equal(mean, torch.full((2, 3), 2.0, dtype=torch.bfloat16))

    def test_replaces_an_older_output(self, treefold, saved, tmp_path):
        output = tmp_path / "mean.npz"
        output.write_text("old")
        paths = saved(owners)
        assert treefold("average", *paths, "-o", output).code == 0
        assert sorted(tmp_path.iterdir()) == sorted([*paths, output])

    @pytest.mark.skipif(sys.platform == "win32", reason="needs the modes of POSIX")
    @pytest.mark.parametrize(
        ("modes", "expected"), [((0o644, 0o644), 0o644), ((0o640, 0o604), 0o600), ((0o444,), 0o644)]
    )
    def test_lets_nobody_read_what_was_not_theirs(self, saved, tmp_path, modes, expected):
        """A new output has the strictest mode of the inputs, less the umask; its owner may always write it."""
        paths = saved(owners, len(modes))
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)
        umask = os.umask(0o022)
        try:
            averaged(paths, tmp_path / "mean.npz")
        finally:
            os.umask(umask)
        assert stat.S_IMODE((tmp_path / "mean.npz").stat().st_mode) == expected

    def test_shows_progress_in_a_terminal(self, in_terminal, saved, tmp_path):
        shown = in_terminal("average", *map(str, saved(owners)), "-o", str(tmp_path / "mean.npz"))
        assert "averaging" in shown
        assert "mean of 3 files" in shown

    @pytest.mark.parametrize(("suffixes", "expected"), [((".bin", ".pt"), {"format": "pt"}), ((".npz", ".pt"), None)])
    def test_says_that_tensors_are_pytorchs(self, saved, tmp_path, suffixes, expected):
        """Loaders of safetensors files ask for it; it is true of PyTorch's files, and of nothing that is not."""
        paths = [saved(owners, 2, suffix)[0] for suffix in suffixes]
        averaged(paths, tmp_path / "mean.safetensors")
        with safe_open(tmp_path / "mean.safetensors", "numpy") as file:
            assert file.metadata() == expected

    def test_keeps_metadata_that_all_files_share(self, tmp_path):
        for replica in range(2):
            metadata = {"format": "pt", "run": str(replica)} | ({"only": "here"} if replica == 0 else {})
            save_file({"w": np.ones(3)}, tmp_path / f"{replica}.safetensors", metadata=metadata)
        averaged([tmp_path / "0.safetensors", tmp_path / "1.safetensors"], tmp_path / "mean.safetensors")
        with safe_open(tmp_path / "mean.safetensors", "numpy") as file:
            assert file.metadata() == {"format": "pt"}


class TestFiles:
    def test_of_any_size_are_read_in_blocks(self, saved, tmp_path):
        size = 2 * MOST_BLOCK_BYTES // 8 + 1001
        places = np.arange(size, dtype=np.float64)
        for suffix in (".safetensors", ".npz"):
            mean = averaged(saved(lambda r: {"w": places + 2.0**r}, 2, suffix), tmp_path / f"mean{suffix}")
            assert np.array_equal(mean["w"], places + 1.5)

    def test_may_be_many(self, saved, tmp_path):
        paths = saved(lambda r: {"w": np.array([float(r)])}, 60)
        assert averaged(paths, tmp_path / "mean.safetensors")["w"].item() == 29.5

    def test_may_be_one(self, saved, tmp_path):
        mean = averaged(saved(owners, 1), tmp_path / "mean.safetensors")
        assert all(np.array_equal(mean[name], array) for name, array in owners(0).items())

    def test_without_tensors_have_a_mean(self, saved, tmp_path):
        assert averaged(saved(lambda _: {}, 2), tmp_path / "mean.safetensors") == {}

    def test_may_be_compressed_by_columns_or_in_foreign_order(self, tmp_path):
        array = np.arange(6, dtype="float32").reshape(2, 3)
        np.savez_compressed(tmp_path / "a.npz", w=array)
        np.savez(tmp_path / "b.npz", w=np.asfortranarray(array))
        np.savez(tmp_path / "c.npz", w=array.astype(">f4"))
        paths = [tmp_path / f"{name}.npz" for name in "abc"]
        assert np.array_equal(averaged(paths, tmp_path / "sum.npz", Op.SUM)["w"], 3 * array)

    def test_may_hold_views(self, tmp_path):
        base = torch.arange(12.0).reshape(3, 4)
        torch.save({"t": base.T, "row": base[1], "one": base[2, 3], "all": torch.nn.Parameter(base)}, tmp_path / "a.pt")
        mean = averaged([tmp_path / "a.pt"], tmp_path / "mean.safetensors")
        assert np.array_equal(mean["t"], base.T)
        assert np.array_equal(mean["row"], base[1])
        assert mean["one"].item() == 11.0

    def test_with_strides_are_read_where_they_lie(self, tmp_path, monkeypatch):
        """Two columns of a large storage: nothing is copied to disk before."""
        base = torch.arange(3 << 20, dtype=torch.float32).reshape(-1, 3)
        torch.save({"w": base.T[::2], "half": base[:, 1].half().view(1 << 10, 1 << 10).T}, tmp_path / "a.pt")
        monkeypatch.setattr(tempfile, "TemporaryFile", None)
        mean = averaged([tmp_path / "a.pt"] * 3, tmp_path / "mean.safetensors")
        assert np.array_equal(mean["w"], base.T[::2])
        assert np.array_equal(mean["half"], base[:, 1].half().view(1 << 10, 1 << 10).T)

    def test_may_hold_conjugates(self, tmp_path):
        """PyTorch conjugates and negates by a mark, which its files keep."""
        base = torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]])
        tensors = {"conj": base.conj(), "turned": base.mT.conj(), "neg": base.clone().conj().imag}
        torch.save(tensors, tmp_path / "a.pt")
        mean = averaged([tmp_path / "a.pt"], tmp_path / "mean.safetensors")
        for name, tensor in tensors.items():
            assert np.array_equal(mean[name], tensor.resolve_conj().resolve_neg().numpy())

    def test_are_written_aligned(self, saved, tmp_path):
        paths = saved(lambda _: {"a": np.ones(3, "int8"), "b": np.ones(3), "c": np.ones(1, "float16")}, 2, ".npz")
        averaged(paths, tmp_path / "mean.safetensors")
        contents = (tmp_path / "mean.safetensors").read_bytes()
        length = int.from_bytes(contents[:8], "little")
        header = json.loads(contents[8 : 8 + length])
        assert length % 8 == 0
        assert [header[name]["data_offsets"][0] % size for name, size in (("a", 1), ("b", 8), ("c", 2))] == [0, 0, 0]

    def test_of_the_same_tensors_are_the_same_bytes(self, saved, tmp_path):
        paths = saved(owners)
        for suffix in (".npz", ".safetensors"):
            averaged(paths, tmp_path / f"one{suffix}")
            averaged(paths, tmp_path / f"two{suffix}")
            assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


@st.composite
def models(draw):
    """Draw the tensors of one to four files as lists of whole numbers, with sums that every accumulator holds."""
    count = draw(st.integers(1, 4))
    tensors = {}
    for name in draw(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1), unique=True, max_size=4)
    ):
        dtype = draw(st.sampled_from((*FLOATS, *INTEGERS)))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        numbers = st.integers(0 if dtype[0] == "u" else -64, 64)
        size = int(np.prod(shape, dtype=int))
        contents = [draw(st.lists(numbers, min_size=size, max_size=size)) for _ in range(count)]
        tensors[name] = (dtype, shape, contents)
    return count, tensors


def as_torch(dtype, shape, numbers):
    return torch.tensor(numbers, dtype=torch.float64).to(getattr(torch, dtype)).reshape(shape)


class TestNumbers:
    @settings(max_examples=CASES, deadline=None)
    @given(models(), st.data())
    def test_are_those_of_exact_arithmetic(self, model, data):
        count, tensors = model
        weights = data.draw(st.none() | st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
        op = Op.MEAN if weights else data.draw(st.sampled_from([Op.MEAN, Op.SUM]))
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{replica}.safetensors" for replica in range(count)]
            for replica, path in enumerate(paths):
                save_torch({n: as_torch(d, s, c[replica]) for n, (d, s, c) in tensors.items()}, path)
            output = Path(folder) / "mean.safetensors"
            average_checkpoints(paths, output, op=op, weights=weights, integers="mean")
            found = load_torch(output)
        shares = [fractions.Fraction(w, sum(weights)) for w in weights] if weights else None
        if shares is None:
            shares = [fractions.Fraction(1, count if op is Op.MEAN else 1)] * count
        assert found.keys() == tensors.keys()
        for name, (dtype, shape, contents) in tensors.items():
            exact = [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*contents, strict=True)]
            assert (str(found[name].dtype), tuple(found[name].shape)) == (f"torch.{dtype}", shape)
            values = found[name].flatten().double().tolist()
            if dtype in INTEGERS:
                bits = np.array([round(x) for x in exact], object) % 2 ** (8 * found[name].element_size())
                assert [int(v) % 2 ** (8 * found[name].element_size()) for v in found[name].flatten().tolist()] == list(
                    bits
                )
            else:
                assert values == [rounded(fractions.Fraction(x), dtype) for x in exact]

    @settings(max_examples=CASES, deadline=None)
    @given(st.data())
    def test_of_integers_are_rounded_exactly(self, data):
        dtype = data.draw(st.sampled_from(("int8", "uint16", "int32", "int64", "uint64")))
        bounds, count = np.iinfo(dtype), data.draw(st.integers(1, 5))
        near = st.integers(int(bounds.min), int(bounds.max)) | st.integers(max(-3, int(bounds.min)), 3)
        columns = [data.draw(st.lists(near, min_size=count, max_size=count)) for _ in range(3)]
        weights = data.draw(st.lists(st.integers(0, 2**70), min_size=count, max_size=count).filter(any))
        parts = [np.array([column[replica] for column in columns], dtype) for replica in range(count)]
        shares = [fractions.Fraction(w) for w in weights]
        exact = [round(sum(s * x for s, x in zip(shares, c, strict=True)) / sum(shares)) for c in columns]
        found = nearest_whole(parts, weights, sum(weights))
        assert found.dtype == dtype
        assert found.tolist() == exact

    def test_of_integers_that_agree_stay(self, saved, tmp_path):
        value = np.array([2**63 - 1, -(2**63), 5])
        assert np.array_equal(averaged(saved(lambda _: {"n": value}), tmp_path / "mean.npz")["n"], value)

    def test_of_flags_and_8_bit_floats_are_kept_if_equal(self, tmp_path):
        tensors = {"on": torch.tensor([True, False]), "f8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn)}
        for name in "ab":
            save_torch(tensors, tmp_path / f"{name}.safetensors")
        average_checkpoints([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], tmp_path / "m.safetensors")
        mean = load_torch(tmp_path / "m.safetensors")
        assert torch.equal(mean["on"], tensors["on"])
        assert torch.equal(mean["f8"].view(torch.uint8), tensors["f8"].view(torch.uint8))

    def test_do_not_overflow(self, saved, tmp_path):
        largest = {d: np.array([np.finfo(d).max], d) for d in ("float16", "float32", "float64")}
        mean = averaged(saved(lambda _: largest), tmp_path / "mean.npz")
        assert all(mean[dtype] == largest[dtype] for dtype in largest)
