"""Reduce NumPy gradients of four replicas: as lists, in place, with weights, and with a look at the plan.

Run it: python examples/numpy_gradients.py
"""

import numpy as np

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica


def make_gradients(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return gradients like those of one replica's backward pass."""
    return {
        "kernel": random.normal(size=(256, 64)).astype(np.float32),
        "bias": random.normal(size=64).astype(np.float32),
    }


def main() -> None:
    """Reduce the same gradients in four ways and compare the results."""
    random = np.random.default_rng(seed=0)
    gradients = [make_gradients(random) for _ in range(4)]

    means = treefold.all_reduce(gradients, "mean")
    print(f"{len(means)} results, one per replica; the first bias gradient is {means[0]['bias'][0]:.6f}")

    # The exact mean, in float64, rounded to float32 once: treefold gives the same bits.
    exact = np.mean([one["bias"].astype(np.float64) for one in gradients], axis=0).astype(np.float32)
    print("equal to the mean in float64, rounded once:", np.array_equal(means[0]["bias"], exact))

    # Replicas that saw more examples count more.
    weighted = treefold.all_reduce(gradients, "mean", weights=[64, 64, 64, 16])
    print(f"with a smaller last batch it is {weighted[0]['bias'][0]:.6f}")

    # The classes name devices, and the result holds the plan that made it.
    values = PerReplica(gradients)
    result = HierarchicalCopyAllReduce().reduce("mean", values, destinations=values)
    print(result.plan)

    treefold.all_reduce(gradients, "mean", out=gradients)  # in place: no new memory
    print(
        "in place, every replica now holds the same bits:", gradients[3]["bias"].tobytes() == means[0]["bias"].tobytes()
    )


if __name__ == "__main__":
    main()
