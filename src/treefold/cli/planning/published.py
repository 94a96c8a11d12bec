"""What predictions are worth: factors where they were checked, and the published figures that bound them."""

from __future__ import annotations

from treefold.cli.planning.methods import Prediction
from treefold.errors.words import bytes_in_words, seconds_in_words
from treefold.topology import Topology
from treefold.topology.cost.model import LAUNCH_S
from treefold.topology.cost.published import CHECKED_ERRORS, CHECKED_FROM, published_for, published_s
from treefold.topology.planning.compare import RINGS
from treefold.topology.planning.ring import RingPacking


def factor(other: Prediction, best: Prediction, machine: Topology) -> str:
    """Return how many times as long another method takes as the best, such as " (1.10×)".

    Nothing for sizes at which predictions were not checked. Rings stand for NCCL and RCCL, which are not said to take
    longer than has been published for the machine.
    """
    if best.nbytes < CHECKED_FROM:
        return ""
    measured = published_s(machine, best.nbytes) if other.method == RINGS else None
    seconds = other.seconds if measured is None else min(other.seconds, measured)
    return f" ({seconds / best.seconds:.2f}×)"


def describe_checks(machine: Topology, rings: RingPacking | None) -> str:
    """Return in lines how far predictions were checked, the rings that were compared with, and what is published."""
    low, high = map(_signed, CHECKED_ERRORS)
    lines = [
        f"checked:     from {bytes_in_words(CHECKED_FROM)} on, against published bandwidths ({low} to {high}); "
        f"below, nothing but the launch of {seconds_in_words(LAUNCH_S)}, so no factors are given"
    ]
    if rings is not None:
        each = f"{float(rings.bytes_per_s) / 1e9:.4g} GB/s"
        lines.append(
            f"rings:       {len(rings.orders)} of {each}, as NCCL and RCCL pack them: the most that a search finds; "
            "no switch reduces"
        )
        lines += [
            f"published:   {one.library} took {seconds_in_words(one.seconds)} for {bytes_in_words(one.nbytes)} "
            f"({one.source}); the factor beside rings counts the shorter time"
            for one in published_for(machine)
        ]
    return "\n".join(lines)


def _signed(part: float) -> str:
    return f"{part:+.0%}".replace("-", "−").replace("%", " %")
