"""The arithmetic: every element is the exact value, rounded once, whatever the weights, dtype and order of inputs."""

import fractions
import json
import math
import re

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from treefold.averaging import average_checkpoints
from treefold.averaging.arithmetic import Combination, combine, decay_weights, read_text
from treefold.dtypes import itemsize
from treefold.errors import CheckpointError
from treefold.testing import rounded

FLOATS = ("float16", "bfloat16", "float32", "float64")


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def hostile(dtype, count, seed):
    """Return floats of all exponents, signs and zeros, and near cancellations; the seed is the replica's."""
    drawing = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    bits = drawing.integers(0, 1 << (8 * kind.itemsize), count, dtype=np.uint64).astype(f"uint{8 * kind.itemsize}")
    values = bits.view(kind).copy()
    with np.errstate(all="ignore"):
        values[~np.isfinite(values.astype(np.float64))] = -0.0
        shared = np.random.default_rng(7).normal(size=count // 2)  # the same in all replicas, but for the last bit
        values[: count // 2] = (shared * (1 + 2.0**-7 * drawing.integers(-1, 2, count // 2))).astype(kind)
    return values


def exact(parts, weights, divisor):
    columns = zip(*(part.astype(np.float64).tolist() for part in parts), strict=True)
    return [sum(w * fractions.Fraction(x) for w, x in zip(weights, c, strict=True)) / divisor for c in columns]


class TestCombinations:
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize(
        "text",
        [
            "0.3,0.7,0.5",
            "1/3,2/3,1",
            "1.5,-0.7,0.2",
            "1,-1,1",
            "0.25,-0.5,0.125",
            "1e-9,3,-1e9",
            "-2,0,0.001",
            "64,64,1",
        ],
    )
    def test_are_the_exact_value_rounded_once(self, dtype, text):
        parts = [hostile(dtype, 400, replica) for replica in range(3)]
        weights = read_text(text)
        out = np.empty_like(parts[0])
        combine("w", dtype, parts, Combination.of(weights), out)
        wanted = [rounded(value, dtype) for value in exact(parts, weights, 1)]
        assert out.astype(np.float64).tolist() == wanted

    @pytest.mark.parametrize("dtype", ["complex64", "complex128"])
    def test_of_complex_numbers_go_part_by_part(self, dtype):
        parts = [np.array([2.0**replica - 3.0**replica * 1j], dtype) for replica in range(2)]
        out = np.empty_like(parts[0])
        combine("w", dtype, parts, Combination.of(read_text("3,-0.5")), out)
        assert out.tolist() == [2 - 1.5j]

    @pytest.mark.parametrize("text", ["0.5", "0.25,0.5", "1", "3/2"])
    def test_of_zeros_keep_the_sign_of_both_parts(self, text):
        weights = read_text(text)
        parts, out = [np.full(2, complex(-0.0, -0.0))] * len(weights), np.zeros(2, "complex128")
        combine("w", "complex128", parts, Combination.of(weights), out)
        assert np.signbit(out.view("float64")).all()

    def test_of_integers_are_the_nearest_whole_number(self):
        """Halves go to the even neighbour; beyond the dtype there is none."""
        parts = [np.array([10, 11], "int64"), np.array([7, 8], "int64")]
        out = np.empty_like(parts[0])
        combine("n", "int64", parts, Combination.of(read_text("1.5,-0.5")), out)
        assert out.tolist() == [12, 12]  # 11.5 and 12.5
        small = [np.array([200], "uint8"), np.array([1], "uint8")]
        with pytest.raises(
            ValueError, match=r"^The combination of 'n' has numbers beyond uint8\. Leave it out with --skip"
        ):
            combine("n", "uint8", small, Combination.of(read_text("2,1")), np.empty(1, "uint8"))

    def test_of_weight_nothing_leave_an_input_out(self):
        out = np.empty(1)
        combine("w", "float64", [np.array([np.nan]), np.array([3.0])], Combination.of(read_text("0,0.5")), out)
        assert out.tolist() == [1.5]


class TestWeights:
    def test_are_read_as_they_are_written(self, tmp_path):
        (tmp_path / "weights.txt").write_text("3/10\n7e-1\n")
        wanted = [fractions.Fraction(3, 10), fractions.Fraction(7, 10)]
        assert read_text("0.3,0.7") == read_text("3/10, .7") == read_text(f"@{tmp_path / 'weights.txt'}") == wanted

    @pytest.mark.parametrize("text", ["", "1,,2", "nan", "inf,1", "1/0", "0x1", "1_0", "1e99999", "@missing", "1 2"])
    def test_that_are_no_numbers_are_refused(self, text):
        with pytest.raises(ValueError, match=r"^--weights "):
            read_text(text)

    def test_in_one_ratio_give_one_result(self, tmp_path):
        for replica in range(2):
            save_file({"w": hostile("float32", 1000, replica)}, tmp_path / f"{replica}.safetensors")
        written = set()
        for number, weights in enumerate(("0.3,0.7", "3,7", "3/10,7/10")):
            inputs = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
            average_checkpoints(inputs, tmp_path / f"mean{number}.safetensors", weights=weights)
            written.add((tmp_path / f"mean{number}.safetensors").read_bytes())
        assert len(written) == 1

    @pytest.mark.parametrize(
        ("shape", "rate"),
        [
            ("linear", lambda t: 1 - t),
            ("cosine", lambda t: (1 + math.cos(math.pi * t)) / 2),
            ("1-sqrt", lambda t: 1 - math.sqrt(t)),
        ],
    )
    def test_of_a_decay_scale_updates_as_it_does(self, shape, rate):
        weights = decay_weights(shape, 10)
        assert sum(weights) == 1
        for checkpoint in range(10):
            assert float(sum(weights[checkpoint:])) == pytest.approx(rate(checkpoint / 10), abs=1e-15)


@pytest.fixture
def three(tmp_path):
    """Return three files, of which replica r says 2**r."""
    paths = [tmp_path / f"step-{step}.safetensors" for step in (900, 1000, 20000)]
    for replica, path in enumerate(paths):
        extra = {f"only{replica}": np.array([2.0**replica])} if replica else {}
        save_file({"w": np.full(3, 2.0**replica), "head.w": np.full(2, 10.0 * 2**replica)} | extra, path)
    return paths


class TestOptions:
    def test_last_takes_numbers_as_numbers(self, three, tmp_path):
        summary = average_checkpoints([tmp_path / "step-*"], tmp_path / "mean.npz", last=2, only="w")
        assert summary.inputs == tuple(map(str, three[1:]))
        assert np.load(tmp_path / "mean.npz")["w"].tolist() == [3.0] * 3

    def test_base_is_subtracted_before(self, three, tmp_path):
        options = {"base": three[0], "only": "w"}
        average_checkpoints(three[1:], tmp_path / "a.npz", **options)
        average_checkpoints(three[1:], tmp_path / "b.npz", op="combine", weights="2,0.5", **options)
        assert np.load(tmp_path / "a.npz")["w"].tolist() == [3.0] * 3
        assert np.load(tmp_path / "b.npz")["w"].tolist() == [1 + 2 * 1 + 0.5 * 3] * 3

    def test_partial_averages_those_that_have_it(self, three, tmp_path):
        summary = average_checkpoints(three, tmp_path / "mean.npz", partial=True, weights=[5, 1, 3])
        mean = np.load(tmp_path / "mean.npz")
        assert summary.partial == ["only1", "only2"]
        assert (mean["only1"].tolist(), mean["only2"].tolist()) == ([2.0], [4.0])
        assert mean["w"][0] == rounded(fractions.Fraction(19, 9), "float64")

    def test_only_and_skip_choose_by_name(self, three, tmp_path):
        average_checkpoints(three, tmp_path / "a.npz", skip=["only*", "head.*"])
        average_checkpoints(three, tmp_path / "b.npz", only="head.?")
        assert (list(np.load(tmp_path / "a.npz")), list(np.load(tmp_path / "b.npz"))) == (["w"], ["head.w"])

    def test_strip_prefix_makes_names_agree(self, three, tmp_path):
        save_file({"module.w": np.full(3, 8.0), "module.head.w": np.full(2, 1.0)}, tmp_path / "ddp.safetensors")
        inputs = [three[0], tmp_path / "ddp.safetensors"]
        with pytest.raises(ValueError, match=r"begin with 'module\.', and others do not\. Say --strip-prefix module\."):
            average_checkpoints(inputs, tmp_path / "mean.npz")
        average_checkpoints(inputs, tmp_path / "mean.npz", strip_prefix="module.")
        assert np.load(tmp_path / "mean.npz")["w"].tolist() == [4.5] * 3
        save_file({"module.w": np.full(3, 8.0), "w": np.full(3, 1.0)}, tmp_path / "both.safetensors")
        with pytest.raises(ValueError, match=r"--strip-prefix makes two tensors of '.*both\.safetensors' 'w'"):
            average_checkpoints([tmp_path / "both.safetensors"], tmp_path / "mean.npz", strip_prefix="module.")

    def test_dtype_converts_before(self, tmp_path):
        kinds = (torch.float8_e4m3fn, torch.float64)
        for replica, kind in enumerate(kinds):
            tensors = {"w": torch.tensor([1.5, -3.0]).to(kind) * 1 if replica else torch.tensor([1.5, -3.0]).to(kind)}
            save_torch(tensors | {"n": torch.tensor([4, 6])}, tmp_path / f"{replica}.safetensors")
        inputs = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
        summary = average_checkpoints(inputs, tmp_path / "mean.safetensors", dtype="bfloat16")
        mean = load_torch(tmp_path / "mean.safetensors")
        assert summary.converted == ["w"]
        assert torch.equal(mean["w"], torch.tensor([1.5, -3.0], dtype=torch.bfloat16))
        assert mean["n"].dtype is torch.int64

    def test_eight_bits_that_differ_name_the_remedy(self, tmp_path):
        for replica in range(2):
            values = {"w": torch.tensor([2.0**replica]).to(torch.float8_e5m2)}
            save_torch(values, tmp_path / f"{replica}.safetensors")
        with pytest.raises(ValueError, match=r"Say --dtype bfloat16, which converts before averaging\."):
            average_checkpoints([tmp_path / "0.safetensors", tmp_path / "1.safetensors"], tmp_path / "m.safetensors")

    def test_a_dry_run_writes_nothing(self, three, tmp_path):
        before = sorted(tmp_path.iterdir())
        summary = average_checkpoints(three, tmp_path / "new" / "mean.npz", dry_run=True)
        assert sorted(tmp_path.iterdir()) == before
        assert [difference[0] for difference in summary.differences] == ["only1", "only2"]
        assert summary.memory_bytes < 120 << 20
        assert json.dumps(summary.differences)

    def test_missing_folders_are_made(self, three, tmp_path):
        average_checkpoints(three[:1], tmp_path / "a" / "b" / "mean.safetensors")
        assert load_file(tmp_path / "a" / "b" / "mean.safetensors")["w"].tolist() == [1.0] * 3
        save_file({"on": np.array([True])}, tmp_path / "x.safetensors")
        save_file({"on": np.array([False])}, tmp_path / "y.safetensors")
        with pytest.raises(ValueError, match=r"^The files differ in 'on'"):
            average_checkpoints([tmp_path / "x.safetensors", tmp_path / "y.safetensors"], tmp_path / "c" / "m.npz")
        assert not (tmp_path / "c").exists()


class TestTies:
    def test_stay_where_all_inputs_have_them(self, tmp_path):
        for replica in range(2):
            shared = torch.full((2, 2), 2.0**replica)
            torch.save({"embed": shared, "head": shared, "_extra_state": None, "n": 3}, tmp_path / f"{replica}.bin")
        inputs = [tmp_path / "0.bin", tmp_path / "1.bin"]
        summary = average_checkpoints(inputs, tmp_path / "mean.safetensors")
        assert (summary.ties, summary.others) == ({"head": "embed"}, ["_extra_state", "n"])
        assert list(load_torch(tmp_path / "mean.safetensors")) == ["embed"]
        average_checkpoints([*inputs, tmp_path / "mean.safetensors"], tmp_path / "mean.pt")
        mean = torch.load(tmp_path / "mean.pt")
        assert mean["embed"].data_ptr() == mean["head"].data_ptr()
        assert mean["head"].tolist() == [[1.5, 1.5], [1.5, 1.5]]

    def test_of_one_input_give_another_both_names(self, tmp_path):
        """Libraries differ in which of two names they leave out."""
        shared = torch.tensor([1.0])
        torch.save({"embed": shared, "head": shared}, tmp_path / "0.bin")
        torch.save({"head": torch.tensor([3.0])}, tmp_path / "1.bin")
        average_checkpoints([tmp_path / "0.bin", tmp_path / "1.bin"], tmp_path / "mean.pt")
        assert {name: tensor.item() for name, tensor in torch.load(tmp_path / "mean.pt").items()} == {
            "embed": 2.0, "head": 2.0,
        }  # fmt: skip

    def test_end_where_one_input_has_two_tensors(self, tmp_path):
        shared = torch.tensor([1.0])
        torch.save({"embed": shared, "head": shared}, tmp_path / "0.bin")
        torch.save({"embed": torch.tensor([3.0]), "head": torch.tensor([5.0])}, tmp_path / "1.bin")
        average_checkpoints([tmp_path / "0.bin", tmp_path / "1.bin"], tmp_path / "mean.safetensors")
        mean = load_torch(tmp_path / "mean.safetensors")
        assert (mean["embed"].item(), mean["head"].item()) == (2.0, 3.0)


#: How formats name codes, and what stands beside them: names, dtypes.
CODES = {
    "GPTQ": ("l.qweight", "int32", "l.scales"),
    "AWQ's zeros": ("l.qzeros", "int32", "l.scales"),
    "bitsandbytes in 4 bits": ("l.weight", "uint8", "l.weight.quant_state.bitsandbytes__nf4"),
    "bitsandbytes in 8 bits": ("l.weight", "int8", "l.SCB"),
    "MXFP4 of gpt-oss": ("l.experts.down_proj_blocks", "uint8", "l.experts.down_proj_bias"),
    "its scales": ("l.experts.down_proj_scales", "uint8", "l.experts.down_proj_bias"),
    "HQQ": ("l.W_q", "uint8", "l.scale"),
    "quanto": ("l.weight._data", "int8", "l.weight._scale"),
    "torchao": ("l._weight_qdata", "int8", "l._weight_scale"),
    "TensorRT-LLM": ("l.weight", "int8", "l.per_channel_scale"),
    "QuIP#": ("l.Qidxs", "int16", "l.Wscale"),
    "Marlin": ("l.B", "int32", "l.s"),
    "codes of 64 bits": ("l.codes", "int64", "l.scale"),
    "pickled bytes of TransformerEngine": ("l._extra_state", "uint8", "l.weight"),
    "float8, ComfyUI": ("l.weight", "float8_e4m3fn", "l.scale_weight"),
    "float8, one mark for all": ("w", "float8_e4m3fn", "scaled_fp8"),
    "float8, ModelOpt": ("l.weight", "float8_e4m3fn", "l.weights_scaling_factor"),
    "float8, a quantizer": ("l.weight", "float8_e4m3fn", "l.weight_quantizer._amax"),
    "float8, DeepSeek": ("l.weight", "float8_e4m3fn", "l.weight_scale_inv"),
}  # fmt: skip


class TestCodes:
    @pytest.fixture
    def models(self, tmp_path):
        """Return a function that writes two models with the codes 1 and 2, or others, and returns their paths."""

        def write(format_name, values=(1, 2)):
            name, dtype, beside = CODES[format_name]
            for replica, value in enumerate(values):
                tensors = {name: torch.tensor([value]).to(getattr(torch, dtype)), beside: torch.tensor([2.0**replica])}
                save_torch(tensors, tmp_path / f"{replica}.safetensors")
            return [tmp_path / f"{replica}.safetensors" for replica in range(len(values))], name

        return write

    @pytest.mark.parametrize("format_name", CODES)
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"weights": "3,1"},
            {"op": "combine", "weights": "1.5,-0.5"},
            {"dtype": "bfloat16"},
            {"decay": "linear"},
            {"partial": True},
            {"skip": "*scal*", "dtype": "bfloat16"},
        ],
        ids=str,
    )
    def test_that_differ_are_refused(self, models, tmp_path, format_name, options):
        paths, name = models(format_name)
        if "*scal*" in options.values() and "scales" in name:
            options = {}
        sentence = rf"^The inputs differ in '{re.escape(name)}', of .*--integers mean.*Nothing was written\.$"
        with pytest.raises(ValueError, match=sentence):
            average_checkpoints(paths, tmp_path / "m.safetensors", **options)
        assert not (tmp_path / "m.safetensors").exists()

    @pytest.mark.parametrize("format_name", ["GPTQ", "float8, ComfyUI"])
    def test_that_differ_from_a_base_are_refused(self, models, tmp_path, format_name):
        [base, *others], _ = models(format_name, (1, 2, 2))
        with pytest.raises(ValueError, match=r"^The inputs differ in"):
            average_checkpoints(others, tmp_path / "m.safetensors", base=base, op="combine", weights="1,1")

    @pytest.mark.parametrize("format_name", CODES)
    def test_that_are_equal_are_kept(self, models, tmp_path, format_name):
        paths, name = models(format_name, (5, 5))
        average_checkpoints(paths, tmp_path / "m.safetensors", dtype="float64")
        mean = load_torch(tmp_path / "m.safetensors")
        _, dtype, beside = CODES[format_name]
        assert (mean[name].dtype, mean[name].float().tolist()) == (getattr(torch, dtype), [5.0])
        assert (mean[beside].dtype, mean[beside].tolist()) == (torch.float64, [1.5])

    def test_are_not_summed(self, models, tmp_path):
        with pytest.raises(ValueError, match=r"^The inputs differ in 'l\.qweight'"):
            average_checkpoints(models("GPTQ")[0], tmp_path / "m.safetensors", op="sum")

    def test_of_one_quantized_input_are_codes(self, tmp_path):
        """A model in 8 bits with a scale and one in 16 bits do not go together by --dtype."""
        save_torch({"l.weight": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "0.safetensors")
        other = {"l.weight": torch.ones(1).to(torch.float8_e4m3fn), "l.weight_scale": torch.ones(1)}
        save_torch(other, tmp_path / "1.safetensors")
        paths = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
        with pytest.raises(CheckpointError, match=r"disagree on the name, shape or dtype of 1 tensor"):
            average_checkpoints(paths, tmp_path / "m.safetensors", dtype="bfloat16", skip="*scale")


class TestIntegers:
    @pytest.fixture
    def pair(self, tmp_path):
        """Return two files of counters, tables and flags."""
        for replica in range(2):
            tensors = {
                "table": np.array([1, 10]) * 2**replica,
                "bn.num_batches_tracked": np.array([10 * 2**replica]),
                "n": np.array(4 * 2**replica),
            }
            save_file(tensors, tmp_path / f"{replica}.safetensors")
        return [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]

    @pytest.mark.parametrize(("integers", "expected"), [("mean", ([2, 15], [15], 6)), ("first", ([1, 10], [10], 4))])
    def test_have_two_ways_on(self, pair, tmp_path, integers, expected):
        average_checkpoints(pair, tmp_path / "m.npz", integers=integers)
        mean = np.load(tmp_path / "m.npz")
        found = mean["table"].tolist(), mean["bn.num_batches_tracked"].tolist(), mean["n"].item()
        assert found == expected

    def test_that_count_are_averaged(self, pair, tmp_path):
        average_checkpoints(pair, tmp_path / "m.npz", skip="table")
        mean = np.load(tmp_path / "m.npz")
        assert (mean["bn.num_batches_tracked"].tolist(), mean["n"].item()) == ([15], 6)

    def test_need_one_of_two_words(self, pair, tmp_path):
        with pytest.raises(ValueError, match=r"^--integers got 'last'\. It takes mean or first\.$"):
            average_checkpoints(pair, tmp_path / "m.npz", integers="last")

    def test_in_8_bits_with_a_scale_are_spoken_of_too(self, tmp_path):
        for replica in range(2):
            tensors = {"w": torch.tensor([2.0**replica]).to(torch.float8_e5m2), "w_scale": torch.ones(1)}
            save_torch(tensors, tmp_path / f"{replica}.safetensors")
        pair = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
        average_checkpoints(pair, tmp_path / "m.safetensors", integers="mean", dtype="float32")
        assert load_torch(tmp_path / "m.safetensors")["w"].tolist() == [1.5]
        average_checkpoints(pair, tmp_path / "m.safetensors", integers="first", dtype="float32")
        assert load_torch(tmp_path / "m.safetensors")["w"].dtype is torch.float8_e5m2


class TestDtype:
    """``--dtype``: the exact value, rounded once, whatever the dtypes of inputs."""

    def test_rounds_once(self, tmp_path):
        for replica, value in enumerate((-0.13210485875606537, 1.1264654397964478)):
            save_file({"w": np.array([value], "float32")}, tmp_path / f"{replica}.safetensors")
        paths = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
        average_checkpoints(paths, tmp_path / "m.safetensors", dtype="bfloat16")
        assert load_torch(tmp_path / "m.safetensors")["w"].view(torch.int16).item() == 0x3EFF

    @pytest.mark.parametrize("target", FLOATS)
    @pytest.mark.parametrize(
        "sources",
        [("float32",) * 3, ("float64",) * 3, ("bfloat16",) * 3, ("float16", "bfloat16", "float8_e4m3fn"),
         ("float32", "float16", "float64")],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize(
        "options",
        [{}, {"weights": "0.3,0.7,0.5"}, {"op": "sum"}, {"op": "combine", "weights": "1.5,-0.7,0.2"},
         {"weights": "1,0,3"}],
        ids=str,
    )  # fmt: skip
    def test_is_the_exact_value_rounded_once(self, tmp_path, sources, target, options):
        """Any bits, near cancellations, and values beside, on and between the middles of neighbours."""
        parts = [np.concatenate([hostile(d, 100, r), middles(d, target, r)]) for r, d in enumerate(sources)]
        for replica, (part, dtype) in enumerate(zip(parts, sources, strict=True)):
            words = torch.from_numpy(part.view(f"int{8 * part.itemsize}"))
            save_torch({"w": words.view(getattr(torch, dtype))}, tmp_path / f"{replica}.safetensors")
        paths = [tmp_path / f"{replica}.safetensors" for replica in range(3)]
        average_checkpoints(paths, tmp_path / "m.safetensors", dtype=target, **options)
        found = load_torch(tmp_path / "m.safetensors")["w"]
        weights = read_text(options.get("weights", "1,1,1"))
        divisor = sum(weights) if options.get("op", "mean") == "mean" else 1
        expected = [rounded(value, target) for value in exact(parts, weights, divisor)]
        assert found.dtype == getattr(torch, target)
        assert found.double().tolist() == expected


def middles(dtype, target, replica):
    """Return floats of which combinations lie at and near the middle between two neighbours of ``target``."""
    drawing = np.random.default_rng(11)
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[target]
    base = drawing.choice([1.0, -1.0], 60) * (1 + (2 * drawing.integers(0, 2**bits, 60) + 1) * 2.0 ** -(bits + 1))
    tiny = drawing.choice([0.0, 2.0**-60, -(2.0**-60), 2.0**-24], 60)
    values = (base, tiny, -tiny * drawing.integers(0, 2, 60))[replica]
    with np.errstate(all="ignore"):
        return np.asarray(values, np.float32 if itemsize(dtype) == 1 else np.float64).astype(numpy_dtype(dtype))
