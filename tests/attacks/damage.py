"""Checkpoint files, whole and damaged: as disks, pipes and liars do it."""

import io
import json
import re
import struct
import zipfile

import numpy as np
import torch
from safetensors.numpy import save as save_safetensors

#: Numbers that lengths, offsets and shapes are overwritten with.
_LIES = (0, 1, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = (b"F32", b"F64", b"BF16", b"I64", b"BOOL", b"F8_E4M3", b"X7", b"<f8", b">f4", b"|O", b"|S9", b"<M8[s]",
          b"True", b"{", b"}", b"[", b"(", b"'", b'"', b"\\", b"\0", b"\xff\xfe", b"None", b"-1", b"1e9", b"PK\x05\x06",
          b".npy", b"FloatStorage", b"cpu", b"cuda:0", b"OrderedDict", b"R", b".", b"\x80\x02", b"\x88")  # fmt: skip


def tensors(replica):
    """Return a small model, of which replica r says 2**r."""
    return {
        "weight": np.full((3, 4), 2.0**replica, "float32"),
        "half": np.full(5, 2.0**replica, "float16"),
        "double": np.array([2.0**replica, -0.0, 1e300]),
        "steps": np.array(10 * 2**replica),
        "none": np.zeros((0, 3), "float32"),
        "mask": np.array([True, False]),
    }


def save_npz(arrays, *, is_compressed):
    """Return the bytes of an npz file, the first array of it by columns."""
    file = io.BytesIO()
    arrays = arrays | {"weight": np.asfortranarray(arrays["weight"])}
    (np.savez_compressed if is_compressed else np.savez)(file, **arrays)
    return file.getvalue()


def save_torch(arrays, *, is_zip=True):
    """Return the bytes of a PyTorch file, in the format of today or in that before 1.6, which is refused."""
    file = io.BytesIO()
    contents = {name: torch.from_numpy(array) for name, array in arrays.items()}
    contents |= {"brain": contents["weight"].to(torch.bfloat16), "turned": contents["weight"].T}
    torch.save(contents, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


#: How each kind of file is written; the names of kinds are their suffixes.
KINDS = {
    "safetensors": save_safetensors,
    "npz": lambda arrays: save_npz(arrays, is_compressed=False),
    "z.npz": lambda arrays: save_npz(arrays, is_compressed=True),
    "pt": save_torch,
    "bin": save_torch,
    "old.bin": lambda arrays: save_torch(arrays, is_zip=False),
}


def damaged(contents, drawing):
    """Return a file after a few strokes: on the whole of it, or on what an archive holds, with new checksums."""
    strokes = min(drawing.randint(1, 6) for _ in range(3))
    if contents.startswith(b"PK") and drawing.random() < 0.7:
        return _rebuilt(contents, drawing, strokes)
    for _ in range(strokes):
        contents = drawing.choice(_STROKES)(contents, drawing)
    return contents


def _rebuilt(contents, drawing, strokes):
    """Return the archive with some of its members damaged, dropped, repeated, renamed or compressed another way."""
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    for _ in range(strokes):
        index = drawing.randrange(len(members))
        name, data = members[index]
        match drawing.choice(("damage", "damage", "damage", "damage", "drop", "repeat", "rename", "bomb")):
            case "damage":
                members[index] = name, drawing.choice(_STROKES)(data, drawing)
            case "drop" if len(members) > 1:
                del members[index]
            case "repeat":
                members.append((name, data))
            case "rename":
                members[index] = (
                    drawing.choice((name.upper(), f"../{name}", f"{name}.npy", "", "\u00e9.npy", name[:-4])),
                    data,
                )
            case "bomb":
                members[index] = name, data + bytes(drawing.choice((10, 1 << 16, 1 << 22)))
    file = io.BytesIO()
    kind = drawing.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive._didModify = True  # an archive of no members is one, too
        for name, data in members:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = kind
            archive.NameToInfo.pop(entry.filename, None)  # or a name that is there twice is warned of
            with archive.open(entry, "w") as member:
                member.write(data)
    return file.getvalue()


def _flip(contents, drawing):
    changed = bytearray(contents)
    if changed:
        changed[drawing.randrange(len(changed))] ^= 1 << drawing.randrange(8)
    return bytes(changed)


def _cut(contents, drawing):
    return contents[: drawing.randrange(len(contents) + 1)]


def _drop(contents, drawing):
    start = drawing.randrange(len(contents) + 1)
    return contents[:start] + contents[start + drawing.choice((1, 8, 100)) :]


def _insert(contents, drawing):
    start = drawing.randrange(len(contents) + 1)
    return contents[:start] + drawing.choice(_WORDS) + contents[start:]


def _overwrite(contents, drawing):
    start, word = drawing.randrange(len(contents) + 1), drawing.choice(_WORDS)
    return contents[:start] + word + contents[start + len(word) :]


def _repeat(contents, drawing):
    start, length = drawing.randrange(len(contents) + 1), drawing.choice((1, 8, 100, 1000))
    return contents[: start + length] + contents[start:]


def _lie(contents, drawing):
    """Overwrite two, four or eight bytes with a number that is a length somewhere."""
    width = drawing.choice((2, 4, 8))
    number = struct.pack("<Q", drawing.choice(_LIES))[:width]
    start = drawing.randrange(min(len(contents), 16) + 1 if drawing.random() < 0.2 else len(contents) + 1)
    return contents[:start] + number + contents[start + width :]


def _lie_in_text(contents, drawing):
    """Write another number where digits stand, or another word in quotes, as in headers of JSON and of NumPy."""
    found = list(re.finditer(rb"\d+|(?<=['\"])[^'\"]{1,20}(?=['\"])", contents[:2000]))
    if not found:
        return contents
    match = drawing.choice(found)
    number = b"%d" % (drawing.choice(_LIES) * drawing.choice((1, 1, 1, -1)))
    text = number if match[0].isdigit() else drawing.choice(_WORDS)
    return contents[: match.start()] + text + contents[match.end() :]


def _lie_in_header(contents, drawing):
    """Change one entry of a safetensors header, and say its length rightly."""
    try:
        length = int.from_bytes(contents[:8], "little")
        header = json.loads(contents[8 : 8 + length])
        name = drawing.choice(sorted(header))
        header[name][drawing.choice(("dtype", "shape", "data_offsets"))] = drawing.choice(
            ["F64", "U8", "C64", "F4", "BOOL", [], [2**62, 4], [-1], [0], [1] * 5000, [0, 4], [4, 0], {}, None, 1.5]
        )
    except (ValueError, TypeError, LookupError):
        return _lie_in_text(contents, drawing)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + contents[8 + length :]


_STROKES = (
    _flip,
    _flip,
    _cut,
    _drop,
    _insert,
    _overwrite,
    _repeat,
    _lie,
    _lie,
    _lie_in_text,
    _lie_in_text,
    _lie_in_header,
)
