"""An array that is cut over ranks, and what ``treefold.exact`` makes of all of it: the same, however it is cut."""

import hashlib

import numpy as np
from exact_oracle import KINDS, WIDTHS

from treefold import exact

#: Sums overflow on the way, cancel, and need many words.
_KINDS = KINDS[1:]
_LENGTH = 1501


def whole(dtype):
    """Return numbers of every kind but infinities and NaN."""
    form, rng = WIDTHS[dtype], np.random.default_rng(8)
    bits = np.concatenate([kind(rng, form, (1, _LENGTH))[0] for kind in _KINDS])
    return rng.permutation(bits).astype(f"u{form[0] // 8}").view(dtype)


def digest_of(rank, size, group=None):
    """Return a hash of all results, as rank ``rank`` of ``size`` has them, which has its part of everything."""
    sha = hashlib.sha256()
    for dtype in WIDTHS:
        # Parts of several lengths, one of them of nothing.
        array = whole(dtype)
        cuts = [0, *(len(array) * at // (size + 1) for at in range(2, size + 1)), len(array)]
        own = {"a": array[cuts[rank] : cuts[rank] + 7], "b": [array[cuts[rank] + 7 : cuts[rank + 1]]]}
        results = [one(own, group=group) for one in (exact.sum, exact.mean, exact.norm)]
        results += [exact.dot(own, own, group=group), exact.sum(own, dtype="bfloat16", group=group)]
        if rank == 0:
            own = np.array([-0.0], dtype)
        results.append(exact.sum(own if rank == 0 else np.zeros(0, dtype), group=group))
        sha.update(b"".join(np.asarray(one).tobytes() for one in results))
    return sha.hexdigest()
