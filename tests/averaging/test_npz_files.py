"""npz files that ``treefold average`` refuses, or reads in little memory."""

import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from saved_files import LITTLE, Exploding

from treefold.averaging import average_checkpoints

MIB = 1 << 20


def peak_of(paths, output):
    """Average files and return the most bytes that were held at once."""
    tracemalloc.start()
    try:
        average_checkpoints(paths, output)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def npy(shape, descr="<f8", order="False", version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 * version, "little") + text


def write_npz(path, contents, method=zipfile.ZIP_DEFLATED, name="w.npy"):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(name, contents)


class TestNpz:
    def test_of_npz_are_refused(self, refused, tmp_path):
        good = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (%b), }"
        bodies = [
            ("File is not a zip file.", None),
            ("'a.txt' in it is no npy file.", [("a.txt", b"")]),
            ("it has 'a' twice.", [("a.npy", (good % b"1,").ljust(127) + b"\n12345678")] * 2),
            ("(9, 0).", [("a.npy", b"\x93NUMPY\x09\x00v\x00")]),
            ("", [("a.npy", b"12345678")]),
            ("", [("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': exit(), 'shape': ()}".ljust(117) + b"\n")]),
            ("", [("a.npy", (good % b"-1,").ljust(127) + b"\n12345678")]),
        ]
        for reason, members in bodies:
            path = tmp_path / "bad.npz"
            path.write_bytes(b"12345678")
            if members is not None:
                with zipfile.ZipFile(path, "w") as archive, pytest.MonkeyPatch.context() as patch:
                    patch.setattr("warnings.warn", lambda *_, **__: None)  # that a name is there twice
                    for member, contents in members:
                        archive.writestr(member, contents)
            assert refused(path).startswith(f"'bad.npz' is no npz file: {reason}"), members
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", (good % b"9,").ljust(127) + b"\n12345678")
        assert refused(path) == "'bad.npz' ends within the tensor 'a'. Copy it again. Nothing was written."

    def test_of_npz_with_wrong_bytes_are_refused(self, refused, tmp_path):
        path = tmp_path / "bad.npz"
        np.savez(path, w=np.arange(1000.0))
        contents = bytearray(path.read_bytes())
        contents[4000] ^= 1
        path.write_bytes(contents)
        assert refused(path).startswith("'bad.npz' is no npz file: Bad CRC-32")

    def test_are_never_loaded_from_arrays(self, refused, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        np.savez(tmp_path / "a.npz", w=np.array([Exploding()], object))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' holds Python objects at 'w', and to read those is to run what the file says. "
            "Save arrays of numbers."
        )
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize("header", [npy("(1, 1)", order="True"), npy("(1,)", ">f8"), npy("(1,)")])
    def test_with_more_than_its_shape_is_refused(self, refused, tmp_path, header):
        write_npz(tmp_path / "a.npz", header + bytes(64 * MIB))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' is no npz file: 'w' in it has more bytes than its shape says. Nothing was written."
        )

    def test_with_an_endless_header_is_refused(self, refused, tmp_path):
        write_npz(tmp_path / "a.npz", b"\x93NUMPY\x02\x00" + struct.pack("<I", 64 * MIB) + bytes(64 * MIB))
        assert refused(tmp_path / "a.npz") == (
            "'a.npz' is no npz file: a header of 67108864 bytes is too long. Nothing was written."
        )

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_packed_as_numpy_never_does_is_refused(self, refused, tmp_path, method):
        """bzip2 and LZMA unpack a thousandfold, and Python unpacks them without a limit."""
        write_npz(tmp_path / "a.npz", npy("(8388608,)") + bytes(64 * MIB), method)
        assert refused(tmp_path / "a.npz") == (
            f"'a.npz' is no npz file: 'w' in it is packed by method {method}, and NumPy writes 0 and 8. "
            "Nothing was written."
        )

    def test_for_a_later_unzip_is_refused(self, refused, tmp_path):
        """The archive says which version it needs, and Python's gives up before it looks at a member."""
        write_npz(tmp_path / "a.npz", npy("()") + bytes(8))
        contents = bytearray((tmp_path / "a.npz").read_bytes())
        contents[contents.index(b"PK\x01\x02") + 6] = 99
        (tmp_path / "a.npz").write_bytes(contents)
        assert refused(tmp_path / "a.npz") == "'a.npz' is no npz file: zip file version 9.9. Nothing was written."

    @pytest.mark.parametrize("text", ["{'descr': '<f8', 'shape': (1,", "{[]: 1}", "-" * 9000 + "1", "{'a': '\\", "é"])
    def test_with_a_broken_header_is_refused(self, refused, tmp_path, text):
        header = text.encode("latin-1")
        write_npz(tmp_path / "a.npz", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        sentence = refused(tmp_path / "a.npz")
        assert sentence.startswith("'a.npz' is no npz file: ")
        assert sentence.endswith(". Nothing was written.")

    @pytest.mark.parametrize("shape", [f"(0, {2**63})", f"({10**30}, 0)", "(-1,)"])
    def test_of_impossible_lengths_is_refused(self, refused, tmp_path, shape):
        write_npz(tmp_path / "a.npz", npy(shape))
        assert refused(tmp_path / "a.npz").startswith("'a.npz' is no npz file: 'w' in it has the shape (")

    def test_with_flags_for_lengths_has_numbers(self, tmp_path):
        """True is a length to NumPy, and is written as 1."""
        write_npz(tmp_path / "a.npz", npy("(True,)") + bytes(8))
        peak_of([tmp_path / "a.npz"], tmp_path / "mean.safetensors")
        assert b'"shape":[1]' in (tmp_path / "mean.safetensors").read_bytes()

    @pytest.mark.parametrize("make", [np.asfortranarray, lambda array: array.astype(">f8")])
    def test_in_another_order_takes_no_more_memory(self, tmp_path, make):
        """48 MiB by columns, or in foreign byte order, are put in order block by block."""
        array = np.arange(6 * MIB, dtype=np.float64).reshape(3, 1024, -1)
        np.savez(tmp_path / "a.npz", w=make(array))
        assert peak_of([tmp_path / "a.npz"], tmp_path / "mean.npz") < LITTLE
        assert np.array_equal(np.load(tmp_path / "mean.npz")["w"], array)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "mean.npz"]
