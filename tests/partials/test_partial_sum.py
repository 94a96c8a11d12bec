"""Exact partial sums, by the core and by NumPy, against whole numbers. ``TREEFOLD_CASES=full`` adds more of them."""

import os

import numpy as np
import partial_cases
import pytest

from treefold.backends import numpy_partial
from treefold.backends.numpy_partial import LENGTH, Factor
from treefold.errors import ArgumentError
from treefold.execution import native
from treefold.partials import partial_sum
from treefold.partials.partial_sum import PartialSum, Pieces

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
CASES, MOST_ADDS = (2_000, 60) if IS_FULL else (25, 20)
MODES = {"float16": {0, 1, 2}, "bfloat16": {0, 1, 2}, "float32": {0, 1, 2}, "float64": {1, 2}}


@pytest.fixture(params=["core", "NumPy"])
def way(request, monkeypatch):
    """Add by the core, or without it."""
    if request.param == "NumPy":
        monkeypatch.setattr(partial_sum, "HAS_NATIVE", False)
    elif not native.HAS_NATIVE:
        pytest.skip("there is no core here")
    return request.param


def one(value, dtype=np.float32):
    return Pieces.of([np.asarray([value], dtype)])


@pytest.mark.usefixtures("way")
class TestPartialSum:
    @pytest.mark.parametrize("dtype", partial_cases.DTYPES)
    def test_has_the_exact_bits_in_any_tree(self, dtype):
        random = np.random.default_rng([7, list(partial_cases.DTYPES).index(dtype)])
        done = [partial_cases.wrong_elements(random, dtype, MOST_ADDS) for _ in range(CASES)]
        assert sum(wrong for wrong, _ in done) == 0
        assert set.union(*(modes for _, modes in done)) == MODES[dtype]

    @pytest.mark.parametrize("level", native.vector_levels())
    def test_is_the_same_on_every_vector_level(self, level, monkeypatch):
        monkeypatch.setattr(native, "level", lambda: native.vector_levels().index(level))
        random = np.random.default_rng(11)
        assert (
            sum(partial_cases.wrong_elements(random, dtype)[0] for dtype in partial_cases.DTYPES for _ in range(6)) == 0
        )

    def test_stays_in_one_float64_for_a_thousand_ordinary_updates(self):
        random, length = np.random.default_rng(0), 100 * LENGTH
        total = PartialSum("float32", length)
        for _ in range(1000):
            total.add(Pieces.of([random.normal(size=length).astype(np.float32)]), Factor(partial_cases.ONE))
        assert total.nbytes <= 2.1 * 4 * length

    @pytest.mark.parametrize(("dtype", "most"), [("float32", 4.3), ("float64", 2.1)])
    def test_stays_in_two_with_weights(self, dtype, most):
        random, length = np.random.default_rng(0), 100 * LENGTH
        total = PartialSum(dtype, length)
        for _ in range(300):
            words = int(random.integers(1, 5000)) * partial_cases.ONE
            total.add(Pieces.of([random.normal(size=length).astype(dtype)]), Factor(words))
        assert total.nbytes <= most * np.dtype(dtype).itemsize * length

    def test_of_nothing_is_minus_zero(self):
        assert np.signbit(PartialSum("float32", 3).finish(partial_cases.ONE)).all()

    def test_of_float64_may_overflow_on_the_way(self):
        total, largest = PartialSum("float64", 1), np.finfo(np.float64).max
        for value in (largest, largest, -largest):
            total.add(one(value, np.float64), Factor(partial_cases.ONE))
        assert total.finish(partial_cases.ONE).tolist() == [largest]

    def test_of_diverged_values_takes_no_more_memory(self):
        total = PartialSum("float32", LENGTH)
        before = total.nbytes
        for value in (np.nan, np.inf, 1.0):
            total.add(Pieces.of([np.full(LENGTH, value, np.float32)]), Factor(partial_cases.ONE))
        assert np.isnan(total.finish(partial_cases.ONE)).all()
        assert total.nbytes == before
        assert not total.is_finite(3, 4)

    def test_tells_which_elements_are_not_finite(self):
        total = PartialSum("float32", 3 * LENGTH)
        values = np.ones(3 * LENGTH, np.float32)
        values[LENGTH + 5] = np.inf
        values[-1] = 2.0**100  # and then in whole numbers
        for weight in (1, 2**64 - 1):
            total.add(Pieces.of([values]), Factor(weight))
        assert [total.is_finite(at, at + 1) for at in (LENGTH + 4, LENGTH + 5, LENGTH + 6)] == [True, False, True]
        assert total.is_finite(2 * LENGTH, 3 * LENGTH)

    def test_can_be_merged_with_itself(self):
        total = PartialSum("float32", 1)
        total.add(one(3.0), Factor(partial_cases.ONE))
        total.merge(total)
        assert total.finish(partial_cases.ONE).tolist() == [6.0]

    def test_has_the_same_bits_on_the_wire(self):
        random = np.random.default_rng(5)
        arrays = [partial_cases.hostile(random, "float32", 1000) for _ in range(9)]
        total = partial_cases.in_random_tree(random, "float32", arrays, [partial_cases.ONE] * 9)
        message = np.concatenate(total.message(0, total.block_count))
        sent, rest = PartialSum.of_message("float32", 1000, message)
        assert not rest.size
        assert sent.finish(partial_cases.ONE).tobytes() == total.finish(partial_cases.ONE).tobytes()

    def test_agrees_between_the_core_and_numpy(self, monkeypatch):
        """Either can continue what the other began: the modes are the same, too."""
        random = np.random.default_rng(3)
        arrays = [partial_cases.hostile(random, "float64", 300) for _ in range(8)]
        states = []
        for has_native in (True, False):
            monkeypatch.setattr(partial_sum, "HAS_NATIVE", has_native)
            total = PartialSum("float64", 300)
            for array in arrays:
                total.add(Pieces.of([array]), Factor(3 * partial_cases.ONE))
            states.append(total.state())
        for name, array in states[0].items():
            assert np.array_equal(array, states[1][name], equal_nan=True), name


