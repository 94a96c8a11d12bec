"""Compiles the kernels for GPUs that are not there, and prints what came out, one JSON object per line.

A program of its own: where tests run, Triton interprets kernels instead of compiling them. Takes "few" or "full".
"""

import itertools
import json
import math
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE
from treefold.execution.cuda import kernels, one_device
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

HOPPER = GPUTarget("cuda", 90, 32)
OTHERS = {
    "Turing": GPUTarget("cuda", 75, 32),
    "Ampere": GPUTarget("cuda", 80, 32),
    "Blackwell, consumer": GPUTarget("cuda", 120, 32),
    "CDNA3": GPUTarget("hip", "gfx942", 64),
    "RDNA3": GPUTarget("hip", "gfx1100", 32),
}
#: What to look for in PTX.
KINDS = {
    "fuses": r"\bfma\.",
    "flushes": r"\.ftz\b",
    "reads_16_bytes": r"ld\.global\.(v4\.b32|v2\.b64)",
    "writes_16_bytes": r"st\.global\.(v4\.b32|v2\.b64)",
}


def compiled(target, element, op, accumulate="exact", count=8, *, is_plain=True):
    """Return what Triton makes of the kernel. ``is_plain``: aligned arrays, whole blocks."""
    constants = {
        "N": count,
        "D": 2,
        "ELEMENT": element,
        "OP": op.name.lower(),
        "WIDE": accumulate == "exact" or element in INTEGERS,
        "UP": 2 ** math.ceil(math.log2(count)),
        "BLOCK": one_device._BLOCK,
        "UNROLLED": count <= kernels.MOST_UNROLLED,
        "ALIGNED": is_plain,
        "FULL": is_plain,
    }
    kernel = kernels.fold_batch
    pointers = {"table": "*i64", "blocks": "*i64"}
    signature = {name: pointers.get(name, "constexpr") for name in kernel.arg_names}
    divisible = {(place,): [["tt.divisibility", 16]] for place in range(len(pointers))}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)
    return triton.compile(source, target=target, options={"num_warps": one_device._WARPS, "enable_fp_fusion": False})


def cases(*, is_full):
    """Yield a name, a target and the arguments of ``compiled``."""
    elements = [dtype for dtype in (*REDUCIBLE, "bool") if dtype not in COMPLEX]
    for element, op in itertools.product(elements, ReduceOp):
        is_flag = element == "bool" and op not in {ReduceOp.MIN, ReduceOp.MAX}
        if is_flag or not one_device.is_fused(Fold(op), element):
            continue
        # In a few, every element and every op: all ops of what is converted on the way, and one op of each element.
        if not (is_full or element == "bfloat16" or op is ReduceOp.SUM or (element, op) == ("bool", ReduceOp.MAX)):
            continue
        yield "Hopper", HOPPER, {"element": element, "op": op}
        if is_full or element == "bfloat16":
            yield "Hopper", HOPPER, {"element": element, "op": op, "count": 17, "is_plain": False}
        if is_full or (element, op) == ("bfloat16", ReduceOp.SUM):
            yield "Hopper", HOPPER, {"element": element, "op": op, "accumulate": "native"}
    for name, target in OTHERS.items():
        for element in elements if is_full else ("bfloat16",):
            yield name, target, {"element": element, "op": ReduceOp.MAX if element == "bool" else ReduceOp.SUM}


def main():
    for name, target, arguments in cases(is_full=sys.argv[1] == "full"):
        text = compiled(target, **arguments).asm.get("ptx", "")
        kinds = {kind: re.search(pattern, text) is not None for kind, pattern in KINDS.items()}
        sys.stdout.write(json.dumps({"gpu": name, **arguments, "op": arguments["op"].name, **kinds}) + "\n")


if __name__ == "__main__":
    main()
