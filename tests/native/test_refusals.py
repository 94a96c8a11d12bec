import re

import numpy as np
import pytest
from native_cases import DTYPES, OPS

from treefold import _native

FLOAT32, SUM, MEAN, EXACT, WIDEST = DTYPES.index("float32"), OPS.index("SUM"), OPS.index("MEAN"), 0, 0
FOUR = np.zeros(4, np.float32)


def read_only():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


def fold(items, op=SUM, accumulate=EXACT, level=WIDEST, *weights):
    return _native.fold(items, op, accumulate, level, *weights)


def one(sources, targets, dtype=FLOAT32):
    return [(dtype, sources, targets)]


LAYOUT = "is not row-major, aligned and in native byte order"
REFUSED = {
    "no tuple": (([3],), "fold takes items (dtype, sources, targets), dtype being a number."),
    "two parts": (([(FLOAT32, [FOUR])],), "fold takes items (dtype, sources, targets), dtype being a number."),
    "a name": ((one([FOUR], [FOUR], "float32"),), "fold takes items (dtype, sources, targets), dtype being a number."),
    "no dtype": ((one([FOUR], [FOUR], 15),), "fold knows no dtype 15."),
    "below dtypes": ((one([FOUR], [FOUR], -1),), "fold knows no dtype -1."),
    "no op": ((one([FOUR], [FOUR]), 5), "fold knows no op 5."),
    "traffic": ((one([FOUR], [FOUR]), -1), "fold knows no op -1."),
    "no accumulation": ((one([FOUR], [FOUR]), SUM, 2), "fold knows no accumulation 2."),
    "no level": ((one([FOUR], [FOUR]), SUM, EXACT, 99), "There is no vector level 99 on this machine."),
    "sum of bool": ((one([FOUR], [FOUR], 14),), "fold has no meaning for this op and dtype 14."),
    "minimum of complex": ((one([FOUR], [FOUR], 13), 2), "fold has no meaning for this op and dtype 13."),
    "no sources": ((one([], [FOUR]),), "fold got item 0 without a source."),
    "second item": (([*one([FOUR], [FOUR]), *one([], [FOUR])],), "fold got item 1 without a source."),
    "no array": ((one([3.0], [FOUR]),), "fold got source 0 of item 0 that is no NumPy array."),
    "no array behind": ((one([FOUR, None], [FOUR]),), "fold got source 1 of item 0 that is no NumPy array."),
    "bytes": ((one([FOUR], [bytearray(16)]),), "fold got target 0 of item 0 that is no NumPy array."),
    "float64": (
        (one([FOUR, np.zeros(4)], [FOUR]),),
        "fold got source 1 of item 0 with elements of 8 bytes where 4 are meant.",
    ),
    "length": (
        (one([FOUR], [FOUR, np.zeros(3, np.float32)]),),
        "fold got target 1 of item 0 with 3 elements where source 0 has 4.",
    ),
    "read-only": ((one([FOUR], [read_only()]),), "fold got target 0 of item 0 that is read-only."),
    "strided": ((one([np.zeros(8, np.float32)[::2]], [FOUR]),), f"fold got source 0 of item 0 that {LAYOUT}."),
    "reversed": ((one([FOUR], [FOUR[::-1]]),), f"fold got target 0 of item 0 that {LAYOUT}."),
    "swapped": ((one([FOUR.astype(">f4")], [FOUR]),), f"fold got source 0 of item 0 that {LAYOUT}."),
    "unaligned": (
        (one([np.zeros(17, np.uint8)[1:].view(np.float32)], [FOUR]),),
        f"fold got source 0 of item 0 that {LAYOUT}.",
    ),
    "weights": (
        (one([FOUR], [FOUR]), MEAN, EXACT, WIDEST, bytes(4 * [1, 0, 0, 0]), 2),
        "fold got 2 weights for 1 sources.",
    ),
    "weighted sum": ((one([FOUR], [FOUR]), SUM, EXACT, WIDEST, b"\1\0\0\0"), "fold takes weights with MEAN only."),
    "a weight of 0": (
        (one([FOUR, FOUR], [FOUR]), MEAN, EXACT, WIDEST, b"\1\0\0\0\0\0\0\0"),
        "A weight is 0; its contribution is to be left out.",
    ),
    "half a weight": ((one([FOUR], [FOUR]), MEAN, EXACT, WIDEST, b"\1"), "These are not the bytes of weights."),
}


class TestFold:
    @pytest.mark.parametrize(("arguments", "sentence"), REFUSED.values(), ids=REFUSED)
    def test_says_what_was_got(self, arguments, sentence):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            fold(*arguments)

    def test_writes_nothing_before_refusing(self):
        target = np.arange(4, dtype=np.float32)
        with pytest.raises(ValueError, match=r"^fold got target 0 of item 1 with 3 elements"):
            fold([*one([FOUR], [target]), *one([FOUR], [np.zeros(3, np.float32)])])
        assert target.tolist() == [0, 1, 2, 3]

    def test_takes_read_only_sources(self):
        target = np.ones(4, np.float32)
        fold(one([read_only()], [target]))
        assert not target.any()


class TestThreads:
    def test_are_at_least_one(self):
        with pytest.raises(ValueError, match=r"^The number of threads is 0, but one works at least\.$"):
            _native.set_num_threads(0)

    def test_are_bounded(self):
        _native.set_num_threads(2**62)
        assert _native.num_threads() == 1024


class TestEmpty:
    def test_takes_no_objects(self):
        with pytest.raises(ValueError, match=r"^An array of objects has no memory of its own\.$"):
            _native.empty((3,), np.dtype(object))

    def test_takes_no_negative_length(self):
        with pytest.raises(ValueError, match=r"^A shape has no negative lengths\.$"):
            _native.empty((3, -1), np.dtype("float32"))

    def test_says_that_a_result_is_beyond_all_addresses(self):
        with pytest.raises(
            MemoryError, match=r"^A result of this shape would have more bytes than there are addresses"
        ):
            _native.empty((2**31, 2**31), np.dtype("float64"))
