"""Two kernels for Triton that make exact sums and means of floats, rounded once, with the bits of the host.

The first, ``fold_proved``, adds up each element's contributions and the errors of all additions. The host's tier of
errors does the same (``native/exact_rounding.hpp``; docs/how/numbers.md has the proofs). If it cannot prove how an
element is rounded, it declines the block: it marks the block and writes nothing. The second, ``fold_whole``, folds the
declined blocks in whole numbers.
The host does nothing in between, so a CUDA graph can capture both kernels. Errors of products are computed from halves
of the factors (Dekker): a fused multiply-add would need another proof, and an interpreter that computes it.
"""

import triton
import triton.language as tl

from treefold.execution.cuda.kernels import bfloat16_bits, element, read, store, to_odd_float32

#: The most contributions for which the bound of ``_rounded`` is proved. More are folded in whole numbers.
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
    """Fold one block and write it to every target, or decline it and write nothing.

    Args:
        table: Rows of N addresses of contributions, D addresses of targets, the number of elements, and, if
            ``WEIGHTED``, N weights, which are whole numbers.
        blocks: For each block, its row of the table and the index of its first element.
        declined: A byte for each block, which gets 1 if the block is declined, else 0.
        first: The number of the block that program 0 folds.
        N: The number of contributions.
        D: The number of targets.
        ELEMENT: The dtype of contributions and targets.
        OP: "sum" or "mean".
        WEIGHTED: Whether there are weights.
        ACCUMULATOR: The dtype of additions, "float32" or "float64".
        INVERSE: 1 for a SUM; 1 / N for a MEAN without weights if N is a power of two; else 0, for a division.
        BLOCK: The number of elements of a block.
        UNROLLED: Whether the loop over contributions is unrolled.
        ALIGNED: Whether all addresses are multiples of 16 bytes.
        FULL: Whether no block reaches beyond its array.

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
    """Return a block of one contribution times its weight, in the accumulator's dtype, and the errors of the products.

    Only products with float64 have errors: the sum of weights has at most 28 bits, so others are exact.
    """
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
    """Add a value to a total, and return the new total, sum of errors, and bound for what that sum loses.

    The sum of errors gets the error of this addition, and ``lost``. The bound gets the sizes of the errors of both.
    """
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
    """Return the exact error of a + b, given ``both``, the rounded sum (Knuth)."""
    part = both - a
    return (a - (both - part)) + (b - part)


@triton.jit
def _upper_part(value):
    """Return the upper 26 bits of a float64, rounded (Veltkamp)."""
    far = value * 134217729.0
    return far - (far - value)


@triton.jit
def _error_of_product(a, b, product):
    """Return the exact error of a · b, given the rounded product, if nothing overflows or underflows (Dekker)."""
    a1, b1 = _upper_part(a), _upper_part(b)
    a2, b2 = a - a1, b - b1
    return a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


@triton.jit
def _plus(a, b):
    """Return a + b, and a itself where b is 0: -0 + 0 would be +0."""
    return tl.where(b == 0, a, a + b)


@triton.jit
def _divisor(weights, N: tl.constexpr, OP: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return the divisor of the sum, a whole number: the sum of weights, N for a MEAN, 1 for a SUM."""
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
    """Return the bits of (total + error ± rest) / divisor, rounded once, and a mask of the elements that fail.

    An element fails if the two ends of its interval are rounded to different bits, or if it is outside the range of the
    proof. This is ``finish`` of ``native/exact_rounding.hpp``, which has the bound of 2^-49 for float64. A
    significand of float32 is 29 bits shorter, so its bound is 2^-20.
    """
    # If no sum of finite contributions can overflow, infinities and NaN of the plain sum are the right results.
    HOLDS_ALL: tl.constexpr = ELEMENT == "float16" or (ELEMENT != "float64" and total.dtype == tl.float64)
    plain = total
    is_special = (total - total) != 0
    if INVERSE == 0 and total.dtype == tl.float32:
        # Divide in float64: its range holds the errors of quotients. That is one division an element, whatever N is.
        total, error, rest = total.to(tl.float64), error.to(tl.float64), rest.to(tl.float64)
    IS_SAME: tl.constexpr = ELEMENT == "float64" or (ELEMENT == "float32" and total.dtype == tl.float32)
    SLACK: tl.constexpr = 2.0**-49 if total.dtype == tl.float64 else 2.0**-20
    LEAST: tl.constexpr = 2.0**-900 if total.dtype == tl.float64 else 2.0**-80
    zero = tl.zeros_like(total)
    high = _plus(total, error)
    low = _error_of_sum(total, error, high)
    fails = (high - high) != 0
    if IS_SAME and INVERSE != 1:
        # Decline sums so small that quotients or their errors may underflow, or so large that halves may overflow.
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
        # Where nothing is lost, the interval is a point, so that ties are decided, too.
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
    """Return the bits of high + low, rounded once to the dtype; with ``HOLDS_ALL``, those of a special plain sum."""
    near = _plus(high, low)
    if not IS_SAME:
        near = _to_odd(near, _error_of_sum(high, low, near))
    if HOLDS_ALL:
        near = tl.where(is_special, plain.to(near.dtype), near)
    return _bits(near, ELEMENT)


