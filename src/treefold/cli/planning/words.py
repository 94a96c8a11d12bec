"""The predictions and the text of the planning commands: a machine, a plan with its proof, and published times."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from treefold.cli.console import Block
from treefold.cli.sizes import parse_size
from treefold.cli.tables import Table
from treefold.devices import device_type
from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.topology import Topology
from treefold.topology.cost.routes import LAUNCH_S, is_as_good
from treefold.topology.drawing.certificate import describe_bottleneck, most_loaded
from treefold.topology.drawing.machine_drawing import but_missing, gb_per_s
from treefold.topology.drawing.packs import DrawnPack
from treefold.topology.drawing.page import Check
from treefold.topology.known import fitting_nvlinks, known_topology
from treefold.topology.planning.compare import Comparison, SizeTable
from treefold.topology.planning.registry import BASELINE, METHODS, PLAN, RINGS, entry_of
from treefold.topology.planning.ring import RingPacking
from treefold.topology.planning.tree_packing import TreePacking

_MODEL = "plain values over links that carry both ways at once; devices combine, switches do not"
_SHOWN_PACKS = 24
_EXACT = 1e-6
RINGS_LABEL = METHODS[RINGS].label
OURS = (*(entry.label for entry in METHODS.values() if entry.use == PLAN), RINGS_LABEL)
BASELINES = {name: entry.label for name, entry in METHODS.items() if entry.use == BASELINE}
_LABELS = [entry.label for entry in METHODS.values()]
_LARGE, _FEW = 16, "64K,4M,256M"
PACKING = "packing trees into the links"
#: Predictions were compared with published times from this size on. The errors in bandwidth lie between these two.
CHECKED_FROM, CHECKED_ERRORS = 2**28, (-0.21, +0.20)


def describe_machine(topology: Topology) -> list[Block]:
    """Return a machine in words: its nodes, and every link once, if it has links."""
    lines: list[Block] = [f"{topology.name or 'this machine'}: {count_nodes(topology)}{but_missing(topology)}"]
    lines += [f"note: {note}" for note in machine_notes(topology)]
    return [*lines, "", tabulate_links(topology)] if topology.links else lines


def count_nodes(topology: Topology) -> str:
    """Return how many nodes a machine has, by kind."""
    counts = Counter(topology.kinds.values())
    nouns = {"device": "device", "host": "host", "switch": "switch", "nic": "NIC"}
    plural = {"switch": "switches"}
    return ", ".join(f"{n} {nouns[k] if n == 1 else plural.get(k, nouns[k] + 's')}" for k, n in counts.items())


def tabulate_links(topology: Topology) -> Table:
    """Return a table with every link once, and its bandwidth in each direction."""
    rows = []
    for link in topology.to_json()["links"]:
        # A pair where directions differ; there is none where one of them is null.
        widths, alphas = (each if isinstance(each, list) else [each] for each in (link["gb_per_s"], link["alpha_us"]))
        words = " / ".join(f"{width or 0.0:.4g}" for width in widths)
        rows.append([" - ".join(link["between"]), link.get("kind", ""), words, f"{alphas[0]:.3g}"])
    return Table(("link", "kind", "GB/s", "alpha µs"), rows, words=(0, 1))


@dataclass(frozen=True)
class Chosen:
    """The fastest method for a size, by its ``name``, with its prediction and its packs."""

    name: str
    prediction: Prediction
    packs: tuple[DrawnPack, ...]


@dataclass(frozen=True)
class PlanFindings:
    """Everything that ``treefold plan`` found, prints and draws.

    Attributes:
        packing: The trees with the certificate that bounds every plan.
        bound_again: The certificate's bound, recomputed. None if that is not possible.
        ours: The labels of the methods that may be chosen.
        chosen: The plan. None for one device.
        table: The table of sizes, if it was asked for.

    """

    topology: Topology
    packing: TreePacking
    bound_again: Fraction | None
    predictions: Sequence[Prediction]
    ours: Sequence[str]
    chosen: Chosen | None
    rings: RingPacking
    table: SizeTable | None

    @property
    def title(self) -> str:
        """The plan's time in plain words."""
        if self.chosen is None:
            return describe_time(self.topology, None)
        ours = self.chosen.prediction
        return describe_time(self.topology, ours, best_of(self.predictions, ours.nbytes, [RINGS_LABEL]))


