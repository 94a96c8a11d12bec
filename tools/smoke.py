"""Prove that an installed treefold reduces, and that its native core came with it."""

import sys

import numpy as np

import treefold
from treefold.execution import native


def main() -> int:
    """Sum three replicas, replica r holding 2**r, and see that the plan names the native kernel."""
    replicas = treefold.PerReplica([np.full(1000, 2.0**r, np.float32) for r in range(3)])
    total = treefold.HierarchicalCopyAllReduce().reduce("sum", replicas, replicas)
    if not all(np.array_equal(component, np.full(1000, 7, np.float32)) for component in total):
        print(f"treefold {treefold.__file__} gave {total} where every element is 7.")
        return 1
    if not native.vector_levels() or "native kernel" not in str(total.plan):
        print(f"treefold {treefold.__file__} came without its native core.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
