"""Tensors read, and made, by DLPack's table of C functions."""

import ctypes
import gc
import threading

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
        tensors = tuple(torch.ones(shape) for _ in range(3))
        row = read(*tensors)
        assert (row.shape, row.dtype, row.views) == (shape, FLOAT32, None)
        assert all(one is other for one, other in zip(row.arrays, tensors, strict=True))
        assert row.addresses == tuple(tensor.data_ptr() for tensor in tensors)

    def test_keeps_the_tensors_alive(self):
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
        assert read(torch.ones(4, 3), make()) is None
        other = make()
        if other.is_meta or other.layout is not torch.strided or not other.is_contiguous():
            assert read(other) is None

    def test_makes_no_row_of_nothing(self):
        assert read() is None

    def test_needs_a_dtype(self):
        with pytest.raises(TypeError, match=r"The dtype is no numpy\.dtype\."):
            read(torch.ones(3), dtype="float32")

    def test_needs_a_dtype_of_that_size(self):
        assert read(torch.ones(3), dtype=np.dtype(np.float64)) is None


class TestMethods:
    """Facts that DLPack does not carry are read by methods of the tensors' type."""

    METHODS = torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes, torch.Tensor.storage_offset

    def asked(self, *tensors, others=()):
        return _native.read_tensors("backend", TABLE, tensors, FLOAT32, None, (*self.METHODS, *others))

    def test_find_storages_that_were_resized(self):
        whole, part = torch.ones(4), torch.ones(8)[4:]
        assert self.asked(whole, part) is not None
        for tensor, nbytes in ((whole, 12), (part, 28)):
            tensor.untyped_storage().resize_(nbytes)
            assert self.asked(tensor) is None
            assert self.asked(torch.ones(4), tensor) is None

    def test_refuse_what_is_true_of_a_tensor(self):
        negated = torch._neg_view(torch.ones(4))
        assert self.asked(torch.ones(4), negated) is not None
        assert self.asked(torch.ones(4), negated, others=(torch.Tensor.is_neg,)) is None

    def test_may_raise(self):
        with pytest.raises(AttributeError, match="nothing"):
            self.asked(torch.ones(4), others=(lambda tensor: tensor.nothing,))

    def test_are_at_least_three(self):
        with pytest.raises(ValueError, match=r"^The methods are those for storage, nbytes and offset, and others\.$"):
            _native.read_tensors("backend", TABLE, (torch.ones(4),), FLOAT32, None, self.METHODS[:2])


class TestNewTensors:
    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (4, 1, 2), (1, 20_000)])
    def test_are_of_another_rows_shape(self, shape):
        made = _native.new_tensors("backend", read(torch.ones(shape)), np.dtype(np.float64), 3, TABLE, FLOAT_CODE)
        assert (made.backend, made.shape, made.dtype) == ("backend", shape, np.dtype(np.float64))
        assert [type(tensor) for tensor in made.arrays] == [torch.Tensor] * 3
        assert all(tensor.dtype is torch.float64 and tensor.is_contiguous() for tensor in made.arrays)
        assert all(address % 64 == 0 for address in made.addresses)
        if 0 not in shape:  # PyTorch has no address for nothing
            assert made.addresses == tuple(tensor.untyped_storage().data_ptr() for tensor in made.arrays)
            assert len(set(made.addresses)) == 3

    @pytest.mark.parametrize("length", [16, 1 << 18])
    def test_are_folded_into(self, length):
        row = read(*[torch.full((length,), 2.0**r) for r in range(3)])
        made = _native.new_tensors("backend", row, FLOAT32, 2, TABLE, FLOAT_CODE)
        assert _native.RowFold((DTYPES.index("float32"),), OPS.index("SUM"), 0, 0).fold([row], [made])
        assert all((tensor == 7).all() for tensor in made.arrays)

    def test_give_their_memory_back(self):
        before = _native.memory_info()["used_bytes"]
        row = _native.new_tensors("backend", read(torch.ones(1 << 18)), FLOAT32, 1, TABLE, FLOAT_CODE)
        held = [row.arrays[0][1:]]
        del row
        gc.collect()
        assert _native.memory_info()["used_bytes"] == before + (1 << 20)
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert _native.memory_info()["used_bytes"] == before

    def test_of_unknown_kinds_are_the_frameworks_error(self):
        row, before = read(torch.ones(1 << 18)), _native.memory_info()["used_bytes"]
        with pytest.raises(Exception, match="code"):
            _native.new_tensors("backend", row, FLOAT32, 2, TABLE, 99)
        assert _native.memory_info()["used_bytes"] == before

    def test_need_a_dtype_and_a_count(self):
        row = read(torch.ones(3))
        with pytest.raises(TypeError, match=r"^The dtype is no numpy\.dtype\.$"):
            _native.new_tensors("backend", row, "float32", 2, TABLE, FLOAT_CODE)
        with pytest.raises(ValueError, match=r"^A row has an array at least\.$"):
            _native.new_tensors("backend", row, FLOAT32, 0, TABLE, FLOAT_CODE)


class TestTables:
    def test_of_another_version_are_not_believed(self):
        table, _kept = foreign_table(2)
        with pytest.raises(ValueError, match="unknown version"):
            _native.read_tensors("backend", table, (torch.ones(3),), FLOAT32)

    def test_without_functions_are_refused(self):
        table, _kept = foreign_table(1)
        with pytest.raises(ValueError, match="unknown version"):
            _native.new_tensors("backend", read(torch.ones(3)), FLOAT32, 1, table, FLOAT_CODE)
