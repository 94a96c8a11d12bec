"""MSCCL's XML: written as its own parsers read it, read as strictly as they do.

These parsers know one space between attributes, no declaration and no comment before the root.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from xml.etree.ElementTree import Element, ParseError

from treefold.errors import ExportError
from treefold.export.msccl_algorithm import (
    BUFFERS,
    MAX_CHUNKS,
    READS,
    RECEIVES,
    SENDS,
    TYPES,
    WRITES,
    Algorithm,
    Block,
    Gpu,
    Place,
    Step,
    check_limits,
)

_MAX_CHARACTERS = 64 * 2**20
_LARGEST = 2**63 - 1


def write_msccl_xml(algorithm: Algorithm) -> str:
    """Return the text of an algorithm."""
    head: dict[str, str | int] = {
        "name": algorithm.name,
        "proto": algorithm.proto,
        "nchannels": algorithm.channels,
        "nchunksperloop": algorithm.chunks,
        "ngpus": len(algorithm.gpus),
        "coll": "allreduce",
        "inplace": int(algorithm.in_place),
        "outofplace": int(algorithm.out_of_place),
        "minBytes": algorithm.min_bytes,
        "maxBytes": algorithm.max_bytes,
    }
    lines = [f"<algo {_attributes(head)}>"]
    for rank, gpu in enumerate(algorithm.gpus):
        sizes = {"i_chunks": gpu.input_chunks, "o_chunks": gpu.output_chunks, "s_chunks": gpu.scratch_chunks}
        lines.append(f"  <gpu {_attributes({'id': rank, **sizes})}>")
        for number, block in enumerate(gpu.blocks):
            peers = {"id": number, "send": block.send, "recv": block.recv, "chan": block.channel}
            lines.append(f"    <tb {_attributes(peers)}>")
            lines += [f"      <step {_attributes(_step_fields(s, step))}/>" for s, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _attributes(fields: Mapping[str, str | int]) -> str:
    return " ".join(f'{name}="{html.escape(str(value))}"' for name, value in fields.items())


def _step_fields(number: int, step: Step) -> dict[str, str | int]:
    block, after = step.after or (-1, -1)
    return {
        "s": number,
        "type": step.type,
        "srcbuf": step.source.buffer,
        "srcoff": step.source.chunk,
        "dstbuf": step.target.buffer,
        "dstoff": step.target.chunk,
        "cnt": step.count,
        "depid": block,
        "deps": after,
        "hasdep": int(step.is_awaited),
    }


def read_msccl(text: str) -> Algorithm:
    """Return the algorithm that a text holds, its form checked and its size within the limits.

    ``msccl_run.prove_msccl`` proves that it is an all-reduce.

    Raises:
        ExportError: no such XML, attributes that are missing or out of range, more than the interpreters take.

    """
    root = _parsed(text)
    where = "The algorithm"
    if root.tag != "algo" or root.get("coll") != "allreduce":
        raise ExportError.field(where, "coll", root.get("coll"), "allreduce")
    proto = root.get("proto", "")
    if proto not in {"Simple", "LL", "LL128"}:
        raise ExportError.field(where, "proto", proto, "Simple, LL or LL128")
    count = _number(root, "ngpus", where, 1, 65536)
    chunks = _number(root, "nchunksperloop", where, 1, MAX_CHUNKS)
    gpus = [element for element in root if element.tag == "gpu"]
    found = [_number(gpu, "id", "A gpu", 0, count - 1) for gpu in gpus]
    if found != list(range(count)):
        raise ExportError.field(where, "gpu ids", found, f"0 to {count - 1}, each once and in order")
    algorithm = Algorithm(
        root.get("name", ""),
        proto,
        chunks,
        tuple(_gpu(gpu, rank, count) for rank, gpu in enumerate(gpus)),
        bool(_number(root, "inplace", where, 0, 1)),
        bool(_number(root, "outofplace", where, 0, 1)),
        _number(root, "minBytes", where, 0, _LARGEST),
        _number(root, "maxBytes", where, 0, _LARGEST),
    )
    check_limits(algorithm)
    if algorithm.channels > _number(root, "nchannels", where, 1, _LARGEST):
        raise ExportError.field(where, "nchannels", root.get("nchannels"), f"at least {algorithm.channels}")
    return algorithm


def _parsed(text: str) -> Element:
    from defusedxml import DefusedXmlException  # noqa: PLC0415 - loaded by those who read XML
    from defusedxml.ElementTree import fromstring  # noqa: PLC0415 - as above

    if len(text) > _MAX_CHARACTERS:
        raise ExportError.too_long(len(text), _MAX_CHARACTERS)
    try:
        root: Element = fromstring(text)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise ExportError.broken_xml(str(error)) from None
    return root


def _gpu(element: Element, rank: int, count: int) -> Gpu:
    where = f"GPU {rank}"
    sizes = [_number(element, name, where, 0, 2**20) for name in ("i_chunks", "o_chunks", "s_chunks")]
    blocks = [child for child in element if child.tag == "tb"]
    ids = [_number(block, "id", where, 0, len(blocks) - 1) for block in blocks]
    if sorted(ids) != list(range(len(blocks))):
        raise ExportError.field(where, "tb ids", ids, f"0 to {len(blocks) - 1}, each once")
    ordered = [block for _, block in sorted(zip(ids, blocks, strict=True), key=lambda pair: pair[0])]
    read = tuple(_block(block, f"{where}, block {n}", rank, count) for n, block in enumerate(ordered))
    _check_peers(where, read)
    for number, block in enumerate(read):
        for index, step in enumerate(block.steps):
            _check_step(f"{where}, block {number}, step {index}", step, block, sizes)
            _check_wait(f"{where}, block {number}, step {index}", step, read)
    return Gpu(read, *sizes)


def _block(element: Element, where: str, rank: int, count: int) -> Block:
    send, recv = (_number(element, name, where, -1, count - 1) for name in ("send", "recv"))
    for name, peer in (("send", send), ("recv", recv)):
        if peer == rank:
            raise ExportError.field(where, name, peer, "another GPU, or -1")
    steps = [child for child in element if child.tag == "step"]
    numbers = [_number(step, "s", where, 0, _LARGEST) for step in steps]
    if numbers != list(range(len(steps))):
        raise ExportError.field(where, "s of its steps", numbers, "0, 1, 2 … in order")
    read = tuple(_step(step, f"{where}, step {number}") for number, step in enumerate(steps))
    return Block(send, recv, _number(element, "chan", where, 0, _LARGEST), read)


def _step(element: Element, where: str) -> Step:
    kind = element.get("type", "")
    if kind not in TYPES:
        raise ExportError.field(where, "type", kind, ", ".join(sorted(TYPES)))
    places = []
    for buffer, offset in (("srcbuf", "srcoff"), ("dstbuf", "dstoff")):
        name = element.get(buffer, "")
        if name not in BUFFERS:
            raise ExportError.field(where, buffer, name, "i, o or s")
        places.append(Place(name, _number(element, offset, where, -1, 2**20)))
    block, after = (_number(element, name, where, -1, 2**20) for name in ("depid", "deps"))
    wait = None if block < 0 else (block, after)
    is_awaited = bool(_number(element, "hasdep", where, 0, 1))
    return Step(kind, places[0], places[1], _number(element, "cnt", where, 0, 2**20), wait, is_awaited)


def _check_peers(where: str, blocks: tuple[Block, ...]) -> None:
    """Refuse two blocks that share one end of a connection: which gets what would be left open."""
    for name in ("send", "recv"):
        real = [(getattr(block, name), block.channel) for block in blocks if getattr(block, name) >= 0]
        if len(set(real)) != len(real):
            twice = next(peer for peer in real if real.count(peer) > 1)
            raise ExportError.field(where, f"{name} peer and channel", twice, "each pair in one block")


def _check_step(where: str, step: Step, block: Block, sizes: list[int]) -> None:
    for name, kinds, peer in (("send", SENDS, block.send), ("recv", RECEIVES, block.recv)):
        if step.type in kinds and peer < 0:
            raise ExportError.field(where, "type", step.type, f"what a block without a {name} peer can do")
    if step.type == "nop":
        return
    if not step.count:
        raise ExportError.field(where, "cnt", step.count, "a number above 0")
    for name, place in used_places(step):
        size = sizes[BUFFERS.index(place.buffer)]
        if not 0 <= place.chunk <= size - step.count:
            raise ExportError.field(where, name, place.chunk, f"chunks within the {size} of buffer {place.buffer}")


def used_places(step: Step) -> list[tuple[str, Place]]:
    """Return ("srcoff", place) and ("dstoff", place) of what a step reads and writes in memory."""
    reads = [("srcoff", step.source)] if step.type in READS else []
    return [*reads, ("dstoff", step.target)] if step.type in WRITES else reads


def _check_wait(where: str, step: Step, blocks: tuple[Block, ...]) -> None:
    if step.after is None:
        return
    block, number = step.after
    if block >= len(blocks) or not 0 <= number < len(blocks[block].steps):
        raise ExportError.field(where, "depid, deps", [block, number], "a step of a block of this GPU")
    if not blocks[block].steps[number].is_awaited:
        raise ExportError.field(where, "depid, deps", [block, number], "a step with hasdep=1")


def _number(element: Element, name: str, where: str, low: int, high: int) -> int:
    text = element.get(name)
    try:
        number = int(text or "")
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ExportError.field(where, name, text, f"a whole number from {low} to {high}")
    return number
