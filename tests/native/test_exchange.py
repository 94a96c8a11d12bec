"""Tensors on NumPy's memory and back, by DLPack's table of C functions."""

import ctypes
import gc
import threading
import weakref

import numpy as np
import pytest

from treefold import _native

torch = pytest.importorskip("torch")

FLOAT32 = np.dtype(np.float32)
FLOAT_CODE = 2

TABLE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
pytestmark = pytest.mark.skipif(TABLE is None, reason="this PyTorch has no table of DLPack's C functions")


def views(*tensors, dtype=FLOAT32):
    """Return the memory of tensors."""
    return _native.views(TABLE, tensors, dtype)


def foreign_table(major):
    """Return a table of some version of DLPack, without functions, and what keeps it alive."""
    memory = ctypes.create_string_buffer(64)
    ctypes.c_uint32.from_buffer(memory).value = major
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.c_char_p(b"dlpack_exchange_api")
    return new(ctypes.addressof(memory), name, None), (memory, name)


class TestViews:
    def test_are_the_tensors_memory(self):
        """What is written to one is seen in the other; the view keeps the tensor's memory alive."""
        tensors = [torch.full((2, 3), 2.0**r) for r in range(3)]
        seen = views(*tensors)
        assert [view.shape for view in seen] == [(2, 3)] * 3
        assert [view.dtype for view in seen] == [FLOAT32] * 3
        seen[1][0, 2] = 7
        assert tensors[1][0, 2] == 7
        address = tensors[2].data_ptr()
        del tensors
        gc.collect()
        assert (seen[2] == 4).all()
        assert seen[2].ctypes.data == address

    @pytest.mark.parametrize("shape", [(), (0,), (1, 0, 3), (4, 1, 2), (1,)])
    def test_have_the_tensors_shape(self, shape):
        """Also without elements or dimensions."""
        [view] = views(torch.ones(shape))
        assert view.shape == shape
        assert view.flags.carray
        assert (view == 1).all()

    @pytest.mark.parametrize(
        ("make", "dtype"),
        [
            (lambda: torch.ones(3, 4).T, FLOAT32),
            (lambda: torch.ones(1, 4).expand(3, 4), FLOAT32),
            (lambda: torch.ones(8)[::2], FLOAT32),
            (lambda: torch.ones(3, device="meta"), FLOAT32),
            (lambda: torch.eye(3).to_sparse(), FLOAT32),
            (lambda: torch.ones(3, dtype=torch.float64), FLOAT32),
            (lambda: torch._efficientzerotensor((3,)), FLOAT32),
        ],
    )
    def test_of_anything_else_are_none(self, make, dtype):
        """Other layouts, devices, kinds and sizes of elements need a closer look."""
        assert views(torch.ones(3), make(), dtype=dtype) is None

    def test_need_a_dtype(self):
        """A name is none."""
        with pytest.raises(TypeError, match=r"The dtype is no numpy\.dtype\."):
            views(torch.ones(3), dtype="float32")


class TestAddresses:
    def test_are_the_tensors(self):
        """With the device, as DLPack numbers it, and the shape that all share."""
        tensors = tuple(torch.ones(8, 3)[row : row + 4] for row in range(3))
        kind, index, shape, places = _native.addresses(TABLE, tensors)
        assert (kind, index, shape) == (1, 0, (4, 3))
        assert places == tuple(tensor.data_ptr() for tensor in tensors)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.ones(3, 4).T,
            lambda: torch.ones(3, 4),
            lambda: torch.ones(12),
            lambda: torch.ones(4, 3, dtype=torch.int32),
            lambda: torch.ones(4, 3, device="meta"),
            lambda: torch.ones(4, 3).to_sparse(),
        ],
    )
    def test_of_tensors_that_differ_are_none(self, make):
        """In layout, shape, dtype or device."""
        assert _native.addresses(TABLE, (torch.ones(4, 3), make())) is None


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
            _native.views(table, (torch.ones(3),), FLOAT32)

    def test_without_functions_are_refused(self):
        """The standard lets a framework leave one out."""
        table, _kept = foreign_table(1)
        with pytest.raises(ValueError, match="unknown version"):
            _native.tensors(table, [np.ones(3, np.float32)], FLOAT_CODE)
