"""The methods that a prediction compares, and what each takes at each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treefold.cli.sizes import parse_size
from treefold.errors.words import bytes_in_words
from treefold.topology import Topology
from treefold.topology.cost.model import is_as_good
from treefold.topology.planning.compare import DIRECT, RINGS, Comparison
from treefold.topology.planning.registry import METHODS, entry_of

_OURS, _OTHERS = ("oneshot", "twoshot", "shallow", "tree"), ("onedevice", "twolevel")
OURS = tuple(entry_of(name).label for name in (DIRECT, "trees", *_OURS, RINGS))
OTHERS = tuple(entry_of(name).label for name in (RINGS, *_OTHERS))
RINGS_LABEL = entry_of(RINGS).label
_LABELS = [entry.label for entry in METHODS.values()]
_LARGE, _FEW = 16, "64K,4M,256M"
PACKING = "packing trees into the links"


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


def trees_name(packs: int | None) -> str:
    """Return the name of the method of the packing that a command is asked for."""
    return "trees" if packs is None else f"trees#{packs}"


def our_names(comparison: Comparison, packs: int | None) -> list[str]:
    """Return the names of treefold's methods on a machine, but for its rings; the trees first."""
    methods = comparison.methods
    if len(methods.topology.devices) == 1:
        return [trees_name(packs)]
    straight = [DIRECT] if comparison.offers_direct else []
    return [trees_name(packs), *straight, *(methods.shallow if name == "shallow" else name for name in _OURS)]


def predict(
    comparison: Comparison,
    sizes: Sequence[int],
    packs: int | None,
    *,
    begin: Callable[[str], object],
    may_win: bool = False,
) -> tuple[Prediction, ...]:
    """Return what every method takes at every size, in order of size, then of methods, rings last.

    ``begin`` is told each size. ``may_win``: those of treefold's methods are left out that cannot be chosen: all but
    the packs that were asked for, or those that are too far from the best.
    """
    is_one = len(comparison.methods.topology.devices) == 1
    ours, others = our_names(comparison, packs), [] if is_one else [*_OTHERS, RINGS]

    def names_at(nbytes: int) -> Sequence[str]:
        begin(f"predicting {bytes_in_words(nbytes)}")
        if not may_win:
            return ours
        return ours[:1] if packs is not None else comparison.contenders(ours, nbytes)

    return tuple(
        Prediction(nbytes, comparison.simulated_s(name, nbytes), entry_of(name).label)
        for nbytes in sizes
        for name in (*names_at(nbytes), *others)
    )


def best_of(predictions: Sequence[Prediction], nbytes: int, methods: Sequence[str] = OURS) -> Prediction:
    """Return the fastest of some methods at a size; of equally good ones, the first of the registry."""
    found = [p for p in predictions if p.nbytes == nbytes and p.method in methods]
    least = min(prediction.seconds for prediction in found)
    as_good = (prediction for prediction in found if is_as_good(prediction.seconds, least))
    return min(as_good, key=lambda prediction: _LABELS.index(prediction.method))
