"""Units of work: one all-reduce of one value, or of the gradients of a well-known model.

A batch of real gradients is a few large tensors and very many small ones, which one vector of the same bytes hides.
Shapes are in the order and layout of PyTorch implementations: torchvision's ResNet-50, VGG-16 and ViT-B/16, and Hugging
Face's ``BertModel`` and ``GPT2LMHeadModel``. In the latter, the output layer shares its weights with the embedding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE, itemsize
from treefold.errors import BenchError
from treefold.errors.words import counted
from treefold.reduce_op import ReduceOp, ReduceOpName

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


#: Where results go: into the inputs, into given arrays, into new arrays, or one new array that all replicas share.
PLACEMENTS = ("in-place", "out-of-place", "new", "shared")
ACCUMULATIONS = ("exact", "native")


@dataclass(frozen=True, slots=True)
class Work:
    """An all-reduce of tensors of these shapes, each with one contribution per replica.

    >>> Work("tiny", ((2, 3), (4,)), devices=2).nbytes
    40
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    op: ReduceOpName = "sum"
    dtype: str = "float32"
    devices: int = 8
    placement: str = "in-place"
    accumulate: str = "exact"
    threads: int = 2

    @property
    def count(self) -> int:
        """Elements of one replica."""
        return sum(map(math.prod, self.shapes))

    @property
    def nbytes(self) -> int:
        """Bytes of one replica."""
        return self.count * itemsize(self.dtype)

    @property
    def num_results(self) -> int:
        """The number of arrays to which each tensor's result is written."""
        return 1 if self.placement == "shared" else self.devices

    def check(self) -> None:
        """Raise ``BenchError`` for words or numbers that no work can have."""
        ops = tuple(op.value.lower() for op in ReduceOp)
        for option, got, allowed in (
            ("--op", self.op, ops),
            ("--dtype", self.dtype, REDUCIBLE),
            ("--accumulate", self.accumulate, ACCUMULATIONS),
        ):
            if got not in allowed:
                raise BenchError.choice(option, got, allowed)
        if self.dtype in COMPLEX and self.op in {"min", "max"}:
            raise BenchError(f"--op {self.op} has no meaning for --dtype {self.dtype}.")
        if self.placement == "in-place" and self.op == "mean" and self.dtype in INTEGERS:
            raise BenchError(
                f"--op {self.op} of {self.dtype} is a float, which does not fit in place; give --new or --out-of-place."
            )
        for option, number in (("--devices", self.devices), ("--threads", self.threads)):
            if number < 1:
                raise BenchError.least(option, number, 1)


def shapes_of_size(nbytes: int, dtype: str, option: str = "-b") -> tuple[tuple[int, ...], ...]:
    """Return one vector with as many elements as ``nbytes`` hold."""
    length = nbytes // itemsize(dtype)
    if length < 1:
        raise BenchError(f"{option} got {counted(nbytes, 'byte')}. One {dtype} takes {itemsize(dtype)}.")
    return ((length,),)


def shapes_of_model(name: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a model's gradients; ``BenchError`` for a model that has no table."""
    if name not in MODELS:
        raise BenchError.choice("--model", name, tuple(MODELS))
    return MODELS[name]()


def resnet50() -> Shapes:
    """161 tensors, 25,557,032 parameters."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    # (width of the 3×3 convolution, blocks of the stage); a block ends with four times its width
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += _convolution(width, channels, 1) + _convolution(width, width, 3)
            shapes += _convolution(4 * width, width, 1)
            if block == 0:
                shapes += _convolution(4 * width, channels, 1)
            channels = 4 * width
    return (*shapes, (1000, 2048), (1000,))


def _convolution(out: int, into: int, kernel: int) -> list[Shape]:
    """Return the shapes of a convolution without bias, and of the batch normalisation after it."""
    return [(out, into, kernel, kernel), (out,), (out,)]


def vgg16() -> Shapes:
    """32 tensors, 138,357,544 parameters."""
    shapes: list[Shape] = []
    channels = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(width, channels, 3, 3), (width,)]
        channels = width
    for out, into in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        shapes += [(out, into), (out,)]
    return tuple(shapes)


def _bert(*, layers: int, width: int) -> Shapes:
    """199 tensors, 109,482,240 parameters with 12 layers; 391 tensors, 335,141,888 with 24."""
    norm = [(width,), (width,)]
    linear = [(width, width), (width,)]
    layer = [*linear * 4, *norm, (4 * width, width), (4 * width,), (width, 4 * width), (width,), *norm]
    embeddings = [(30522, width), (512, width), (2, width), *norm]
    return (*embeddings, *layer * layers, *linear)


def gpt2() -> Shapes:
    """148 tensors, 124,439,808 parameters: the small one, width 768, 12 layers."""
    width = 768
    norm = [(width,), (width,)]
    attention = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    feed_forward = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *feed_forward]
    return ((50257, width), (1024, width), *layer * 12, *norm)


def vit_b_16() -> Shapes:
    """152 tensors, 86,567,656 parameters."""
    width = 768
    norm = [(width,), (width,)]
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    feed_forward = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    layer = [*norm, *attention, *norm, *feed_forward]
    before = [(1, 1, width), (width, 3, 16, 16), (width,), (1, 197, width)]
    return (*before, *layer * 12, *norm, (1000, width), (1000,))


MODELS: dict[str, Callable[[], Shapes]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "bert-base": functools.partial(_bert, layers=12, width=768),
    "bert-large": functools.partial(_bert, layers=24, width=1024),
    "gpt2": gpt2,
    "vit-b-16": vit_b_16,
}
