"""Sums and means of floats that are the exact value, rounded once: the host's bits, in two kernels for Triton.

``fold_proved`` adds up each element's contributions with the errors of all additions, as the host's tier of errors does
(``native/exact_rounding.hpp``; docs/how/numbers.md has the proofs). A block that it cannot tell is left as it was, and
noted. ``fold_whole`` folds such blocks in whole numbers. There is no host in between, so a CUDA graph holds both.
Products are made of halves: a fused multiply-add would need another proof, and another interpreter.
"""

import triton
import triton.language as tl

from treefold.execution.cuda.kernels import bfloat16_bits, element, read, store, to_odd_float32

#: Contributions for which the bound of ``_rounded`` is proved; what has more is folded in whole numbers.
MOST_PROVED = tl.constexpr(1 << 16)

_MASK = tl.constexpr((1 << 32) - 1)


@triton.jit(do_not_specialize=["first"])
def fold_proved(
    table,
    blocks,
    declined,
    first,
    N: tl.constexpr,
    D: tl.constexpr,
    ELEMENT: tl.constexpr,
    OP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
    INVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLLED: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
) -> None:
    """Fold a block and write it to every target, or write it to none; ``declined`` gets a 0 or a 1 for each block.

    ``first``: the number of the block of program 0. A row of the table: N addresses of contributions, D of targets, the
    number of elements, and N weights, whole numbers, if it is ``WEIGHTED``. ``INVERSE``: of N, if that is a power of
    two, 1 for a SUM, else 0. The others are those of ``kernels.fold_batch``.
    """
    number = first + tl.program_id(0)
    block = blocks + 2 * number
    row = table + tl.load(block) * (N + D + 1 + N * WEIGHTED)
    at = tl.multiple_of(tl.load(block + 1), BLOCK) + tl.arange(0, BLOCK)
    mask = at < tl.load(row + N + D)
    if N > MOST_PROVED:
        tl.store(declined + number, 1)
    else:
        weights = row + N + D + 1
        total, error = _term(row, weights, at, mask, ELEMENT, WEIGHTED, ACCUMULATOR, ALIGNED, FULL)
        rest = tl.zeros_like(total)
        if UNROLLED:
            for r in tl.static_range(1, N):
                value, lost = _term(row + r, weights + r, at, mask, ELEMENT, WEIGHTED, ACCUMULATOR, ALIGNED, FULL)
                total, error, rest = _added(total, error, rest, value, lost, WEIGHTED and ELEMENT == "float64")
        else:
            for r in range(1, N):
                value, lost = _term(row + r, weights + r, at, mask, ELEMENT, WEIGHTED, ACCUMULATOR, ALIGNED, FULL)
                total, error, rest = _added(total, error, rest, value, lost, WEIGHTED and ELEMENT == "float64")
        divisor = _divisor(weights, N, OP, WEIGHTED).to(tl.float64)
        bits, fails = _rounded(total, error, rest, divisor, ELEMENT, INVERSE)
        is_declined = tl.max((fails & mask).to(tl.int32))
        tl.store(declined + number, is_declined.to(tl.uint8))
        if is_declined == 0:
            for d in tl.static_range(D):
                store(row + N + d, at, mask, bits, ALIGNED, FULL)


@triton.jit
def _term(
    row,
    weight,
    at,
    mask,
    ELEMENT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
    ALIGNED: tl.constexpr,
    FULL: tl.constexpr,
):
    """Return a block of contributions in the accumulator's dtype, times their weight, and what these products lose."""
    value = element(row, at, mask, ELEMENT, ALIGNED, FULL).to(getattr(tl, ACCUMULATOR))
    lost = tl.zeros_like(value)
    if WEIGHTED:
        factor = tl.zeros_like(value) + tl.load(weight).to(tl.float64)
        product = value * factor
        if ELEMENT == "float64":
            lost = _error_of_product(value, factor, product)
        value = product
    return value, lost