def describe_time(topology: Topology, ours: Prediction | None, rings: Prediction | None = None) -> str:
    """Return the times of a plan and of others in plain words: the first line of every description.

    Args:
        topology: the machine.
        ours: the prediction for the plan, or None for one device.
        rings: the prediction of rings for the same size, if it is compared.

    """
    name = topology.name or "this machine"
    if ours is None:
        return f"{name}: one device, nothing to reduce"
    noun = "GPU" if all(device_type(device) == "gpu" for device in topology.devices) else "device"
    size, time = bytes_in_words(ours.nbytes), seconds_in_words(ours.seconds)
    words = f"{name}, {len(topology.devices)} {noun}s, {size} per {noun}: {time}"
    if rings is not None and ours.method == rings.method:
        words += ", by rings as NCCL's"
    elif rings is not None:
        measured = published_s(topology, ours.nbytes)
        if measured is not None and measured < rings.seconds:
            words += f"; {published_for(topology)[0].library}, as published: {seconds_in_words(measured)}"
        else:
            words += f"; NCCL-like rings: {seconds_in_words(rings.seconds)}"
    return f"{words}{but_missing(topology)}"


def describe_plan(found: PlanFindings) -> str:
    """Return a plan in words: the plan, the bound, the bandwidth that is reached, the proof and the bottleneck."""
    topology, packing, chosen = found.topology, found.packing, found.chosen
    if chosen is None:
        return ""
    count, ours = len(packing.devices), chosen.prediction
    busbw = 2 * (count - 1) / count
    bound = packing.bound_bytes_per_s / 1e9
    lines = [
        f"this plan:   {ours.method} over {counted(count, 'device')} in {counted(len(chosen.packs), 'pack')}: "
        f"{ours.gb_per_s:.2f} GB/s all-reduce (S/t), busbw {ours.gb_per_s * busbw:.1f}",
        f"optimum:     X* = {bound:.2f} GB/s for large values, busbw {bound * busbw:.1f}; "
        f"{_reached(topology, packing)}",
        f"model:       {_MODEL}",
        f"bottleneck:  {describe_bottleneck(packing, topology)}",
        f"certificate: {describe_certificate(found)}",
        *(f"note:        {note}" for note in packing.notes),
    ]
    return "\n".join(lines)


def machine_notes(topology: Topology) -> list[str]:
    """Return a machine's notes, and how to add NVLinks if they are missing and a known machine has them."""
    fitting = fitting_nvlinks(topology) if topology.missing is not None and topology.missing.kind == "nvlink" else ()
    how = [f"--nvlinks adds a known machine's NVLinks: {', '.join(fitting)}."] if fitting else []
    return [*topology.notes, *how]


def _reached(topology: Topology, packing: TreePacking) -> str:
    trees = counted(len(packing.trees), "tree")
    if packing.gap >= _EXACT:
        return f"{trees}: {packing.algbw_bytes_per_s / 1e9:.2f} GB/s, {packing.gap:.2%} below it"
    return f"{trees}: gap 0, {'proved optimal' if topology.missing is None else 'for the links that the file has'}"


def describe_certificate(found: PlanFindings) -> str:
    """Return the proof of the bound in one line, with the result of checking it again."""
    certificate = found.packing.certificate
    if certificate is None:
        return "none is needed"
    proof = f"prices on {len(certificate.prices)} directed links, at which every tree costs {certificate.cost} or more"
    if certificate.is_partition:
        edges = len(certificate.parts) - 1
        whole = gb_per_s(certificate.bound * edges)
        often = "once" if edges == 1 else f"{edges} times: {whole} / {edges}"
        proof = f"{whole} between {edges + 1} groups, which every tree crosses {often}"
    if found.bound_again is None:
        return f"{proof}; trees up and down apart, not checked again here"
    return f"{proof}; checked again: {'holds' if found.bound_again == certificate.bound else 'DOES NOT HOLD'}"


def tabulate_packs(packs: Sequence[DrawnPack]) -> Table:
    """Return a table of the plan's first packs."""
    rows = [
        [
            str(number),
            f"{pack.share:.2%}",
            pack.root or "all",
            str(pack.depth),
            ", ".join(f"{_short(a)}→{_short(b)}" for a, b in pack.pairs),
        ]
        for number, pack in enumerate(packs[:_SHOWN_PACKS])
    ]
    more = len(packs) - _SHOWN_PACKS
    if more > 0:
        rows.append(["…", "", "", "", counted(more, "more pack")])
    return Table(("pack", "share", "root", "depth", "edges, up to the root"), rows, words=(0, 2, 4))


