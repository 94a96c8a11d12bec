import numpy as np
import pytest
from native_cases import (
    CASES,
    DTYPES,
    EDGES,
    FOLDS,
    FULL_CASES,
    LEVELS,
    SEVERAL_TASKS,
    bits,
    contributions,
    fold_natively,
    fold_of,
    placed,
    reference,
)

from treefold import _native, set_num_threads
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

STREAMED_BYTES = 5 << 20  # more than this in one call is written around the caches


def draw_item(rng, fold, dtype, *, count, length):
    """Return sources, targets, guarded memories and the expected result; the targets anywhere, maybe in place."""
    values = contributions(rng, dtype, count, length)
    expected = reference(values, fold, dtype)
    sources, memories = zip(*[placed(array, int(rng.integers(70))) for array in values], strict=True)
    in_place = [s for s in sources if rng.random() < 0.5] if expected.dtype == values[0].dtype else []
    nothing = np.zeros(length, expected.dtype)
    beside, around = zip(*[placed(nothing, int(rng.integers(70))) for _ in range(rng.integers(1, 4))], strict=True)
    targets = in_place if in_place and rng.random() < 0.5 else [*in_place, *beside]
    return list(sources), targets, [*memories, *around], expected


def outside(memories, targets):
    """Return the bytes of memories without those of the targets, which are left as they are."""
    held = [target.copy() for target in targets]
    for target in targets:
        target.view(np.uint8)[...] = 0
    kept = [memory.tobytes() for memory in memories]
    for target, values in zip(targets, held, strict=True):
        target[...] = values
    return kept


def bits_of(array, fold):
    """Return an array's bytes; which NaN it is counts but for folds in the dtype itself."""
    return bits(array) if fold.accumulate == "native" else array.tobytes()


class TestFold:
    @pytest.mark.parametrize(("op", "dtype"), FOLDS)
    def test_gives_the_bits_of_the_numpy_fold(self, op, dtype):
        """Any values, lengths, alignments, targets, batches, levels, threads, certificates: the reference's bits."""
        rng = np.random.default_rng([FOLDS.index((op, dtype)), 7])
        wrong = []
        for case in range(CASES):
            fold, count = fold_of(rng, op)
            lengths = rng.choice(SEVERAL_TASKS if rng.random() < 0.01 else EDGES, rng.integers(1, 4))
            items = [draw_item(rng, fold, dtype, count=count, length=int(length)) for length in lengths]
            level, threads = case % len(LEVELS), int(rng.integers(1, 9))
            _native.set_certificate(case % len(_native.CERTIFICATES))
            set_num_threads(threads)
            fold_natively([item[:2] for item in items], fold, dtype, level)
            wrong += [
                (case, LEVELS[level], threads, fold, lengths.tolist())
                for _, targets, _, expected in items
                for target in targets
                if bits_of(target, fold) != bits_of(expected, fold)
            ]
        assert not wrong

    def test_is_compared_often_enough_by_a_release(self):
        assert FULL_CASES * len(FOLDS) >= 200_000

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_writes_its_targets_only(self, dtype):
        rng = np.random.default_rng(DTYPES.index(dtype))
        fold = Fold(ReduceOp.MAX if dtype == "bool" else ReduceOp.SUM)
        if dtype.startswith("complex"):
            fold = Fold(ReduceOp.MEAN)
        for case in range(8 * len(EDGES)):
            length = EDGES[case % len(EDGES)]
            sources, targets, memories, _ = draw_item(rng, fold, dtype, count=3, length=length)
            before = outside(memories, targets)
            fold_natively([(sources, targets)], fold, dtype, case % len(LEVELS))
            assert outside(memories, targets) == before

    def test_takes_a_batch_of_every_dtype_at_once(self):
        fold = Fold(ReduceOp.MEAN)
        rng = np.random.default_rng(3)
        drawn = [(d, draw_item(rng, fold, d, count=4, length=1031)) for d in DTYPES[:-1]]
        items = [(DTYPES.index(dtype), sources, targets) for dtype, (sources, targets, _, _) in drawn]
        _native.fold(items, 1, 0, 0)
        assert all(bits(target) == bits(item[3]) for _, item in drawn for target in item[1])

    def test_takes_an_empty_batch(self):
        assert _native.fold([], 0, 0, 0) is None


class TestStreaming:
    @pytest.mark.parametrize(("op", "dtype"), FOLDS)
    def test_gives_the_same_bits(self, op, dtype):
        """Results too large for the caches are written around them, wherever they begin, at every level."""
        rng = np.random.default_rng(FOLDS.index((op, dtype)))
        fold, _ = fold_of(rng, op)
        fold = Fold(fold.op, fold.accumulate, fold.weights and (1, 6))
        itemsize = np.dtype(fold.result_dtype(dtype)).itemsize
        length = STREAMED_BYTES // itemsize // 2 + int(rng.integers(100))
        sources = contributions(rng, dtype, 2, length)
        expected = reference(sources, fold, dtype)
        for level in range(len(LEVELS)):
            _native.set_certificate(level % len(_native.CERTIFICATES))
            targets = [placed(np.zeros(length, expected.dtype), int(rng.integers(64)))[0] for _ in range(2)]
            fold_natively([(sources, targets)], fold, dtype, level)
            assert [bits(target) == bits(expected) for target in targets] == [True, True], LEVELS[level]


class TestThreads:
    @pytest.mark.parametrize("threads", range(1, 9))
    @pytest.mark.parametrize(("op", "dtype"), [("SUM", "float32"), ("MEAN", "float64"), ("PRODUCT", "bfloat16")])
    def test_never_change_bits(self, op, dtype, threads):
        fold = Fold(ReduceOp(op))
        sources = contributions(np.random.default_rng(5), dtype, 5, 300_007)
        target = np.empty(300_007, dtype)
        set_num_threads(threads)
        fold_natively([(sources, [target])], fold, dtype)
        assert bits(target) == bits(reference(sources, fold, dtype))
