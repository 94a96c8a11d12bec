"""Tensors on NumPy's memory and back, by DLPack's table of C functions."""

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest
from native_cases import DTYPES, OPS

from treefold import _native

torch = pytest.importorskip("torch")

FLOAT32 = np.dtype(np.float32)
FLOAT_CODE = 2

TABLE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
pytestmark = pytest.mark.skipif(TABLE is None, reason="this PyTorch has no table of DLPack's C functions")


def read(*tensors, dtype=FLOAT32):
    """Return tensors as a row."""
    return _native.read_tensors("backend", TABLE, tensors, dtype)


def foreign_table(major):
    """Return a table of some version of DLPack, without functions, and what keeps it alive."""
    memory = ctypes.create_string_buffer(64)
    ctypes.c_uint32.from_buffer(memory).value = major
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.c_char_p(b"dlpack_exchange_api")
    return new(ctypes.addressof(memory), name, None), (memory, name)


class TestReadTensors:
    @pytest.mark.parametrize("shape", [(), (0,), (1, 0, 3), (4, 1, 2), (1,)])
    def test_says_what_tensors_agree_in(self, shape):
        """Also without elements or dimensions."""
        tensors = tuple(torch.ones(shape) for _ in range(3))
        row = read(*tensors)
        assert (row.shape, row.dtype, row.views) == (shape, FLOAT32, None)
        assert all(one is other for one, other in zip(row.arrays, tensors, strict=True))
        assert row.addresses == tuple(tensor.data_ptr() for tensor in tensors)

    def test_keeps_the_tensors_alive(self):
        """What is folded is the tensors' own memory, whoever else has gone."""
        row, end = read(*[torch.full((2, 3), 2.0**r) for r in range(3)]), torch.zeros(2, 3)
        gc.collect()
        assert _native.RowFold((DTYPES.index("float32"),), OPS.index("SUM"), 0, 0).fold([row], [read(end)])
        assert (end == 7).all()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(3, 4).T,
            lambda: torch.ones(1, 3).expand(4, 3),
            lambda: torch.ones(8, 3)[::2],
            lambda: torch.ones(3, 4),
            lambda: torch.ones(12),
            lambda: torch.ones(4, 3, dtype=torch.int32),
            lambda: torch.ones(4, 3, dtype=torch.float64),
            lambda: torch.ones(4, 3, device="meta"),
            lambda: torch.ones(4, 3).to_sparse(),
            lambda: torch._efficientzerotensor((4, 3)),
        ],
    )
    def test_makes_no_row_of_anything_else(self, make):
        """Another layout, shape, dtype or device than the first's, in either place; what has no memory."""
        assert read(torch.ones(4, 3), make()) is None
        other = make()
        if other.is_meta or other.layout is not torch.strided or not other.is_contiguous():
            assert read(other) is None

    def test_makes_no_row_of_nothing(self):
        """There is no first tensor."""
        assert read() is None

    def test_needs_a_dtype(self):
        """A name is none."""
        with pytest.raises(TypeError, match=r"The dtype is no numpy\.dtype\."):
            read(torch.ones(3), dtype="float32")

    def test_needs_a_dtype_of_that_size(self):
        """Else memory would be read that is not there."""
        assert read(torch.ones(3), dtype=np.dtype(np.float64)) is None


class TestTensors:
    def test_live_on_the_arrays(self):
        """The tensor keeps the array's memory alive, and gives it back, whatever thread drops it."""
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        owner = weakref.ref(array)
        held = _native.tensors(TABLE, [array], FLOAT_CODE)
        assert held[0].shape == (2, 3)
        assert held[0].data_ptr() == array.ctypes.data
        del array
        gc.collect()
        assert held[0].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert owner() is not None
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert owner() is None

    @pytest.mark.parametrize("lay", [lambda a: a.T, lambda a: a[:, ::2], lambda a: np.broadcast_to(a, (2, *a.shape))])
    def test_copy_what_is_not_row_major_and_writable(self, lay):
        """PyTorch has no tensors that cannot be written."""
        array = lay(np.arange(6, dtype=np.float32).reshape(2, 3))
        [tensor] = _native.tensors(TABLE, [array], FLOAT_CODE)
        assert tensor.tolist() == array.tolist()
        tensor += 1
        assert array.ravel()[0] == 0

    def test_are_made_of_arrays(self):
        """Nothing else."""
        with pytest.raises(TypeError, match=r"Tensors are made on NumPy arrays\."):
            _native.tensors(TABLE, [[1.0]], FLOAT_CODE)

    def test_of_unknown_kinds_are_the_frameworks_error(self):
        """And nothing is lost: the array is let go."""
        array = np.ones(3, np.float32)
        owner = weakref.ref(array)
        with pytest.raises(Exception, match="code"):
            _native.tensors(TABLE, [array], 99)
        del array
        gc.collect()
        assert owner() is None


class TestTables:
    def test_of_another_version_are_not_believed(self):
        """The layout of a table is known for one major version."""
        table, _kept = foreign_table(2)
        with pytest.raises(ValueError, match="unknown version"):
            _native.read_tensors("backend", table, (torch.ones(3),), FLOAT32)

    def test_without_functions_are_refused(self):
        """The standard lets a framework leave one out."""
        table, _kept = foreign_table(1)
        with pytest.raises(ValueError, match="unknown version"):
            _native.tensors(table, [np.ones(3, np.float32)], FLOAT_CODE)