class TestState:
    @pytest.fixture
    def state(self):
        total = PartialSum("float32", 3 * LENGTH)
        for value in (1e30, 1e-30, 1.0):
            total.add(Pieces.of([np.repeat(np.float32([value, 1, 1]), LENGTH)]), Factor(partial_cases.ONE))
        return total.state()

    def test_has_the_blocks_of_each_mode(self, state):
        assert state["modes"].tolist() == [2, 0, 0]
        assert {name: len(array) for name, array in state.items()} == {"modes": 3, "sums": 2, "rests": 0, "wholes": 1}

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("modes", lambda array: array[:2]),
            ("modes", lambda array: array + np.uint8(3)),
            ("modes", lambda _: np.uint8([2, 2, 0])),
            ("modes", lambda array: array.tolist()),
            ("sums", lambda array: array[:1]),
            ("sums", lambda array: array.astype(np.float32)),
            ("rests", lambda _: np.zeros((1, LENGTH))),
            ("wholes", lambda array: array[:, :, 1:]),
            ("wholes", lambda _: None),
        ],
    )
    def test_that_was_changed_is_refused(self, state, name, change):
        state[name] = change(state[name])
        with pytest.raises(ArgumentError, match="Nothing was loaded"):
            PartialSum.of_state("float32", 3 * LENGTH, state, "state")

    def test_of_float64_has_no_single_floats(self):
        state = PartialSum("float64", 1).state() | {"modes": np.zeros(1, np.uint8), "rests": np.zeros((0, LENGTH))}
        with pytest.raises(ArgumentError, match="modes"):
            PartialSum.of_state("float64", 1, state, "state")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_addition_that_loses_something_is_found(dtype, monkeypatch):
    """A seeded fault: blocks of one float64, or of two, never have to be held in the next mode."""
    monkeypatch.setattr(partial_sum, "HAS_NATIVE", False)
    monkeypatch.setattr(numpy_partial, "_error", lambda *arrays: np.zeros_like(arrays[2]))
    random = np.random.default_rng(7)
    assert sum(partial_cases.wrong_elements(random, dtype)[0] for _ in range(20)) > 0