def _short(name: str) -> str:
    return name.removeprefix("gpu:")


def tabulate_predictions(found: PlanFindings) -> Table:
    """Return a table of predicted times: the best of treefold's methods beside the baselines."""
    predictions = found.predictions
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in predictions))
    rows = []
    for nbytes in sizes:
        best = best_of(predictions, nbytes, found.ours)
        row = [bytes_in_words(nbytes), seconds_in_words(best.seconds), best.method]
        for name in BASELINES.values():
            other = best_of(predictions, nbytes, [name])
            row.append(seconds_in_words(other.seconds) + factor(other, best, found.topology))
        rows.append(row)
    return Table(("size", "treefold", "by", *BASELINES.values()), rows)


def list_checks(found: PlanFindings) -> tuple[Check, ...]:
    """Return the checks of a packing for its page."""
    certificate, again = found.packing.certificate, found.bound_again
    if certificate is None:
        return ()
    load = most_loaded(found.packing, found.topology)
    checks = [
        Check("The plan is proved: every contribution once, everywhere", holds=True, found="by treefold.plan.check"),
        Check("No link carries more than it can", holds=load <= 1, found=f"the most loaded one {float(load):.2%}"),
    ]
    if again is not None:
        words = describe_certificate(found)
        checks.append(Check("The certificate holds", holds=again == certificate.bound, found=words))
    return tuple(checks)


def to_plain(found: PlanFindings) -> dict[str, Any]:
    """Return everything in plain types, ready for ``json.dumps``. Infinite bandwidths, of one device, are null."""
    topology, packing, chosen = found.topology, found.packing, found.chosen
    is_one = packing.algbw is None
    return {
        "topology": topology.name,
        "devices": list(packing.devices),
        "algbw_gb_per_s": None if is_one else packing.algbw_bytes_per_s / 1e9,
        "bound_gb_per_s": None if is_one else packing.bound_bytes_per_s / 1e9,
        "gap": packing.gap,
        "missing": None if topology.missing is None else str(topology.missing),
        "plan": None if chosen is None else _plain_prediction(chosen.prediction),
        "packs": []
        if chosen is None
        else [
            {"share": pack.share, "root": pack.root, "depth": pack.depth, "edges": [list(pair) for pair in pack.pairs]}
            for pack in chosen.packs
        ],
        "bottleneck": describe_bottleneck(packing, topology),
        "certificate": describe_certificate(found),
        "notes": [*machine_notes(topology), *packing.notes],
        "predicted": _predicted(found),
    }


def _plain_prediction(one: Prediction) -> dict[str, Any]:
    return {"size": one.nbytes, "seconds": one.seconds, "method": one.method}


def _predicted(found: PlanFindings) -> list[dict[str, Any]]:
    rows = []
    for nbytes in dict.fromkeys(prediction.nbytes for prediction in found.predictions):
        best = best_of(found.predictions, nbytes, found.ours)
        rows.append({"size": nbytes, "seconds": best.seconds, "method": "treefold", "by": best.method})
        rows += [_plain_prediction(one) for one in found.predictions if one.nbytes == nbytes]
    return rows


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted seconds of one method for ``nbytes`` bytes per device."""

    nbytes: int
    seconds: float
    method: str

    @property
    def gb_per_s(self) -> float:
        """Algorithm bandwidth: bytes of one device's values over seconds, in 10⁹."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else float("inf")


def parse_sizes(text: str | None, default: str, topology: Topology) -> tuple[int, ...]:
    """Return the sizes of a text such as ``64K,16M``, each once, the smallest first.

    ``default`` stands for None. On large machines, on which each size takes seconds, a shorter list does.

    Raises:
        BenchError: naming ``--size``, for what is no size.

    """
    if text is None:
        text = default if len(topology.devices) <= _LARGE else _FEW
    return tuple(sorted({parse_size(word, "--size") for word in text.split(",")}))


def trees_name(packs: int | None) -> str:
    """Return the name of the trees method with this number of packs."""
    return "trees" if packs is None else f"trees#{packs}"


