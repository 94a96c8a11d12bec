"""A kernel for Triton that folds many arrays in one launch; the bits are the native core's for the same replica order.

A program folds one block of one array. The program reads the block of every contribution, accumulates in registers, and
writes every target at the end, so a target may be a contribution. A table holds the addresses of the arrays. Where a
rule looks odd, ``backends/numpy_fold.py``, which has the same bits, gives the reason. The compiler must not fuse a
multiplication and an addition. Exact sums and means of floats are in ``exact_kernels``; those of
``accumulate="native"``, and all other reduce ops and dtypes, are here.
"""

import triton
import triton.language as tl

#: The most contributions that are read in an unrolled loop, so that all reads are under way together.
MOST_UNROLLED = 16


@triton.jit(do_not_specialize=["first"])
def fold_batch(
    table,
    blocks,
    first,
    N: tl.constexpr,
    D: tl.constexpr,
    ELEMENT: tl.constexpr,
    OP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLLED: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
) -> None:
    """Fold one block and write it to every target.

    Args:
        table: Rows of N addresses of contributions, D addresses of targets, and the number of elements.
        blocks: For each block, its row of the table and the index of its first element.
        first: The number of the block that program 0 folds.
        N: The number of contributions.
        D: The number of targets.
        ELEMENT: The dtype of the contributions.
        OP: The reduce op, in lower case.
        WIDE: Whether to accumulate in the next wider dtype.
        BLOCK: The number of elements of a block.
        UNROLLED: Whether the loop over contributions is unrolled.
        ALIGNED: Whether all addresses are multiples of 16 bytes.
        FULL: Whether no block reaches beyond its array.

    """
    block = blocks + 2 * (first + tl.program_id(0))
    row = table + tl.load(block) * (N + D + 1)
    # The host cuts arrays at multiples of BLOCK. The compiler has to know that to make wide loads.
    at = tl.multiple_of(tl.load(block + 1), BLOCK) + tl.arange(0, BLOCK)
    mask = at < tl.load(row + N + D)
    total = _value(row, at, mask, ELEMENT, OP, WIDE, ALIGNED, FULL)
    low = total
    if WIDE and OP == "product" and total.dtype.is_floating():
        low = tl.full(total.shape, float("inf"), total.dtype)  # smallest partial product without a zero factor
    if UNROLLED:
        for r in tl.static_range(1, N):
            total, low = _step(total, low, row + r, at, mask, ELEMENT, OP, WIDE, ALIGNED, FULL)
    else:
        for r in range(1, N):
            total, low = _step(total, low, row + r, at, mask, ELEMENT, OP, WIDE, ALIGNED, FULL)
    if OP == "mean":
        total = _divided(total, N)
    # ``_settled`` reads contributions again, so it must run before any target is written: one may be a contribution.
    if WIDE and OP == "product" and total.dtype.is_floating():
        total = _settled(total, low, row, at, mask, N, ELEMENT)
    for d in tl.static_range(D):
        _write(row + N + d, at, mask, total, ELEMENT, OP, ALIGNED, FULL)


@triton.jit
def read(row, at, mask, TYPE: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr):
    """Read a block of the array at an address of the table; full, aligned blocks by the widest loads."""
    address = tl.load(row).to(tl.pointer_type(TYPE))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    if FULL:
        block = tl.load(address + at)
    else:
        block = tl.load(address + at, mask=mask, other=0)
    return block


