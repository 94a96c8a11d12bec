"""Compiles the kernels for GPUs that are not there, and prints what came out, one JSON object per line.

A program of its own: where tests run, Triton interprets kernels instead of compiling them. Takes "few" or "full".
"""

import itertools
import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treefold.backends.numpy_exact import FORMATS
from treefold.dtypes import COMPLEX, INTEGERS, REDUCIBLE
from treefold.execution.cuda import exact_kernels, kernels, one_device
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


def compiled(target, kernel, element, op, accumulate="exact", count=8, *, is_plain=True, is_weighted=False):
    """Return what Triton makes of a kernel, by its name. ``is_plain``: aligned arrays, whole blocks."""
    fold = Fold(op, accumulate, (1,) * count if is_weighted else None)
    form = FORMATS.get(element)
    constants = {
        "N": count,
        "D": 2,
        "ELEMENT": element,
        "OP": op.name.lower(),
        "WIDE": accumulate == "exact" or element in INTEGERS,
        "WEIGHTED": is_weighted,
        "BLOCK": one_device._BLOCK,
        "PART": one_device._PART,
        "BITS": form and form.bits,
        "PRECISION": form and form.precision,
        "UNROLLED": count <= kernels.MOST_UNROLLED,
        "ALIGNED": is_plain,
        "FULL": is_plain,
        **one_device.proof(fold, element, count),
    }
    function = getattr(kernels, kernel, None) or getattr(exact_kernels, kernel)
    types = {"table": "*i64", "blocks": "*i64", "declined": "*u8", "first": "i32", "count": "i32"}
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    constants = {name: constants[name] for name in function.arg_names if name not in types}
    divisible = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=divisible)
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
        is_proved = one_device.is_proved(Fold(op), element)
        own = {"kernel": "fold_proved" if is_proved else "fold_batch", "element": element, "op": op}
        yield "Hopper", HOPPER, own
        if is_full or element == "bfloat16":
            yield "Hopper", HOPPER, {**own, "count": 17, "is_plain": False}
        if is_full or (element, op) == ("bfloat16", ReduceOp.SUM):
            yield "Hopper", HOPPER, {**own, "kernel": "fold_batch", "accumulate": "native"}
        if is_proved:
            whole = {"kernel": "fold_whole", "is_plain": False}
            yield "Hopper", HOPPER, {**own, **whole}
            if op is ReduceOp.MEAN and (is_full or element == "bfloat16"):
                yield "Hopper", HOPPER, {**own, "count": 3}
                yield "Hopper", HOPPER, {**own, "is_weighted": True}
                yield "Hopper", HOPPER, {**own, **whole, "is_weighted": True}
    yield from of_others(elements if is_full else ("bfloat16",))


def of_others(elements):
    """Yield the same of GPUs but Hopper, one op for each element."""
    for (name, target), element in itertools.product(OTHERS.items(), elements):
        op = ReduceOp.MAX if element == "bool" else ReduceOp.MEAN if element in FORMATS else ReduceOp.SUM
        for kernel in ("fold_proved", "fold_whole") if element in FORMATS else ("fold_batch",):
            yield name, target, {"kernel": kernel, "element": element, "op": op, "count": 3}


def main():
    for name, target, arguments in cases(is_full=sys.argv[1] == "full"):
        text = compiled(target, **arguments).asm.get("ptx", "")
        kinds = {kind: re.search(pattern, text) is not None for kind, pattern in KINDS.items()}
        sys.stdout.write(json.dumps({"gpu": name, **arguments, "op": arguments["op"].name, **kinds}) + "\n")


if __name__ == "__main__":
    main()
