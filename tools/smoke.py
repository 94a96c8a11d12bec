"""Prove that an installed treefold reduces, with its native core; with the argument ``numpy``, without one."""

import sys
import warnings

import numpy as np

import treefold
from treefold.execution import native


def main(kernel: str) -> int:
    """Sum three replicas, replica r holding 2**r, and see that the plan names the kernel."""
    replicas = treefold.PerReplica([np.full(1000, 2.0**r, np.float32) for r in range(3)])
    with warnings.catch_warnings():
        if kernel == "numpy":
            warnings.simplefilter("ignore", RuntimeWarning)  # it says that the native core is missing
        total = treefold.HierarchicalCopyAllReduce().reduce("sum", replicas, replicas)
    if not all(np.array_equal(component, np.full(1000, 7, np.float32)) for component in total):
        print(f"treefold {treefold.__file__} gave {total} where every element is 7.")
        return 1
    has_native = bool(native.vector_levels()) and "native kernel" in str(total.plan)
    if has_native != (kernel == "native"):
        print(f"treefold {treefold.__file__} came {'with' if has_native else 'without'} its native core.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "native"))
