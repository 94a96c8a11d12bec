"""The zip archives that torch.save writes, read strictly: every record is where the directory says, and alone there.

Readers of zip archives disagree on records that overlap, names that are equal but for case, and lengths that stand in
two places. All of these are refused here, so that a file can be read in only one way.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from treefold.averaging.tensors import OpenFile
from treefold.errors import CheckpointError, CheckpointFormatError

MAGIC = b"PK\x03\x04"
_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_FORMAT, _END64_FORMAT, _LOCATOR_FORMAT = "<4s4H2LH", "<4sQ2H2L4Q", "<4sLQL"
_ENTRY_FORMAT, _LOCAL_FORMAT = "<4s6H3L5H2L", "<4s5H3L2H"
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64 = 1  # the id of the extra field with 64-bit lengths
_DESCRIBED_LATER = 1 << 3  # a flag: lengths stand behind the record
_ENCRYPTED = 1
_STORED = 0
#: What is written: records may be long; the first day that the format knows; the padding's id, "FB", as PyTorch pads.
_VERSION, _FIRST_DAY, _PADDING, _ALIGNMENT = 45, 33, 0x4246, 64
_SCRIPT = b"/constants.pkl"  # TorchScript's alone, which packs its code
_MOST_ENTRY_BYTES = 1 << 30


class Record(NamedTuple):
    """The place of a record's bytes in the file."""

    start: int
    nbytes: int


class _DirectoryEntry(NamedTuple):
    """A record as the directory describes it."""

    name: bytes
    nbytes: int
    header: int
    is_packed: bool


def read_archive(file: OpenFile, start: int = 0, stop: int | None = None) -> dict[str, Record]:
    """Return the records of a file that is an archive, or of an archive from ``start`` to ``stop`` in a file.

    Raises:
        CheckpointError: it is no archive as torch.save writes them, or holds a program.
        Exception: anything that decoding what lies may raise.

    """
    stop = file.nbytes if stop is None else stop
    directory, count, length = _find_directory(file, start, stop)
    entries = list(_entries(file, file.read(start + directory, length), count))
    if any(entry.name.endswith(_SCRIPT) for entry in entries):
        raise CheckpointFormatError.named(file.path, "torchscript")
    if any(entry.is_packed for entry in entries):
        raise CheckpointError.damaged(file.path, "packed records")
    records: dict[str, Record] = {}
    folded: set[str] = set()
    ends = []
    for entry in entries:
        name = entry.name.decode()
        first = _check_local(file, start, entry)
        if name.casefold() in folded:
            raise CheckpointError.damaged(file.path, "record twice")
        folded.add(name.casefold())
        records[name] = Record(first, entry.nbytes)
        ends.append((start + entry.header, first + entry.nbytes))
    end = start
    for header, last in sorted(ends):
        if header < end:
            raise CheckpointError.damaged(file.path, "records overlap")
        end = last
    if end > start + directory:
        raise CheckpointError.damaged(file.path, "records overlap")
    return records


def _find_directory(file: OpenFile, start: int, stop: int) -> tuple[int, int, int]:
    """Return the directory's first byte, its number of entries, and its length in bytes."""
    size = struct.calcsize(_END_FORMAT)
    tail = file.read(stop - size, size) if stop - start >= size else b""
    if len(tail) < size or not tail.startswith(_END) or file.read(start, 4) not in {MAGIC, _END}:
        raise CheckpointError.damaged(file.path, "no archive")
    _, _, _, _, count, length, directory, _ = struct.unpack(_END_FORMAT, tail)
    end = stop - size
    locator_size = struct.calcsize(_LOCATOR_FORMAT)
    locator = file.read(end - locator_size, locator_size) if end - start >= locator_size else b""
    if locator.startswith(_LOCATOR):
        _, _, at, _ = struct.unpack(_LOCATOR_FORMAT, locator)
        size64 = struct.calcsize(_END64_FORMAT)
        end -= locator_size + size64
        if start + at != end:
            raise CheckpointError.damaged(file.path, "lengths")
        signature, *_, count64, length64, directory64 = struct.unpack(_END64_FORMAT, file.read(end, size64))
        pairs = ((count, count64, _FULL16), (length, length64, _FULL32), (directory, directory64, _FULL32))
        if signature != _END64 or any(short not in {full, long} for short, long, full in pairs):
            raise CheckpointError.damaged(file.path, "lengths")
        count, length, directory = count64, length64, directory64
    if start + directory + length != end or length > _MOST_ENTRY_BYTES:
        raise CheckpointError.damaged(file.path, "lengths")
    return directory, count, length


def _entries(file: OpenFile, directory: bytes, count: int) -> Iterator[_DirectoryEntry]:
    at, size, found = 0, struct.calcsize(_ENTRY_FORMAT), 0
    while at < len(directory):
        fields = struct.unpack_from(_ENTRY_FORMAT, directory, at)
        signature, flags, method = fields[0], fields[3], fields[4]
        packed, nbytes, name_length, extra_length, comment_length = fields[8:13]
        header = fields[16]
        name = directory[at + size : at + size + name_length]
        extra = directory[at + size + name_length : at + size + name_length + extra_length]
        if signature != b"PK\x01\x02" or len(extra) < extra_length:
            raise CheckpointError.damaged(file.path, "lengths")
        nbytes, packed, header = _wide(file, extra, (nbytes, packed, header))
        is_packed = method != _STORED or bool(flags & _ENCRYPTED) or packed != nbytes
        yield _DirectoryEntry(name, nbytes, header, is_packed)
        at += size + name_length + extra_length + comment_length
        found += 1
    if found != count or at != len(directory):
        raise CheckpointError.damaged(file.path, "lengths")