@triton.jit
def _added(total, error, rest, value, lost, HAS_LOST: tl.constexpr):
    """Add a value to a total, its error to the sum of errors, and to the rest the size of what that sum loses."""
    both = total + value
    of_both = _error_of_sum(total, value, both)
    more = error + of_both
    rest += tl.abs(_error_of_sum(error, of_both, more))
    if HAS_LOST:
        error = more
        more = error + lost
        rest += tl.abs(_error_of_sum(error, lost, more))
    return both, more, rest


@triton.jit
def _error_of_sum(a, b, both):
    """Return what a + b, rounded to ``both``, lost: itself a float (Knuth)."""
    part = both - a
    return (a - (both - part)) + (b - part)


@triton.jit
def _upper_part(value):
    """Return the upper 26 bits of a float64, rounded (Veltkamp)."""
    far = value * 134217729.0
    return far - (far - value)


@triton.jit
def _error_of_product(a, b, product):
    """Return what a · b, rounded to ``product``, lost (Dekker); far from the largest and the least numbers."""
    a1, b1 = _upper_part(a), _upper_part(b)
    a2, b2 = a - a1, b - b1
    return a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


@triton.jit
def _plus(a, b):
    """Return a + b, and a itself where b is 0: -0 + 0 would be +0."""
    return tl.where(b == 0, a, a + b)