def our_names(comparison: Comparison, packs: int | None) -> list[str]:
    """Return the names of treefold's methods on a machine without its rings; the trees come first."""
    is_one = len(comparison.methods.topology.devices) == 1
    others = [] if is_one else [name for name in comparison.names(PLAN) if name != "trees"]
    return [trees_name(packs), *others]


def predict(
    comparison: Comparison,
    sizes: Sequence[int],
    packs: int | None,
    *,
    begin: Callable[[str], object],
    may_win: bool = False,
) -> tuple[Prediction, ...]:
    """Return the prediction of every method at every size, by size, then by method, rings last.

    Args:
        comparison: the methods of the machine.
        sizes: bytes per device.
        packs: the number of packs that was asked for, or None.
        begin: called with a sentence before each size.
        may_win: leave out methods of treefold's that cannot be chosen, because ``packs`` was given or they are too
            slow.

    """
    is_one = len(comparison.methods.topology.devices) == 1
    ours, others = our_names(comparison, packs), [] if is_one else sorted(BASELINES, key=RINGS.__eq__)

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


def factor(other: Prediction, best: Prediction, machine: Topology) -> str:
    """Return the ratio of another method's time to the best, such as " (1.10×)".

    The ratio is left out for sizes at which predictions were not checked. Rings stand for NCCL and RCCL, so their time
    is at most the published one for the machine.
    """
    if best.nbytes < CHECKED_FROM:
        return ""
    measured = published_s(machine, best.nbytes) if other.method == RINGS else None
    seconds = other.seconds if measured is None else min(other.seconds, measured)
    return f" ({seconds / best.seconds:.2f}×)"


def describe_checks(machine: Topology, rings: RingPacking | None) -> str:
    """Return lines on how far predictions were checked, on the rings in the comparison, and on published figures."""
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


@dataclass(frozen=True, slots=True)
class Published:
    """The seconds that ``library`` took to all-reduce ``nbytes`` bytes per device on the known machine ``machine``."""

    machine: str
    library: str
    nbytes: int
    seconds: float
    source: str


PUBLISHED = (
    # NVIDIA says 275 GB/s for large values, and the question there is about 250 GB/s at 256 MiB.
    Published("dgx_h100", "NCCL, reducing in the switch,", 2**28, 2**28 / 250e9, "NVIDIA/nccl-tests issue 212"),
    Published("dgx_h100", "NCCL, reducing in the switch,", 2**33, 2**33 / 275e9, "NVIDIA/nccl-tests issue 212"),
    Published("2x8_h100", "NCCL", 2**28, 1.47e-3, "nccl-tests over 8 x 400 Gb/s"),
    Published("2x8_h100", "NCCL, reducing in the switch,", 2**33, 2**33 / 260e9, "nccl-tests on H200, 8 x 400 Gb/s"),
    Published("mi300x", "RCCL", 2**28, 1.33e-3, "rccl-tests"),
)


def published_for(machine: Topology) -> tuple[Published, ...]:
    """Return the published figures for a machine by growing size, if it is a known machine with all devices."""
    found = [one for one in PUBLISHED if one.machine == machine.name]
    if not found or _devices(machine.name) != machine.devices:
        return ()
    return tuple(sorted(found, key=lambda one: one.nbytes))


@functools.cache
def _devices(machine: str) -> tuple[str, ...]:
    return known_topology(machine).devices


def published_s(machine: Topology, nbytes: float) -> float | None:
    """Return the published seconds for a size; None if there are no figures, or the size is below ``CHECKED_FROM``.

    Times between two figures are interpolated linearly. Outside of the figures, the nearest one's bandwidth is used.

    >>> published_s(known_topology("mi300x"), 2**29)
    0.00266
    >>> published_s(known_topology("dgx2"), 2**29) is published_s(known_topology("mi300x"), 2**20) is None
    True
    """
    known = published_for(machine)
    if not known or nbytes < CHECKED_FROM:
        return None
    for low, high in itertools.pairwise(known):
        if low.nbytes <= nbytes <= high.nbytes:
            part = (nbytes - low.nbytes) / (high.nbytes - low.nbytes)
            return low.seconds + part * (high.seconds - low.seconds)
    nearest = known[0] if nbytes < known[0].nbytes else known[-1]
    return nearest.seconds * nbytes / nearest.nbytes