@triton.jit
def _to_odd(total, error):
    """Return total + error, rounded to odd: rounding that again, to fewer bits, gives what rounding once gives."""
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
    """Return floats as bits of the dtype. Wider ones were rounded to odd; every NaN gets the same bits."""
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
    """Fold all declined blocks in whole numbers, in units of the dtype's least subnormal.

    Args:
        table: As in ``fold_proved``.
        blocks: As in ``fold_proved``.
        declined: A byte for each block, not 0 for those to fold.
        count: The number of blocks.
        N: The number of contributions.
        D: The number of targets.
        OP: "sum" or "mean".
        WEIGHTED: Whether there are weights.
        BITS: The bits of the dtype.
        PRECISION: The bits of its significand, with the hidden bit.
        BLOCK: The number of elements of a block.
        PART: The number of elements that a program folds at a time.

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
    """Return the bits of the sum over its divisor for a part of a block; contributions may be any numbers."""
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
    # The limbs of all bits that can be set: those of significands, weights of 28 bits, and the carries of 2^31 terms.
    first = tl.min(least) >> 5
    last = (tl.max(most) + PRECISION + 28 + 31) >> 5
    # The first pass finds the sign of each sum, by its carry; the second one negates the sums that are below 0.
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
    """Return the significands of floats, the bits by which each is shifted left, their signs, and exponent fields."""
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
    """Return the highest limbs of the sum of all contributions, in units of the least subnormal.

    Limbs have 32 bits. Each is summed over all contributions before the next, so that registers never hold a whole sum.

    Args:
        row: The addresses of the contributions.
        weights: Their weights.
        at: The indices of the elements.
        mask: Which of the elements exist.
        flips: Which of the sums are negated.
        first: The place of the lowest limb.
        last: The place of the highest limb.
        N: The number of contributions.
        WEIGHTED: Whether there are weights.
        BITS: The bits of the dtype.
        PRECISION: The bits of its significand, with the hidden bit.

    Returns:
        The highest limb that is not 0; the three limbs below it; a number that is not 0 if any lower limb is not 0; the
        place of the highest limb; and the carry, which is -1 if the sum, after ``flips``, is below 0, else 0.

    """
    none = tl.zeros(at.shape, tl.int64)
    carry, top, more = none, none, none
    a, b, c, d = none, none, none, none  # the highest four, so far
    p, q, s, below = none, none, none, none  # the last three limbs, and the union of all before
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
    """Return limb number ``place`` of a number below 2^62 that is shifted left."""
    down = 32 * place - shift
    lower = number << tl.minimum(tl.maximum(-down, 0), 32)
    upper = number >> tl.minimum(tl.maximum(down, 0), 63)
    return tl.where(down < 0, lower, upper) & _MASK


@triton.jit
def _rounded_whole(a, b, c, d, more, top, divisor, BITS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the bits of a number above 0 over a divisor below 2^31, rounded once; 0 where the number is 0.

    The quotient of the four limbs has at least 65 bits. Its remainder and the lower limbs add less than its last bit:
    they become a sticky bit in ``more``.

    Args:
        a: The highest limb that is not 0.
        b: The limb below ``a``.
        c: The limb below ``b``.
        d: The limb below ``c``.
        more: A number that is not 0 if any lower limb is not 0.
        top: The place of ``a``.
        divisor: The divisor.
        BITS: The bits of the dtype.
        PRECISION: The bits of its significand, with the hidden bit.

    """
    w = a // divisor
    rest = ((a % divisor) << 32) | b
    x = rest // divisor
    rest = ((rest % divisor) << 32) | c
    y = rest // divisor
    rest = ((rest % divisor) << 32) | d
    z = rest // divisor
    more = more | (rest % divisor)
    # Keep three limbs of the quotient, the first of which is not 0.
    is_long = w != 0
    more = more | tl.where(is_long, z, 0)
    w, x, y = tl.where(is_long, w, x), tl.where(is_long, x, y), tl.where(is_long, y, z)
    unit = 32 * (top - 2 + tl.where(is_long, 1, 0)) + 1
    # Keep the 63 highest bits. The exponent of the first limb as a float64, which holds it exactly, tells its length.
    up = 32 - ((tl.maximum(w, 1).to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022)
    rest = ((x & 1) << 32) | y
    number = (((w << 31) | (x >> 1)) << up) | (rest >> (33 - up))
    more = more | (rest & ((tl.full(up.shape, 1, tl.int64) << (33 - up)) - 1))
    unit -= up
    # Round at the significand's last bit, or at the least subnormal if that is higher.
    last = tl.maximum(unit + 63 - PRECISION, 0)
    cut = tl.minimum(last - unit, 64)
    half = (number >> tl.minimum(cut - 1, 63)) & 1
    kept = number >> tl.minimum(cut, 63)
    below = (number & ((tl.full(cut.shape, 1, tl.int64) << tl.minimum(cut - 1, 62)) - 1)) | more
    kept += half & ((kept & 1) | tl.where(below != 0, 1, 0))
    # A carry out of the significand raises the exponent by one, and the largest exponent to infinity.
    MOST: tl.constexpr = (1 << (BITS - PRECISION)) - 1
    is_large = last >= MOST - 1
    bits = tl.where(is_large, MOST << (PRECISION - 1), (tl.where(is_large, 0, last) << (PRECISION - 1)) + kept)
    return tl.where(a == 0, 0, bits).to(tl.int64)