@triton.jit
def _divisor(weights, N: tl.constexpr, OP: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return what the sum is divided by, a whole number."""
    divisor = tl.full((), 1, tl.int64)
    if WEIGHTED:
        divisor = tl.load(weights)
        for r in range(1, N):
            divisor += tl.load(weights + r)
    elif OP == "mean":
        divisor = tl.full((), N, tl.int64)
    return divisor


@triton.jit
def _rounded(total, error, rest, divisor, ELEMENT: tl.constexpr, INVERSE: tl.constexpr):
    """Return the bits of (total + error ± rest) / divisor in the dtype, and where they cannot be told from that.

    This is ``finish`` of ``native/exact_rounding.hpp``, where the bounds of 2^-49 come from; those of 2^-20 are the
    same for float32, whose significand is 29 bits shorter.
    """
    # Infinities and NaN are what plain additions make of them, if nothing else can overflow.
    HOLDS_ALL: tl.constexpr = ELEMENT == "float16" or (ELEMENT != "float64" and total.dtype == tl.float64)
    plain = total
    is_special = (total - total) != 0
    if INVERSE == 0 and total.dtype == tl.float32:
        # Quotients are told in float64, whose range holds their errors; there is one for each element, whatever N.
        total, error, rest = total.to(tl.float64), error.to(tl.float64), rest.to(tl.float64)
    IS_SAME: tl.constexpr = ELEMENT == "float64" or (ELEMENT == "float32" and total.dtype == tl.float32)
    SLACK: tl.constexpr = 2.0**-49 if total.dtype == tl.float64 else 2.0**-20
    LEAST: tl.constexpr = 2.0**-900 if total.dtype == tl.float64 else 2.0**-80
    zero = tl.zeros_like(total)
    high = _plus(total, error)
    low = _error_of_sum(total, error, high)
    fails = (high - high) != 0
    if IS_SAME and INVERSE != 1:
        # Far from where quotients and their errors underflow, or halves of them overflow.
        size = tl.abs(high)
        fails = fails | tl.where(size == 0, rest != 0, (size < LEAST) | (size > 1 / LEAST))
    if INVERSE != 0:
        high, low = high * INVERSE, low * INVERSE
        doubt = tl.where(rest == 0, zero, rest * (2 * INVERSE) + tl.abs(low) * SLACK)
    else:
        whole_divisor = zero + divisor
        quotient = high / whole_divisor
        product = quotient * whole_divisor
        left = (high - product) - _error_of_product(quotient, whole_divisor, product)  # exact
        whole = left + low
        second = whole / whole_divisor
        again = second * whole_divisor
        # Nothing is lost: ties are told then, too.
        lost = tl.abs(_error_of_sum(left, low, whole)) + rest
        lost += tl.abs((whole - again) - _error_of_product(second, whole_divisor, again))
        some = (rest * 2 + (tl.abs(left) + tl.abs(low)) * SLACK) / whole_divisor
        doubt = tl.where(lost == 0, zero, some)
        high, low = quotient, second
    lower = _end(high, low - doubt, plain, is_special, ELEMENT, IS_SAME, HOLDS_ALL)
    upper = _end(high, low + doubt, plain, is_special, ELEMENT, IS_SAME, HOLDS_ALL)
    fails = fails | (lower != upper)
    if HOLDS_ALL:
        fails = fails & (is_special == 0)
    return lower, fails


@triton.jit
def _end(high, low, plain, is_special, ELEMENT: tl.constexpr, IS_SAME: tl.constexpr, HOLDS_ALL: tl.constexpr):
    """Return the bits of high + low, rounded once to the dtype; with ``HOLDS_ALL``, of a special sum as it is."""
    near = _plus(high, low)
    if not IS_SAME:
        near = _to_odd(near, _error_of_sum(high, low, near))
    if HOLDS_ALL:
        near = tl.where(is_special, plain.to(near.dtype), near)
    return _bits(near, ELEMENT)


@triton.jit
def _to_odd(total, error):
    """Return total + error rounded to odd, such that rounding it on, to fewer bits, is rounding once."""
    if total.dtype == tl.float64:
        bits, of_error = total.to(tl.int64, bitcast=True), error.to(tl.int64, bitcast=True)
    else:
        bits, of_error = total.to(tl.int32, bitcast=True), error.to(tl.int32, bitcast=True)
    # One unit further from zero, or nearer to it if the error has the other sign.
    step = tl.where((bits ^ of_error) < 0, -1, 1)
    moved = tl.where((error != 0) & ((bits & 1) == 0), bits + step, bits)
    return moved.to(bits.dtype).to(total.dtype, bitcast=True)


@triton.jit
def _bits(value, ELEMENT: tl.constexpr):
    """Return floats, rounded to odd if they are wider than the dtype, as bits of the dtype; one NaN for all."""
    is_nan = value != value
    if ELEMENT == "float64":
        bits = tl.where(is_nan, 0x7FF8000000000000, value.to(tl.int64, bitcast=True)).to(tl.uint64)
    elif ELEMENT == "float32":
        bits = tl.where(is_nan, 0x7FC00000, value.to(tl.float32).to(tl.int32, bitcast=True)).to(tl.uint32)
    else:
        if value.dtype == tl.float64:
            value = to_odd_float32(value)
        if ELEMENT == "float16":
            bits = tl.where(is_nan, 0x7E00, value.to(tl.float16).to(tl.uint16, bitcast=True)).to(tl.uint16)
        else:
            bits = tl.where(is_nan, 0x7FC0, bfloat16_bits(value)).to(tl.uint16)
    return bits


@triton.jit(do_not_specialize=["count"])
def fold_whole(
    table,
    blocks,
    declined,
    count,
    N: tl.constexpr,
    D: tl.constexpr,
    OP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    """Fold the blocks, of ``count``, whose byte is not 0, in whole numbers of the dtype's least subnormal.

    ``BITS``, ``PRECISION``: of the dtype, and of its significand with the hidden bit. ``PART``: elements that a program
    folds at a time. The others are those of ``fold_proved``.
    """
    for number in range(tl.program_id(0), count, tl.num_programs(0)):
        if tl.load(declined + number) != 0:
            block = blocks + 2 * number
            row = table + tl.load(block) * (N + D + 1 + N * WEIGHTED)
            length, start = tl.load(row + N + D), tl.load(block + 1)
            for begin in range(start, tl.minimum(start + BLOCK, length), PART):
                at = begin + tl.arange(0, PART)
                mask = at < length
                bits = _fold_whole(row, row + N + D + 1, at, mask, N, OP, WEIGHTED, BITS, PRECISION)
                for d in tl.static_range(D):
                    store(row + N + d, at, mask, bits, False, False)


@triton.jit
def _fold_whole(
    row,
    weights,
    at,
    mask,
    N: tl.constexpr,
    OP: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the bits of the sum of a part of a block over its divisor, whatever the numbers are."""
    MOST: tl.constexpr = (1 << (BITS - PRECISION)) - 1
    has_plus, has_minus, has_nan = at < 0, at < 0, at < 0
    are_negative_zeros = at >= 0
    least, most = tl.full(at.shape, 1 << 20, tl.int64), tl.full(at.shape, -1, tl.int64)
    for r in range(N):
        significand, shift, is_negative, field = _number(row + r, at, mask, BITS, PRECISION)
        is_special = field == MOST
        is_infinite = is_special & (significand == 1 << (PRECISION - 1))
        has_plus = has_plus | (is_infinite & (is_negative == 0))
        has_minus = has_minus | (is_infinite & is_negative)
        has_nan = has_nan | (is_special & (is_infinite == 0))
        is_zero = significand == 0
        are_negative_zeros = are_negative_zeros & is_zero & is_negative
        least = tl.where(is_zero, least, tl.minimum(least, shift))
        most = tl.where(is_zero, most, tl.maximum(most, shift))
    # Room for a significand, its weight, and the carries of 2^31 of them.
    first = tl.min(least) >> 5
    last = (tl.max(most) + PRECISION + 28 + 31) >> 5
    flips = at < 0
    limbs = _limbs(row, weights, at, mask, flips, first, last, N, WEIGHTED, BITS, PRECISION)
    is_negative = limbs[6] < 0
    limbs = _limbs(row, weights, at, mask, is_negative, first, last, N, WEIGHTED, BITS, PRECISION)
    bits = _rounded_whole(
        limbs[0], limbs[1], limbs[2], limbs[3], limbs[4], limbs[5], _divisor(weights, N, OP, WEIGHTED), BITS, PRECISION
    )
    INFINITY: tl.constexpr = MOST << (PRECISION - 1)
    bits = tl.where(has_plus | has_minus, INFINITY, bits)
    is_negative = tl.where(has_plus | has_minus, has_minus, is_negative | are_negative_zeros)
    is_nan = has_nan | (has_plus & has_minus)
    bits = tl.where(is_nan, INFINITY | 1 << (PRECISION - 2), bits)
    sign = tl.where(is_negative & (is_nan == 0), 1, 0).to(tl.int64) << (BITS - 1)
    bits = bits | sign
    if BITS == 16:
        bits = bits.to(tl.uint16)
    elif BITS == 32:
        bits = bits.to(tl.uint32)
    return bits


@triton.jit
def _number(address, at, mask, BITS: tl.constexpr, PRECISION: tl.constexpr):
    """Return floats as significands, to be shifted left by so many bits, their signs, and their exponent fields."""
    if BITS == 16:
        bits = read(address, at, mask, tl.uint16, False, False).to(tl.int64)
    elif BITS == 32:
        bits = read(address, at, mask, tl.uint32, False, False).to(tl.int64)
    else:
        bits = read(address, at, mask, tl.int64, False, False)
    HIDDEN: tl.constexpr = 1 << (PRECISION - 1)
    field = (bits >> (PRECISION - 1)) & ((1 << (BITS - PRECISION)) - 1)
    significand = (bits & (HIDDEN - 1)) | tl.where(field > 0, HIDDEN, 0).to(tl.int64)
    return significand, tl.maximum(field, 1) - 1, ((bits >> (BITS - 1)) & 1) != 0, field


@triton.jit
def _limbs(
    row,
    weights,
    at,
    mask,
    flips,
    first,
    last,
    N: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the highest limb of the sum that is not 0, the three below, whether there is more, its place; the carry.

    Limbs, of 32 bits, come one after the other, from ``first`` to ``last``, with what all contributions have in them:
    the whole sum never is in registers. ``flips``: where the sum is taken from below 0. The carry is -1 there if not.
    """
    none = tl.zeros(at.shape, tl.int64)
    carry, top, more = none, none, none
    a, b, c, d = none, none, none, none  # the highest so far
    p, q, s, below = none, none, none, none  # the last three, and all before
    for place in range(first, last + 1):
        total = carry
        for r in range(N):
            significand, shift, is_negative, _ = _number(row + r, at, mask, BITS, PRECISION)
            if WEIGHTED:
                weight = tl.load(weights + r)
                part = _in_limb((significand & _MASK) * weight, shift, place)
                part += _in_limb((significand >> 32) * weight, shift + 32, place)
            else:
                part = _in_limb(significand, shift, place)
            total += tl.where(is_negative == flips, part, -part)
        limb = total & _MASK
        carry = total >> 32
        is_top = limb != 0
        a, b, c, d = tl.where(is_top, limb, a), tl.where(is_top, p, b), tl.where(is_top, q, c), tl.where(is_top, s, d)
        more, top = tl.where(is_top, below, more), tl.where(is_top, place, top)
        below = below | s
        p, q, s = limb, p, q
    return a, b, c, d, more, top, carry


@triton.jit
def _in_limb(number, shift, place):
    """Return the bits of a number below 2^62, shifted left, in one limb."""
    down = 32 * place - shift
    lower = number << tl.minimum(tl.maximum(-down, 0), 32)
    upper = number >> tl.minimum(tl.maximum(down, 0), 63)
    return tl.where(down < 0, lower, upper) & _MASK


@triton.jit
def _rounded_whole(a, b, c, d, more, top, divisor, BITS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the bits of a number above zero, by its highest limbs, over a divisor below 2^31, rounded once.

    The quotient of four limbs has 65 bits at least; what is left, there or in limbs below, is more than none and less
    than one of its last bits.
    """
    w = a // divisor
    rest = ((a % divisor) << 32) | b
    x = rest // divisor
    rest = ((rest % divisor) << 32) | c
    y = rest // divisor
    rest = ((rest % divisor) << 32) | d
    z = rest // divisor
    more = more | (rest % divisor)
    # Three limbs, of which the first is not 0.
    is_long = w != 0
    more = more | tl.where(is_long, z, 0)
    w, x, y = tl.where(is_long, w, x), tl.where(is_long, x, y), tl.where(is_long, y, z)
    unit = 32 * (top - 2 + tl.where(is_long, 1, 0)) + 1
    # The 63 highest bits. A whole number below 2^53 is a float64, whose exponent tells its length.
    up = 32 - ((tl.maximum(w, 1).to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022)
    rest = ((x & 1) << 32) | y
    number = (((w << 31) | (x >> 1)) << up) | (rest >> (33 - up))
    more = more | (rest & ((tl.full(up.shape, 1, tl.int64) << (33 - up)) - 1))
    unit -= up
    # Nothing is kept below the least subnormal.
    last = tl.maximum(unit + 63 - PRECISION, 0)
    cut = tl.minimum(last - unit, 64)
    half = (number >> tl.minimum(cut - 1, 63)) & 1
    kept = number >> tl.minimum(cut, 63)
    below = (number & ((tl.full(cut.shape, 1, tl.int64) << tl.minimum(cut - 1, 62)) - 1)) | more
    kept += half & ((kept & 1) | tl.where(below != 0, 1, 0))
    # A carry out of the significand makes the next exponent, and the largest one infinity.
    MOST: tl.constexpr = (1 << (BITS - PRECISION)) - 1
    is_large = last >= MOST - 1
    bits = tl.where(is_large, MOST << (PRECISION - 1), (tl.where(is_large, 0, last) << (PRECISION - 1)) + kept)
    return tl.where(a == 0, 0, bits).to(tl.int64)
