"""Rows: arrays of one leaf in every replica, read and folded by the native core."""

import re
import subprocess
import sys

import numpy as np
import pytest
from native_cases import DTYPES, OPS

from treefold import _native

FLOAT32, INT64, SUM, MEAN, WIDE, WIDEST = (
    DTYPES.index("float32"),
    DTYPES.index("int64"),
    *map(OPS.index, ("SUM", "MEAN")),
    0,
    0,
)


def read(*arrays, place=None):
    return _native.read_arrays("backend", arrays, arrays, place)


def owned(count=3, length=5, dtype=np.float32):
    """Return an array per replica; replica r holds 2**r."""
    return [np.full(length, 2**r, dtype) for r in range(count)]


def fold(rows, targets, *, dtypes=(FLOAT32,), op=SUM, before=None):
    return _native.RowFold(dtypes, op, WIDE, WIDEST).fold(rows, targets, before)


class Subclass(np.ndarray):
    """An array that may mean something else."""


class TestReadArrays:
    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (4, 5)])
    @pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "complex128", "float16"])
    def test_says_what_arrays_agree_in(self, shape, dtype):
        arrays = tuple(np.zeros(shape, dtype) for _ in range(3))
        row = read(*arrays)
        assert (row.shape, row.dtype) == (shape, np.dtype(dtype))
        assert row.arrays is row.views
        assert row.arrays == arrays or shape != ()
        assert row.addresses == tuple(array.__array_interface__["data"][0] for array in arrays)
        assert row.backend == "backend"

    @pytest.mark.parametrize(
        "other",
        [
            lambda: np.zeros(4, np.float32),
            lambda: np.zeros((5, 1), np.float32),
            lambda: np.zeros(5),
            lambda: np.zeros(5, np.int32),
            lambda: np.zeros(10, np.float32)[::2],
            lambda: np.zeros(5, np.float32)[::-1],
            lambda: np.zeros(5, ">f4"),
            lambda: np.zeros(21, np.uint8)[1:].view(np.float32),
            lambda: np.zeros(5, np.float32).view(Subclass),
            lambda: np.ma.masked_array(np.zeros(5, np.float32)),
            lambda: np.float32(0),
            lambda: [0.0] * 5,
            lambda: None,
        ],
    )
    def test_makes_no_row_of_anything_else(self, other):
        assert read(np.zeros(5, np.float32), other()) is None
        assert read(other(), np.zeros(5, np.float32)) is None

    @pytest.mark.parametrize("dtype", ["M8[s]", "m8[us]", "S4", "U2", "V8", object, [("a", "f4")]])
    def test_makes_no_row_of_what_is_no_number(self, dtype):
        assert read(np.zeros(3, dtype), np.zeros(3, dtype)) is None

    def test_makes_no_row_of_nothing(self):
        assert read() is None

    def test_has_equal_keys_for_equal_kinds_only(self):
        key = read(*owned()).key
        assert key == read(*owned()).key
        assert hash(key) == hash(read(*owned()).key)
        others = [
            read(*owned(4)),
            read(*owned(3, 6)),
            read(*owned(3, (5, 1))),
            read(*owned(3, (1, 5))),
            read(*owned(dtype=np.int32)),
            read(*owned(), place="elsewhere"),
            _native.read_arrays("other", tuple(owned()), tuple(owned())),
        ]
        keys = [key, *[row.key for row in others]]
        assert len(set(keys)) == len(keys)

    def test_keeps_its_arrays_alive(self):
        row = read(*owned())
        result = read(np.zeros(5, np.float32))
        assert fold([row], [result])
        assert (result.arrays[0] == 7).all()

    def test_needs_a_view_of_each_array(self):
        with pytest.raises(ValueError, match=r"^A row has a view of each of its arrays\.$"):
            _native.read_arrays("backend", tuple(owned()), tuple(owned(2)))


class TestNewArrays:
    def test_is_of_another_rows_shape(self):
        row = _native.new_arrays("backend", read(*owned(3, (2, 3))), np.dtype("float64"), 4)
        assert (row.backend, row.shape, row.dtype, len(row.arrays)) == ("backend", (2, 3), np.dtype("float64"), 4)
        assert all(array.shape == (2, 3) and array.dtype == np.float64 for array in row.arrays)
        assert all(array.flags.carray for array in row.arrays)
        assert len(set(row.addresses)) == 4

    def test_has_an_array_at_least(self):
        with pytest.raises(ValueError, match=r"^A row has an array at least\.$"):
            _native.new_arrays("backend", read(*owned()), np.dtype("float32"), 0)


