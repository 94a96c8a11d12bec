"""safetensors files that ``treefold average`` refuses, or reads in little memory."""

import json
import os
import subprocess
import sys

import pytest

from treefold.averaging import average_checkpoints
from treefold.errors import CheckpointError


def write_safetensors(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(start, stop, dtype="F32", shape=(1,)):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


LIES = {
    "beyond the file": lambda path: write_safetensors(path, {"a": entry(0, 8, shape=(2,))}, b"1234"),
    "overlapping": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(0, 4)}, b"1234"),
    "half overlapping": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(2, 6)}, b"123456"),
    "holes": lambda path: write_safetensors(path, {"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12),
    "backwards": lambda path: write_safetensors(path, {"a": entry(4, 0)}, b"1234"),
    "more than it says": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"12345678"),
    "another size": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(3,))}, b"1234"),
    "overflowing shape": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(2**62, 4))}, b"1234"),
    "negative shape": lambda path: write_safetensors(path, {"a": entry(0, 4, shape=(-1, -1))}, b"1234"),
    "header of 2**63": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 2**63),
    "header of 1 GB": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 10**9),
    "header beyond the file": lambda path: write_safetensors(path, {"a": entry(0, 4)}, b"1234", 10**3),
    "unknown dtype": lambda path: write_safetensors(path, {"a": entry(0, 4, "X7")}, b"1234"),
    "its header has 'a' twice": lambda path: write_safetensors(
        path, b'{"a":%b,"a":%b}' % ((json.dumps(entry(0, 4)).encode(),) * 2), b"1234"
    ),
    "numbers in metadata": lambda path: write_safetensors(path, {"__metadata__": {"a": 1}}),
    "no JSON": lambda path: write_safetensors(path, b"{a}"),
    "no UTF-8": lambda path: write_safetensors(path, b"\xff\xfe"),
    "a list": lambda path: write_safetensors(path, []),
    "empty": lambda path: path.write_bytes(b""),
    "seven bytes": lambda path: path.write_bytes(b"1234567"),
}


class TestSafetensors:
    @pytest.mark.parametrize("lie", LIES)
    def test_of_safetensors_are_refused(self, refused, pair, tmp_path, lie):
        LIES[lie](tmp_path / "bad.safetensors")
        sentence = refused(pair[0], tmp_path / "bad.safetensors")
        assert sentence.startswith(f"'bad.safetensors' is no safetensors file: {lie if 'twice' in lie else ''}")
        assert sentence.endswith(". Nothing was written.")

    def test_of_dtypes_below_a_byte_are_refused(self, refused, tmp_path):
        write_safetensors(tmp_path / "a.safetensors", {"q": entry(0, 8, "F4", (16,))}, b"12345678")
        assert refused(tmp_path / "a.safetensors") == (
            "'a.safetensors' holds F4 at 'q', which cannot be averaged. Cast it, or leave it out."
        )

    def test_that_become_shorter_are_refused(self, pair, tmp_path):
        """A file that shrinks after its header was read ends within a tensor."""

        def cut(_):
            os.truncate(pair[1], pair[1].stat().st_size - 1)

        with pytest.raises(CheckpointError, match=r"1\.safetensors' ends within the tensor 'w'\. Copy it again\. "):
            average_checkpoints(pair, tmp_path / "mean.safetensors", on_start=cut)
        assert sorted(tmp_path.iterdir()) == pair

    def test_with_a_number_of_a_million_digits_is_refused(self, refused, tmp_path):
        entry = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":%b}' % (b"1" * 10**6)
        header = b'{"w":%b}' % entry
        (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
        assert refused(tmp_path / "a.safetensors").startswith("'a.safetensors' is no safetensors file: ")

    def test_of_what_a_library_repeats_do_not_either(self, refused, tmp_path):
        header = b'{"w":{"dtype":"F\\u001b[2J","shape":[1],"data_offsets":[0,4]}}'
        (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
        assert "'F\\x1b[2J' in it, of 'w', is no dtype" in refused(tmp_path / "a.safetensors")

    @pytest.mark.skipif(sys.platform == "win32", reason="needs the peak of resident memory")
    def test_does_not_grow_with_the_tensors(self, tmp_path):
        """Four files of one 192 MiB tensor (holes on disk) take less than 96 MiB."""
        nbytes = 192 << 20
        for replica in range(4):
            path = tmp_path / f"{replica}.safetensors"
            write_safetensors(path, {"w": entry(0, nbytes, "F32", (nbytes // 4,))})
            os.truncate(path, path.stat().st_size + nbytes)
        code = """
import resource, sys
from treefold.averaging import average_checkpoints
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform != "darwin" else 1024)
before = peak()
average_checkpoints([f"{replica}.safetensors" for replica in range(4)], "mean.safetensors")
print(peak() - before)
"""
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)  # noqa: S603
        assert int(run.stdout) < 96 << 10
        assert (tmp_path / "mean.safetensors").stat().st_size > nbytes
