"""An MSCCL algorithm as data: what its XML says, and what its interpreters take.

Sources: the parsers of msccl, msccl-executor-nccl and RCCL (``msccl_parser.cc``), which agree on all of this but the
limits; the limits here are the narrowest of the three.
"""

from __future__ import annotations

from dataclasses import dataclass

from treefold.errors import ExportError

MAX_BLOCKS, MAX_STEPS, MAX_CHANNELS = 64, 64, 32  # thread blocks of a GPU, steps of a block, channels
MAX_COUNT = 71  # chunks of a step; the parsers refuse their MSCCL_MAX_COUNT, 72, itself
MAX_CHUNKS = 4096

RECEIVES = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
READS = frozenset({"s", "rrs", "rrc", "rrcs", "cpy", "re"})  # from the source in this GPU's memory
WRITES = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})
REDUCES = frozenset({"rrs", "rrc", "rrcs", "re"})
TYPES = RECEIVES | SENDS | {"cpy", "re", "nop"}
BUFFERS = ("i", "o", "s")


@dataclass(frozen=True, slots=True)
class Place:
    """A chunk of a buffer: ``"i"`` input, ``"o"`` output, ``"s"`` scratch; -1 where a step has no such place."""

    buffer: str
    chunk: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a thread block.

    ``s`` sends ``source``; ``r`` receives into ``target``; the other letters add to that: ``c`` copy, ``r`` reduce with
    ``source``, ``s`` send on. ``cpy`` copies, ``re`` reduces into ``target``, ``nop`` only waits. ``after``: (block,
    step) on the same GPU that must be done before. ``is_awaited``: another step's ``after`` names this one.
    """

    type: str
    source: Place
    target: Place
    count: int
    after: tuple[int, int] | None
    is_awaited: bool


@dataclass(frozen=True, slots=True)
class Block:
    """A thread block: its steps run in order, with one peer to send to and one to receive from; -1 for none."""

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank: its blocks, which run at once, and the chunks of its three buffers."""

    blocks: tuple[Block, ...]
    input_chunks: int
    output_chunks: int
    scratch_chunks: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An all-reduce for ``len(gpus)`` ranks; ``min_bytes`` to ``max_bytes`` is what it is meant for."""

    name: str
    proto: str
    chunks: int
    gpus: tuple[Gpu, ...]
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int

    @property
    def channels(self) -> int:
        """The number of channels."""
        return 1 + max((block.channel for gpu in self.gpus for block in gpu.blocks), default=0)


def check_limits(algorithm: Algorithm) -> None:
    """Refuse what the interpreters refuse for its size.

    Raises:
        ExportError: too many blocks, steps, channels, or chunks in a step.

    """
    for gpu in algorithm.gpus:
        _check("thread blocks on a GPU", len(gpu.blocks), MAX_BLOCKS)
        for block in gpu.blocks:
            _check("steps in a thread block", len(block.steps), MAX_STEPS)
            for step in block.steps:
                _check("chunks in a step", step.count, MAX_COUNT)
    _check("channels", algorithm.channels, MAX_CHANNELS)


def _check(what: str, got: int, allowed: int) -> None:
    if got > allowed:
        raise ExportError.limit(what, got, allowed)
