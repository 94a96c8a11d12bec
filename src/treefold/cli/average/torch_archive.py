"""The archive that a PyTorch file is, looked at before PyTorch maps it.

PyTorch compares neither what a record holds with what the pickle says of it, nor, where it maps, does it unpack: a file
that lies would be averaged with bytes of its neighbours. What ``weights_only`` allows is more than tensors by name,
too: among it functions that make a small file ask for any amount of memory. So a file may name only what plain tensors
need, and its records must be of the sizes that it names.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError

_ARCHIVE = b"PK\x03\x04"
_PICKLE = "/data.pkl"
#: What else takes all that stands behind a mark.
_TO_MARK = ("SETITEMS", "APPENDS", "ADDITEMS", "POP_MARK", "LIST", "DICT", "FROZENSET", "OBJ", "INST")
#: What a state_dict() names: dictionaries, tensors, parameters, and the types of their elements.
_PLAIN = re.compile(
    r"collections OrderedDict"
    r"|torch (Tensor|Size|[A-Z][A-Za-z0-9]*Storage|[a-z]+[0-9][a-z0-9_]*|bool)"
    r"|torch\.storage (UntypedStorage|TypedStorage|_LegacyStorage)"
    r"|torch\.nn\.parameter Parameter"
    r"|torch\._tensor _rebuild_from_type_v2"
    r"|torch\._utils (_rebuild_tensor(_v2|_v3)?|_rebuild_parameter(_with_state)?)"
)
#: Bytes of an element. Of all dtypes that came later, PyTorch writes untyped storages.
_ITEMSIZES = {row.torch: row.bits // 8 for row in DTYPES.values()} | {"Untyped": 1}


def check_archive(path: Path) -> None:
    """Refuse a file that is no archive of plain tensors, or whose records are not of the sizes that it names.

    Raises:
        CheckpointError: it is none, is not as torch.save writes it, or names what plain tensors do not need.
        Exception: anything else that zip archives and pickles can have wrong with them.

    """
    with path.open("rb") as file:
        if file.read(len(_ARCHIVE)) != _ARCHIVE:
            raise CheckpointError.damaged(path, "no archive")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not is_stored or sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise CheckpointError.damaged(path, "packed records")
        sizes = {entry.filename: entry.file_size for entry in entries}
        if len(sizes) < len(entries):
            raise CheckpointError.damaged(path, "record twice")
        for entry in entries:
            archive.open(entry).close()  # compares what stands before the record with the archive's directory
            if entry.filename.endswith(_PICKLE):
                _check_pickle(path, archive.read(entry), entry.filename.removesuffix(_PICKLE), sizes)


def _check_pickle(path: Path, pickled: bytes, root: str, sizes: dict[str, int]) -> None:
    for opcode, what, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and not _PLAIN.fullmatch(str(what)):
            raise CheckpointError.pickle_needed(path, str(what).replace(" ", "."))
    for _, kind, key, _, length in _storages(pickled):
        itemsize = _ITEMSIZES[kind.rpartition(" ")[2].removesuffix("Storage")]
        nbytes = sizes[f"{root}/data/{key}"]
        if nbytes != itemsize * length:
            raise CheckpointError.damaged(path, "record", key, nbytes, itemsize * length)


def _storages(pickled: bytes) -> Iterator[tuple[Any, ...]]:
    """Yield what a pickle says of its storages: ("storage", type, key, location, number of elements).

    These are tuples of words and numbers, so nothing else of a pickle is followed: it leaves None where it stood.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, what, _ in pickletools.genops(pickled):
        match opcode.name:
            case "MARK":
                marks.append(len(stack))
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                memo[what] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(memo[what])
            case "TUPLE":
                start = marks.pop()
                stack[start:] = [tuple(stack[start:])]
            case name if name in _TO_MARK:
                stack[marks.pop() :] = [None]
            case "BINPERSID":
                yield stack[-1]
            case _:
                stack.append(what)