def _wide(file: OpenFile, extra: bytes, numbers: tuple[int, ...]) -> list[int]:
    """Return the 32-bit numbers, and for those that are full the 64-bit numbers of the extra field."""
    at, long = 0, b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64:
            long = extra[at + 4 : at + 4 + length]
        at += 4 + length
    wide = []
    for number in numbers:
        if number == _FULL32:
            if len(long) < 8:  # noqa: PLR2004 - 64 bits
                raise CheckpointError.damaged(file.path, "lengths")
            number, long = int.from_bytes(long[:8], "little"), long[8:]  # noqa: PLW2901
        wide.append(number)
    return wide


def _check_local(file: OpenFile, start: int, entry: _DirectoryEntry) -> int:
    """Compare the header before a record with the directory, and return where the record's bytes begin."""
    size = struct.calcsize(_LOCAL_FORMAT)
    header = file.read(start + entry.header, size + len(entry.name))
    fields = struct.unpack_from(_LOCAL_FORMAT, header)
    signature, flags, method, packed, nbytes, name_length, extra_length = (fields[i] for i in (0, 2, 3, 7, 8, 9, 10))
    if signature != MAGIC or method != _STORED or header[size:] != entry.name or name_length != len(entry.name):
        raise CheckpointError.damaged(file.path, "lengths")
    first: int = start + entry.header + size + name_length + extra_length
    if _FULL32 in (packed, nbytes):
        extra = file.read(first - extra_length, extra_length)
        nbytes, packed = _wide(file, extra, (nbytes, packed))
    is_later = bool(flags & _DESCRIBED_LATER) and packed == nbytes == 0
    if not is_later and (packed != entry.nbytes or nbytes != entry.nbytes):
        raise CheckpointError.damaged(file.path, "lengths")
    return first


class ArchiveWriter:
    """Writes such an archive from its first byte to its last, in order. Python's needs 700 bytes for each record."""

    def __init__(self, file: BinaryIO) -> None:
        """Start at the beginning of a file."""
        self._file, self._directory, self._count = file, bytearray(), 0
        self._at = 0

    @contextlib.contextmanager
    def record(self, name: str, nbytes: int) -> Iterator[ArchiveRecord]:
        """Yield a record of ``nbytes`` to write into. Its position is a multiple of 64, so that maps are aligned."""
        header = self._at
        is_long = nbytes >= _FULL32
        short = _FULL32 if is_long else nbytes
        extra = struct.pack("<2H2Q", _ZIP64, 16, nbytes, nbytes) if is_long else b""
        begin = header + struct.calcsize(_LOCAL_FORMAT) + len(name) + len(extra) + 4
        padding = -begin % _ALIGNMENT
        extra += struct.pack("<2H", _PADDING, padding) + b"Z" * padding
        about = (_VERSION, _DESCRIBED_LATER, _STORED, 0, _FIRST_DAY)
        sizes = (short, short, len(name), len(extra))
        self._file.write(struct.pack(_LOCAL_FORMAT, MAGIC, *about, 0, *sizes) + name.encode() + extra)
        record = ArchiveRecord(self._file)
        yield record
        # The checksum stands behind the bytes, as in the files that torch.save writes.
        later = struct.pack("<4sL2Q" if is_long else "<4s3L", b"PK\x07\x08", record.crc, nbytes, nbytes)
        self._file.write(later)
        self._at = begin + padding + nbytes + len(later)
        long = [nbytes, nbytes] if is_long else []
        long += [header] if header >= _FULL32 else []
        extra = struct.pack(f"<2H{len(long)}Q", _ZIP64, 8 * len(long), *long) if long else b""
        sizes = (short, short, len(name), len(extra))
        self._directory += struct.pack(
            _ENTRY_FORMAT, b"PK\x01\x02", _VERSION, *about, record.crc, *sizes, 0, 0, 0, 0, min(header, _FULL32)
        )
        self._directory += name.encode() + extra
        self._count += 1

    def close(self) -> None:
        """Write the directory."""
        start, length, count = self._at, len(self._directory), self._count
        self._file.write(self._directory)
        if count >= _FULL16 or start >= _FULL32:
            long = (44, _VERSION, _VERSION, 0, 0, count, count, length, start)
            self._file.write(struct.pack(_END64_FORMAT, _END64, *long))
            self._file.write(struct.pack(_LOCATOR_FORMAT, _LOCATOR, 0, start + length, 1))
        shown = min(count, _FULL16)
        short = (0, 0, shown, shown, min(length, _FULL32), min(start, _FULL32), 0)
        self._file.write(struct.pack(_END_FORMAT, _END, *short))


class ArchiveRecord:
    """Writes the bytes of one record."""

    def __init__(self, file: BinaryIO) -> None:
        """Start with no bytes."""
        self._file, self.crc = file, 0

    def write(self, contents: bytes | memoryview) -> None:
        """Write the next bytes."""
        self._file.write(contents)
        self.crc = zlib.crc32(contents, self.crc)
