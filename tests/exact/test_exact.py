"""``treefold.exact``: the exact value, rounded once, against fractions; whatever it is asked of."""

import itertools
import random
from fractions import Fraction

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch
from exact_oracle import KINDS, WIDTHS, near_one
from hostile_arrays import INPUT_LAYOUTS, Hostile
from whole_oracle import number, result_bits

import treefold
from treefold import errors, exact
from treefold.execution import native

#: Of each dtype, what results are by default.
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def bits_of(result):
    array = np.asarray(result)
    return int(array.view(f"u{array.itemsize}"))


def drawn(seed, kind, dtype, length):
    form = WIDTHS[dtype]
    return kind(np.random.default_rng(seed), form, (1, length))[0].astype(f"u{form[0] // 8}")


@pytest.fixture(params=["core", "NumPy"], autouse=True)
def _with_and_without_core(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(native, "HAS_NATIVE", False)


class TestResults:
    @pytest.mark.parametrize("asked", [None, *WIDTHS])
    @pytest.mark.parametrize("dtype", WIDTHS)
    def test_are_rounded_once(self, dtype, asked):
        """Ties, ties with a speck, cancellation, subnormals, overflow in between, infinities, NaN; of every length."""
        for seed, (kind, length) in enumerate(itertools.product(KINDS, (1, 2, 3, 40))):
            bits = drawn(seed, kind, dtype, length)
            numbers = [number(dtype, one) for one in bits.tolist()]
            squares = [one * one for one in numbers]
            array, to = bits.view(dtype), asked or WIDER[dtype]
            found = [bits_of(one(array, dtype=asked)) for one in (exact.sum, exact.mean, exact.norm)]
            right = [result_bits(to, numbers), result_bits(to, numbers, length), result_bits(to, squares, is_root=True)]
            if not array.any() and np.signbit(array).all():
                right[:2] = [1 << (WIDTHS[to][0] - 1)] * 2
            assert found == right, (kind.__name__, length)

    @pytest.mark.parametrize("dtype", WIDTHS)
    def test_of_dot_are_rounded_once(self, dtype):
        for seed, (kind, length) in enumerate(itertools.product(KINDS, (1, 2, 40))):
            one, other = (drawn(seed * 2 + at, kind, dtype, length) for at in range(2))
            pairs = [(number(dtype, a), number(dtype, b)) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
            # Python multiplies infinities by their signs: fractions may be too large for its floats.
            terms = [
                a * b if isinstance(a, Fraction) and isinstance(b, Fraction) else float(sign(a)) * float(sign(b))
                for a, b in pairs
            ]
            assert bits_of(exact.dot(one.view(dtype), other.view(dtype))) == result_bits(WIDER[dtype], terms)

    @pytest.mark.parametrize("dtype", WIDTHS)
    def test_of_zeros_have_the_sign_that_all_have(self, dtype):
        minus = np.full(5, -0.0, dtype)
        assert [np.signbit(np.float64(one(minus))) for one in (exact.sum, exact.mean, exact.norm)] == [
            True,
            True,
            False,
        ]
        assert not np.signbit(np.float64(exact.sum([minus, np.zeros(1, dtype)])))
        assert not np.signbit(np.float64(exact.sum(np.array([1, -1], dtype))))
        assert not np.signbit(np.float64(exact.sum(minus[:0])))
        assert np.signbit(np.float64(exact.sum([minus[:0], minus])))
        assert not np.signbit(np.float64(exact.dot(minus, np.ones(5, dtype))))

    @pytest.mark.parametrize("dtypes", [["float32"], ["float32", "float64"], ["bfloat16", "float32"]])
    def test_of_what_is_no_number(self, dtypes):
        """In arrays that are added up together, and in some of other dtypes, in either order."""
        for values in itertools.product((1.0, -0.0, np.inf, -np.inf, np.nan), repeat=2):
            tree = [np.array([value], dtype) for value, dtype in zip(values, dtypes * 2, strict=False)]
            right = result_bits(
                "float64", [value if value - value else Fraction(value) for value in values]
            ) or np.float64(sum(values, -0.0)).view(np.uint64)
            assert bits_of(exact.sum(tree, dtype="float64")) == right
            squares = np.float64(sum(value * value for value in values))
            assert bits_of(exact.norm(tree, dtype="float64")) == bits_of(
                np.nan if np.isnan(squares) else np.sqrt(squares)
            )

    def test_of_zeros_of_several_dtypes_have_the_sign_that_all_have(self):
        for one, other in itertools.product((0.0, -0.0), repeat=2):
            total = exact.sum([np.float32([one]), np.float64([other])])
            assert np.signbit(total) == (np.signbit(one) and np.signbit(other))

    def test_of_roots_just_above_a_tie(self):
        """The speck is hundreds of bits away."""
        tie, speck = np.array([1 + 2.0**-24]), np.array([2.0**-400])
        assert exact.norm(tie, dtype="float32") == 1
        assert exact.norm([tie, speck], dtype="float32") == np.float32(1 + 2.0**-23)
        least = np.full(1, 2.0**-1074)
        assert [float(exact.norm([least] * count)) / 2.0**-1074 for count in (1, 2, 3, 6, 7)] == [1, 1, 2, 2, 3]

    def test_do_not_depend_on_the_cutting_or_the_order(self):
        """One result in 50 orders, each cut in another way."""
        draw = random.Random(4)  # noqa: S311 - a test's choice
        for dtype, kind in itertools.product(("float32", "float64", "bfloat16"), KINDS[1:]):
            array = drawn(7, kind, dtype, 3000).view(dtype)
            found = set()
            for _ in range(50):
                own = array[draw.sample(range(3000), 3000)]
                tree = np.split(own, sorted(draw.sample(range(3000), draw.randrange(4))))
                found.add((bits_of(exact.sum(tree)), bits_of(exact.mean(tree)), bits_of(exact.norm(tree))))
            assert len(found) == 1

    def test_of_many_equal_numbers(self):
        """A mean is none of the sum's roundings, and none of the number's."""
        array = np.full(1_000_003, 0.1, np.float32)
        assert exact.mean(array) == np.float32(0.1)
        assert exact.sum(array, dtype="float64") == float(Fraction(float(np.float32(0.1))) * 1_000_003)


def sign(one):
    return one if isinstance(one, float) else (one > 0) - (one < 0)


class TestDtypes:
    @pytest.mark.parametrize("dtype", [*WIDTHS])
    def test_of_results_are_the_inputs_but_for_16_bits(self, dtype):
        for one in (exact.sum, exact.mean, exact.norm):
            assert one(np.ones(3, dtype)).dtype.name == WIDER[dtype]
            assert one(np.ones(3, dtype)).shape == ()

    @pytest.mark.parametrize(
        ("dtypes", "of_sum", "of_mean"),
        [
            (["float32", "float64"], "float64", "float64"),
            (["bfloat16", "float16"], "float32", "float32"),
            (["int8", "bool"], "int64", "float32"),
            (["uint8"], "uint64", "float32"),
            (["int32"], "int64", "float64"),
            (["int64", "float32"], "float64", "float64"),
        ],
    )
    def test_of_several_kinds_are_the_widest(self, dtypes, of_sum, of_mean):
        tree = [np.ones(3, dtype) for dtype in dtypes]
        assert (exact.sum(tree).dtype.name, exact.mean(tree).dtype.name) == (of_sum, of_mean)
        assert (float(exact.sum(tree)), float(exact.mean(tree))) == (3 * len(dtypes), 1)

    @pytest.mark.parametrize(
        "asked", ["float16", np.float16, np.dtype("float16"), torch.float16, tf.float16, jnp.float16]
    )
    def test_are_asked_for_in_the_words_of_any_framework(self, asked):
        assert exact.sum(np.float32([1, 2**-12]), dtype=asked).dtype == np.float16

    def test_of_bfloat16_are_ml_dtypes(self):
        assert exact.sum(np.ones(3), dtype="bfloat16").dtype == ml_dtypes.bfloat16
        assert exact.sum(torch.ones(3), dtype=torch.bfloat16).dtype == torch.bfloat16

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
    def test_of_integers_hold_the_whole_sum(self, dtype):
        limits = np.iinfo(dtype)
        array = np.random.default_rng(3).integers(limits.min, limits.max, 70_001, dtype, endpoint=True)
        total = sum(array.tolist())
        assert exact.sum(array, dtype="float64") == float(total)
        assert exact.mean(array, dtype="float64") == total / 70_001
        assert [int(exact.sum(np.array([end], dtype))) for end in (limits.min, limits.max)] == [limits.min, limits.max]
        few = np.array([limits.max] * 3 + [limits.min] * 2, dtype)
        if dtype != "uint64":
            assert int(exact.sum(few)) == 3 * limits.max + 2 * limits.min

    def test_of_bools_count(self):
        assert exact.sum(np.array([True, False, True])) == 2
        assert exact.mean(np.array([True, False])) == np.float32(0.5)


class TestArrays:
    @pytest.mark.parametrize("layout", INPUT_LAYOUTS)
    def test_lie_as_they_like(self, layout):
        values = drawn(1, near_one, "float32", 300).view(np.float32).reshape(10, 30)
        one = Hostile(values, layout)
        plain = np.ascontiguousarray(one.array).astype(np.float32)
        assert bits_of(exact.sum(one.array)) == bits_of(exact.sum(plain))
        assert bits_of(exact.dot(one.array, values)) == bits_of(exact.dot(plain, values))
        assert not one.anything_changed()

    def test_give_results_of_their_framework(self):
        values = np.float32([1, 2, 2])
        assert exact.norm(torch.from_numpy(values)).equal(torch.tensor(3.0))
        assert exact.norm({"a": jnp.asarray(values)}).item() == 3.0
        assert exact.norm([tf.constant(values), values]).numpy() == np.float32(18**0.5)
        assert tf.is_tensor(exact.norm([tf.constant(values), values]))
        assert exact.sum(torch.nn.Parameter(torch.ones(2, 3).t())).tolist() == 6.0

    def test_may_be_a_tree_with_nothing_in_it(self):
        assert exact.sum({"a": np.zeros((0, 3), np.float32), "b": None}).tobytes() == bytes(4)

    @pytest.mark.parametrize("call", ["sum", "mean", "norm"])
    def test_flush_no_subnormals(self, call):
        """Whatever PyTorch was told of this thread."""
        least = np.full(3, 2.0**-149, np.float32)
        before = getattr(exact, call)(least, dtype="float64").tobytes()
        torch.set_flush_denormal(True)
        try:
            after = getattr(exact, call)(least, dtype="float64").tobytes()
            small = exact.sum(least).tobytes()
        finally:
            torch.set_flush_denormal(False)
        assert after == before
        assert small == np.float32(3 * 2.0**-149).tobytes()


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "kind", "says"),
        [
            (lambda: exact.sum({}), errors.ArgumentError, "exact.sum got no array. It takes an array"),
            (lambda: exact.sum("text"), errors.ArgumentError, "'text', which is no array"),
            (lambda: exact.mean(np.zeros(0)), errors.ArgumentError, "exact.mean got no elements."),
            (
                lambda: exact.norm(np.ones(2, int)),
                errors.DtypeError,
                "exact.norm has no meaning for int64. It takes floats",
            ),
            (
                lambda: exact.sum({"a": np.ones(2, complex)}),
                errors.DtypeError,
                "for complex128 at ['a']. It takes floats, integers and bools",
            ),
            (
                lambda: exact.dot([np.ones(2)], [np.ones(3)]),
                errors.MismatchError,
                "exact.dot got float64 (2,) at [0] and float64 (3,) at [0].",
            ),
            (
                lambda: exact.dot([np.ones(2)], [np.ones(2), np.ones(2)]),
                errors.MismatchError,
                "exact.dot got 1 arrays and 2.",
            ),
            (lambda: exact.sum(np.ones(2), dtype="int64"), errors.ArgumentError, "exact.sum got dtype='int64'."),
            (lambda: exact.sum(np.ones(2), dtype="float8"), errors.ArgumentError, "exact.sum got dtype='float8'."),
            (
                lambda: exact.sum(np.full(3, 2**63, np.uint64)),
                errors.ArgumentError,
                'The sum is 27670116110564327424, which uint64 does not hold. Ask for dtype="float64".',
            ),
            (lambda: exact.sum(np.ones(2), group=3), errors.ArgumentError, "group=3 is no group of ranks."),
            (
                lambda: exact.sum(treefold.IndexedSlices(np.ones((1, 2)), np.zeros(1, int), (3, 2))),
                errors.ArgumentError,
                "IndexedSlices may name a row twice.",
            ),
            (lambda: exact.sum(torch.ones(2, device="meta")), errors.ArgumentError, "a meta tensor"),
        ],
    )
    def test_are_one_sentence(self, call, kind, says):
        with pytest.raises(kind) as caught:
            call()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_of_what_is_traced(self):
        with pytest.raises(errors.ArgumentError, match=r"exact.sum cannot be traced into a graph"):
            tf.function(exact.sum)(tf.ones(3))

    def test_of_what_is_not_in_host_memory(self, monkeypatch):
        """As an array of a GPU is read."""
        backend = treefold.backends.backend_of(torch.ones(1))
        monkeypatch.setattr(type(backend), "host_view", lambda *_: None)
        monkeypatch.setattr(type(backend), "device_of", lambda *_: "gpu:0")
        monkeypatch.setattr(type(backend), "has_device", lambda *_: True)
        monkeypatch.setattr(type(backend), "row_types", frozenset())
        with pytest.raises(
            errors.DeviceError, match=r"exact.sum adds in host memory, where the value at \['a'\] is not"
        ):
            exact.sum({"a": torch.ones(3)})


def test_faults_in_the_rounding_are_seen(monkeypatch):
    """A tie that goes up, and a speck that is forgotten, as the tests above would see them."""
    from treefold.exact import scalar_sum  # noqa: PLC0415 - its own name is public, not its parts

    divided = scalar_sum._divided
    tie, speck = np.float32([1, 2.0**-24]), np.float32([1, 2.0**-24, 2.0**-60])
    assert (exact.sum(tie), exact.sum(speck)) == (np.float32(1), np.float32(1 + 2.0**-23))
    monkeypatch.setattr(
        scalar_sum, "_divided", lambda *given: (*divided(*given)[:1], divided(*given)[1] + 1, divided(*given)[2])
    )
    assert exact.sum(tie) != np.float32(1)
    monkeypatch.setattr(scalar_sum, "_divided", lambda *given: (*divided(*given)[:1], 0, divided(*given)[2]))
    assert exact.sum(speck) == np.float32(1)
