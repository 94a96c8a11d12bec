"""Prove that an installed treefold reduces, and that its native core came with it."""

import sys

import numpy as np

import treefold
from treefold._native import fold_sum


def main() -> int:
    """Sum three replicas, replica r holding 2**r, through the API and through the native core."""
    replicas = [np.full(1000, 2.0**r, np.float32) for r in range(3)]
    through_core = np.empty(1000, np.float32)
    fold_sum(replicas, [through_core])
    results = [*treefold.all_reduce(replicas, op="sum"), through_core]
    if not all(np.array_equal(result, np.full(1000, 7, np.float32)) for result in results):
        print(f"treefold {treefold.__file__} gave {results} where every element is 7.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
