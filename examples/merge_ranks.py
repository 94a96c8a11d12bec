"""Average 200 checkpoints by several processes: each holds one checkpoint at a time, and one exact mean.

Run it: treefold run -n 4 examples/merge_ranks.py
(or: torchrun --nproc-per-node 4 examples/merge_ranks.py, or: mpiexec -n 4 python examples/merge_ranks.py)
"""

import hashlib

import numpy as np

import treefold

CHECKPOINTS = 200


def load(number: int) -> dict[str, np.ndarray]:
    """Return a checkpoint, as if from a file; each is a little more trained than the one before."""
    random = np.random.default_rng(number)
    return {"kernel": random.normal(number, 1, size=(64, 64)).astype(np.float32), "bias": random.normal(size=64)}


def sha(model: dict[str, np.ndarray]) -> str:
    """Return a hash that two models share only if all their bits are equal."""
    return hashlib.sha256(b"".join(array.tobytes() for array in model.values())).hexdigest()


with treefold.connect() as group:
    mean = treefold.Mean()
    for number in range(group.rank, CHECKPOINTS, group.size):  # this rank's share
        mean.add(load(number), weight=number + 1)  # later ones count more
    model = mean.result(group=group)  # over all ranks, rounded once
    shas = group.all_gather(np.frombuffer(sha(model).encode(), np.uint8)[None])
    if group.rank == 0:
        alone = treefold.Mean()
        for number in range(CHECKPOINTS):
            alone.add(load(number), weight=number + 1)
        print(f"{group.size} ranks averaged {CHECKPOINTS} checkpoints, each in {mean.nbytes / 1024:.0f} KiB of memory")
        print("all ranks hold the same bits:", all(np.array_equal(one, shas[0]) for one in shas))
        print("they are the bits of one process that adds all:", sha(model) == sha(alone.result()))