class TestRowFold:
    def test_folds_in_place(self):
        for again in (False, True):
            arrays = owned()
            row = read(*arrays)
            assert fold([row], [read(*arrays) if again else row])
            assert all((array == 7).all() for array in arrays)

    @pytest.mark.parametrize("length", [0, 1, 5, 8_000, 300_007])
    def test_folds_into_given_arrays(self, length):
        arrays, ends = owned(3, length), owned(2, length)
        assert fold([read(*arrays)], [read(*ends)])
        assert all((end == 7).all() for end in ends)
        assert [array[:1].tolist() for array in arrays] == [[2.0**r][:length] for r in range(3)]

    def test_folds_several_rows(self):
        rows = [read(*owned()), read(*owned(4, 2, np.int64))]
        assert fold(rows, rows, dtypes=(FLOAT32, INT64))
        assert [row.arrays[0][0] for row in rows] == [7, 15]

    def test_lets_contributions_share_memory(self):
        memory = np.arange(8, dtype=np.float32)
        end = read(np.zeros(5, np.float32))
        assert fold([read(memory[:5], memory[2:7], memory[:5])], [end])
        assert end.arrays[0].tolist() == [2, 5, 8, 11, 14]

    @pytest.mark.parametrize(
        "arrays",
        [
            lambda memory: ([memory[:5], memory[3:8]], None),
            lambda memory: ([memory[:5], memory[:5]], None),
            lambda memory: ([memory[:5], memory[8:13]], [memory[4:9]]),
            lambda memory: ([memory[:5], memory[8:13]], [memory[8:13]]),
            lambda memory: ([memory[:15]], [memory[2:17], memory[16:31]]),
            lambda memory: ([memory[20:25]], [memory[:5], memory[1:6]]),
        ],
    )
    def test_does_nothing_where_a_target_shares_memory(self, arrays):
        memory = np.arange(32, dtype=np.float32)
        sources, ends = arrays(memory)
        row, noted = read(*sources), []
        assert fold([row], [row if ends is None else read(*ends)], before=noted.append) is False
        assert memory.tolist() == list(range(32))
        assert not noted

    def test_does_nothing_where_a_target_is_read_only(self):
        arrays = owned()
        arrays[2].flags.writeable = False
        row = read(*arrays)
        assert fold([row], [row]) is False
        assert [array[0] for array in arrays] == [1, 2, 4]

    def test_sees_that_an_array_was_locked_when_it_was_read(self):
        locked = np.zeros(5, np.float32)
        locked.flags.writeable = False
        assert fold([read(*owned())], [read(locked)]) is False

    def test_says_that_it_will_write(self):
        arrays = owned()
        row = read(*arrays)

        def refuse(targets):
            assert targets == [row]
            raise KeyError

        with pytest.raises(KeyError):
            fold([row], [row], before=refuse)
        assert [array[0] for array in arrays] == [1, 2, 4]

    @pytest.mark.parametrize(
        ("rows", "targets", "dtypes", "sentence"),
        [
            ([], [], (FLOAT32,), "RowFold takes 1 rows, and as many targets."),
            ([owned()], [], (FLOAT32,), "RowFold takes 1 rows, and as many targets."),
            (
                [owned(3, 4)],
                [owned(3, 5)],
                (FLOAT32,),
                "RowFold got row 0 of another length, dtype or device than its ",
            ),
            (
                [owned()],
                [owned(dtype=float)],
                (FLOAT32,),
                "RowFold got row 0 of another length, dtype or device than its ",
            ),
            ([owned()], [owned()], (INT64,), "RowFold got row 0 of another length, dtype or device than its "),
            ([owned()], [owned()], (99,), "fold knows no dtype 99."),
        ],
    )
    def test_refuses_what_does_not_fit(self, rows, targets, dtypes, sentence):
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
            fold([read(*row) for row in rows], [read(*row) for row in targets], dtypes=dtypes)

    def test_writes_nothing_before_refusing(self):
        good, bad = read(*owned()), read(*owned(dtype=float))
        with pytest.raises(ValueError, match=r"^RowFold got row 1"):
            fold([good, bad], [good, bad], dtypes=(FLOAT32, FLOAT32))
        assert [array[0] for array in good.arrays] == [1, 2, 4]

    @pytest.mark.parametrize("rows", [[None], ["row"], [np.zeros(3, np.float32)]])
    def test_takes_rows_only(self, rows):
        with pytest.raises((TypeError, RuntimeError)):
            fold(rows, rows)

    @pytest.mark.parametrize(("op", "dtypes", "sentence"), [(9, (FLOAT32,), "no op 9"), (-1, (FLOAT32,), "no op -1")])
    def test_knows_its_ops(self, op, dtypes, sentence):
        with pytest.raises(ValueError, match=sentence):
            _native.RowFold(dtypes, op, WIDE, WIDEST)

    def test_gives_means_of_integers_as_floats(self):
        row, end = read(*owned(3, 4, np.int64)), read(np.zeros(4))
        assert fold([row], [end], dtypes=(INT64,), op=MEAN)
        assert end.arrays[0].tolist() == [7 / 3] * 4


class TestTheEnd:
    def test_of_a_program_is_quiet(self):
        """The memory of earlier calls lives as long as the interpreter, and causes no warning."""
        program = (
            "import numpy, treefold\nfor _ in range(3):\n    treefold.all_reduce([numpy.ones(3)] * 2)\nkept = treefold"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - our own
        assert (done.stdout, done.stderr) == ("", "")
