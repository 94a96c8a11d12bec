"""The methods that a prediction compares, and what each takes at each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treefold.bench.sizes import parse_size
from treefold.cost import simulate
from treefold.plan import Plan
from treefold.planners.choose import plan_method
from treefold.planners.methods import one_array, plan_star, plan_two_level
from treefold.planners.ring import RingPacking
from treefold.planners.tree_packing import TreePacking, plan_trees
from treefold.planners.ways import radius
from treefold.topology import Topology

TREES, ONE_SHOT, TWO_SHOT, SHALLOW, TREE = "trees", "one shot", "two shots", "shallow trees", "one tree"
RINGS, STAR, TWO_LEVEL = "rings", "ReductionToOneDevice", "TensorFlow's two-level tree"
OURS = (TREES, ONE_SHOT, TWO_SHOT, SHALLOW, TREE, RINGS)
OTHERS = (RINGS, STAR, TWO_LEVEL)
_LARGE, _FEW = 16, "64K,4M,256M"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one method takes for ``nbytes`` bytes per device."""

    nbytes: int
    seconds: float
    method: str

    @property
    def gb_per_s(self) -> float:
        """Algorithm bandwidth: bytes of one device's values over seconds, in 10⁹."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else float("inf")


def parse_sizes(text: str | None, default: str, topology: Topology) -> tuple[int, ...]:
    """Return the sizes of ``64K,16M``, each once, the smallest first.

    ``default``: for no text; on large machines, where each takes seconds, fewer.

    Raises:
        BenchError: naming ``--size``, for what is no size.

    """
    if text is None:
        text = default if len(topology.devices) <= _LARGE else _FEW
    return tuple(sorted({parse_size(word, "--size") for word in text.split(",")}))


def plan_methods(topology: Topology, packing: TreePacking) -> dict[str, Plan]:
    """Return a plan of each method but rings for one array on all devices of a machine."""
    work = one_array(packing.devices)
    if len(packing.devices) == 1:
        return {TREES: plan_trees(work, packing)}
    make: dict[str, Callable[[], Plan]] = {
        TREES: lambda: plan_trees(work, packing),
        ONE_SHOT: lambda: plan_method("oneshot", topology, work),
        TWO_SHOT: lambda: plan_method("twoshot", topology, work),
        SHALLOW: lambda: plan_method(f"shallow#{radius(topology)}", topology, work),
        TREE: lambda: plan_method("tree", topology, work),
        STAR: lambda: plan_star(work),
        TWO_LEVEL: lambda: plan_two_level(work),
    }
    return {name: plan() for name, plan in make.items()}


def predict(
    plans: Mapping[str, Plan], topology: Topology, sizes: Sequence[int], *, rings: RingPacking | None = None
) -> tuple[Prediction, ...]:
    """Return what every method takes at every size, in order of size, then of methods, rings last."""
    found = []
    for nbytes in sizes:
        found += [Prediction(nbytes, simulate(plan, topology, nbytes).duration_s, name) for name, plan in plans.items()]
        if rings is not None:
            found.append(Prediction(nbytes, rings.predict_s(nbytes), RINGS))
    return tuple(found)


def best_of(predictions: Sequence[Prediction], nbytes: int, methods: Sequence[str] = OURS) -> Prediction:
    """Return the quickest of some methods at a size."""
    found = [p for p in predictions if p.nbytes == nbytes and p.method in methods]
    return min(found, key=lambda prediction: prediction.seconds)