@triton.jit
def element(row, at, mask, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr):
    """Read a block, 16-bit floats as float32; the bits of a bfloat16 are the upper half of a float32's."""
    if ELEMENT == "bfloat16":
        bits = read(row, at, mask, tl.uint16, ALIGNED, FULL)
        value = (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif ELEMENT == "bool":  # any byte but 0 is true
        value = (read(row, at, mask, tl.uint8, ALIGNED, FULL) != 0).to(tl.uint8)
    else:
        value = read(row, at, mask, getattr(tl, ELEMENT), ALIGNED, FULL)
        if ELEMENT == "float16":
            value = value.to(tl.float32)
    return value


@triton.jit
def _value(
    row,
    at,
    mask,
    ELEMENT: tl.constexpr,
    OP: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Read a block, and convert it to the dtype of the accumulator."""
    value = element(row, at, mask, ELEMENT, ALIGNED, FULL)
    if OP != "min" and OP != "max":
        # MIN and MAX round nothing, so they need no wider dtype; sums of 32-bit integers could wrap before they are
        # divided.
        if ELEMENT == "float32" and WIDE:
            value = value.to(tl.float64)
        elif not value.dtype.is_floating() and OP == "mean":
            value = value.to(tl.int64)
    return value


@triton.jit
def _step(
    total,
    low,
    row,
    at,
    mask,
    ELEMENT: tl.constexpr,
    OP: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Fold one more contribution into the total; for a PRODUCT, update the smallest partial product, too."""
    value = _value(row, at, mask, ELEMENT, OP, WIDE, ALIGNED, FULL)
    combined = _combine(total, value, ELEMENT, OP, WIDE)
    if WIDE and OP == "product" and total.dtype.is_floating():
        size = tl.abs(combined)
        low = tl.where((size < low) & (total != 0) & (value != 0), size, low)
    return combined, low


@triton.jit
def _combine(total, value, ELEMENT: tl.constexpr, OP: tl.constexpr, WIDE: tl.constexpr):
    """Return the fold of a total and a value, rounded to a 16-bit dtype if it is not ``WIDE``."""
    if OP == "min" or OP == "max":
        combined = _extreme(total, value, ELEMENT, OP)
    elif OP == "product":
        combined = total * value
    else:
        combined = total + value
    if not WIDE and ELEMENT == "float16":
        combined = combined.to(tl.float16).to(tl.float32)
    elif not WIDE and ELEMENT == "bfloat16":
        combined = (bfloat16_bits(combined).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    # Arithmetic may have promoted the dtype, but a loop must carry one dtype from turn to turn.
    return combined.to(total.dtype)


@triton.jit
def _extreme(a, b, ELEMENT: tl.constexpr, OP: tl.constexpr):
    """Return the MIN or MAX. NaN wins from either side; of two different zeros, MIN chooses -0 and MAX +0."""
    chosen = tl.where((a < b) == (OP == "min"), a, b)
    # Equal numbers have equal bits unless both are zeros, so OR and AND of them change nothing but a zero's sign. NaN
    # is unequal to itself, and every comparison with it is false: it is chosen explicitly, from whichever side.
    if a.dtype.is_floating():
        if ELEMENT == "float64":
            x, y = a.to(tl.uint64, bitcast=True), b.to(tl.uint64, bitcast=True)
        else:
            x, y = a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True)
        if OP == "min":
            zero = (x | y).to(a.dtype, bitcast=True)
        else:
            zero = (x & y).to(a.dtype, bitcast=True)
        ordered = tl.where(a == b, zero, chosen)
        chosen = tl.where(a != a, a, tl.where(b != b, b, ordered))
    return chosen


@triton.jit
def _divided(total, N: tl.constexpr):
    """Divide by the number of contributions, rounded once; integers in float64, which holds their sums exactly."""
    if total.dtype == tl.float32:
        # Triton's own division of float32 is approximate; the host's is rounded correctly.
        mean = tl.div_rn(total, tl.full(total.shape, N, tl.float32))
    else:
        wide = total.to(tl.float64)
        mean = wide / tl.full(total.shape, N, tl.float64)
    return mean


@triton.jit
def _settled(total, low, row, at, mask, N: tl.constexpr, ELEMENT: tl.constexpr):
    """Recompute the products of elements that overflowed or underflowed; blocks without such elements skip this."""
    # x - x is 0 unless x is infinite or NaN. The constants are the least normal numbers: a partial product below them
    # has lost digits, even if a later factor made it large again.
    if total.dtype == tl.float64:
        bad = (total - total != 0) | (low < 2.2250738585072014e-308)
    else:
        bad = (total - total != 0) | (low < 1.1754943508222875e-38)
    if tl.max(bad.to(tl.int32)) > 0:
        total = tl.where(bad, _settled_product(total, row, at, mask, N, ELEMENT), total)
    return total


@triton.jit
def _settled_product(total, row, at, mask, N: tl.constexpr, ELEMENT: tl.constexpr):
    """Return the product of all contributions, made by multiplying mantissas and adding unbounded exponents."""
    mantissa, exponent = _frexp(element(row, at, mask, ELEMENT, False, False).to(tl.float64))
    for r in range(1, N):
        factor, shift = _frexp(element(row + r, at, mask, ELEMENT, False, False).to(tl.float64))
        mantissa, carry = _frexp(mantissa * factor)
        exponent = exponent + shift + carry
    product = _ldexp(mantissa, exponent)
    if total.dtype == tl.float32:
        product = to_odd_float32(product)
    return product


@triton.jit
def to_odd_float32(value):
    """Return float64 values as float32, rounded to odd: rounding these to 16 bits gives what rounding once gives."""
    near = value.to(tl.float32)
    back = near.to(tl.float64)
    bits = near.to(tl.uint32, bitcast=True)
    # Round towards zero, and set the last bit of inexact values, so that the second rounding meets no false tie.
    bits = tl.where(tl.abs(back) > tl.abs(value), bits - 1, bits)
    bits = tl.where(back != value, bits | 1, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _frexp(value):
    """Return mantissas from 0.5 to 1, and exponents; zeros, infinities and NaN stay as they are, with exponent 0."""
    # Denormals have no leading 1: multiplied by 2^54, which is exact, they are normal numbers.
    is_tiny = (tl.abs(value) < 2.2250738585072014e-308) & (value != 0)
    scaled = tl.where(is_tiny, value * 18014398509481984.0, value)
    bits = scaled.to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    exponent = tl.where(is_tiny, exponent - 54, exponent)
    fraction = (bits & -9218868437227405313) | 4602678819172646912  # the exponent's bits become those of 0.5
    is_ordinary = (value != 0) & (value - value == 0)
    mantissa = tl.where(is_ordinary, fraction.to(tl.float64, bitcast=True), value)
    return mantissa, tl.where(is_ordinary, exponent, tl.zeros_like(exponent))


@triton.jit
def _ldexp(mantissa, exponent):
    """Return mantissa · 2^exponent, rounded once: the first half of the exponent is applied without an error."""
    # Beyond these, the result is infinite or 0 in any case; within them, each half is a normal power of two.
    bounded = tl.where(exponent > 1030, tl.full(exponent.shape, 1030, tl.int64), exponent)
    bounded = tl.where(bounded < -1130, tl.full(exponent.shape, -1130, tl.int64), bounded)
    half = bounded >> 1
    return mantissa * _power_of_two(half) * _power_of_two(bounded - half)


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def bfloat16_bits(value):
    """Return float32 values as the bits of bfloat16, rounded to nearest even."""
    bits = value.to(tl.uint32, bitcast=True)
    # Ties to even; a carry into the exponent is the right result. A NaN could carry into infinity, so its upper half is
    # kept, and made quiet: it stays a NaN even if only lower bits made it one.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(value != value, (bits >> 16) | 0x40, rounded).to(tl.uint16)


@triton.jit
def store(row, at, mask, block, ALIGNED: tl.constexpr, FULL: tl.constexpr):
    """Write a block to the array at an address of the table."""
    address = tl.load(row).to(tl.pointer_type(block.dtype))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    if FULL:
        tl.store(address + at, block)
    else:
        tl.store(address + at, block, mask=mask)


@triton.jit
def _write(row, at, mask, total, ELEMENT: tl.constexpr, OP: tl.constexpr, ALIGNED: tl.constexpr, FULL: tl.constexpr):
    """Round a block to the dtype of results, and write it to a target."""
    if ELEMENT == "bfloat16":
        store(row, at, mask, bfloat16_bits(total), ALIGNED, FULL)
    elif ELEMENT == "float16":
        store(row, at, mask, total.to(tl.float16), ALIGNED, FULL)
    elif ELEMENT == "float32":
        store(row, at, mask, total.to(tl.float32), ALIGNED, FULL)
    elif OP == "mean" and (ELEMENT == "int8" or ELEMENT == "int16" or ELEMENT == "uint8" or ELEMENT == "uint16"):
        store(row, at, mask, total.to(tl.float32), ALIGNED, FULL)
    else:
        store(row, at, mask, total, ALIGNED, FULL)
