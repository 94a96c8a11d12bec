"""What the planning commands print: a machine, a plan and its proof, predictions; in words and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from treefold.cli.console import Block
from treefold.cli.planning.methods import OTHERS, RINGS_LABEL, Prediction, best_of
from treefold.cli.planning.published import factor
from treefold.cli.tables import Table
from treefold.devices import device_type
from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.topology import Topology
from treefold.topology.cost.published import published_for, published_s
from treefold.topology.drawing.bottleneck import describe_bottleneck
from treefold.topology.drawing.certificate import most_loaded
from treefold.topology.drawing.machine_drawing import but_missing, gb_per_s
from treefold.topology.drawing.packs import Pack
from treefold.topology.drawing.page import Check
from treefold.topology.nvlinks import fitting_nvlinks
from treefold.topology.planning.choose import SizeTable
from treefold.topology.planning.ring import RingPacking
from treefold.topology.planning.tree_packing import TreePacking

_MODEL = "plain values over links that carry both ways at once; devices combine, switches do not"
_SHOWN_PACKS = 24
_EXACT = 1e-6


def describe_machine(topology: Topology) -> list[Block]:
    """Return a machine in words: what it has, and every link once, if it has links."""
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
    """Return every link once, with what it carries in each direction."""
    rows, seen = [], set[tuple[str, str, str]]()
    for link in topology.links:
        if (link.target, link.source, link.kind) in seen:
            continue
        seen.add((link.source, link.target, link.kind))
        back = [other for other in topology.links if (other.source, other.target) == (link.target, link.source)]
        returns = next((other.bytes_per_s for other in back if other.kind == link.kind), 0.0)
        words = f"{link.bytes_per_s / 1e9:.4g}"
        words += "" if returns == link.bytes_per_s else f" / {returns / 1e9:.4g}"
        rows.append([f"{link.source} - {link.target}", link.kind, words, f"{link.alpha_s * 1e6:.3g}"])
    return Table(("link", "kind", "GB/s", "alpha µs"), rows, words=(0, 1))


@dataclass(frozen=True)
class Chosen:
    """The plan: the quickest method for a size, by its ``name``, with what it takes and its packs."""

    name: str
    prediction: Prediction
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Findings:
    """What ``treefold plan`` found: all that it prints and draws.

    ``packing``: the proof of what can be reached. ``bound_again``: the certificate's bound, recomputed; None where that
    is not done. ``ours``: the methods that may be chosen, by label. ``chosen``: None for one device. ``table``: if it
    was asked for.
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
        """What the plan takes, in everyday words."""
        if self.chosen is None:
            return describe_time(self.topology, None)
        ours = self.chosen.prediction
        return describe_time(self.topology, ours, best_of(self.predictions, ours.nbytes, [RINGS_LABEL]))


def describe_time(topology: Topology, ours: Prediction | None, rings: Prediction | None = None) -> str:
    """Return in everyday words what a plan takes, and what others take: the first line of all that is said of it.

    ``rings``: those for the same size, where they are compared. None for ours: there is one device.
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


def describe_plan(found: Findings) -> str:
    """Return a plan in words: what it is, the bound, what is reached, the proof, what holds it back."""
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
    """Return a machine's notes, and how to complete it where NVLinks are missing and a known machine has them."""
    fitting = fitting_nvlinks(topology) if topology.missing is not None and topology.missing.kind == "nvlink" else ()
    how = [f"--nvlinks adds a known machine's NVLinks: {', '.join(fitting)}."] if fitting else []
    return [*topology.notes, *how]


def _reached(topology: Topology, packing: TreePacking) -> str:
    trees = counted(len(packing.trees), "tree")
    if packing.gap >= _EXACT:
        return f"{trees}: {packing.algbw_bytes_per_s / 1e9:.2f} GB/s, {packing.gap:.2%} below it"
    return f"{trees}: gap 0, {'proved optimal' if topology.missing is None else 'for the links that the file has'}"


def describe_certificate(found: Findings) -> str:
    """Return the proof of the bound in a line, with what checking it again gave."""
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


def tabulate_packs(packs: Sequence[Pack]) -> Table:
    """Return the packs of a plan, the first of them."""
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


def tabulate_predictions(found: Findings) -> Table:
    """Return the predicted times as a table: the best of treefold's methods beside what others do."""
    predictions = found.predictions
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in predictions))
    rows = []
    for nbytes in sizes:
        best = best_of(predictions, nbytes, found.ours)
        row = [bytes_in_words(nbytes), seconds_in_words(best.seconds), best.method]
        for name in OTHERS:
            other = best_of(predictions, nbytes, [name])
            row.append(seconds_in_words(other.seconds) + factor(other, best, found.topology))
        rows.append(row)
    return Table(("size", "treefold", "by", *OTHERS), rows)


def list_checks(found: Findings) -> tuple[Check, ...]:
    """Return what was checked again about a packing, for its page."""
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


def to_plain(found: Findings) -> dict[str, Any]:
    """Return all of it, ready for ``json.dumps``; bandwidths that are infinite (one device) are null."""
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


def _predicted(found: Findings) -> list[dict[str, Any]]:
    rows = []
    for nbytes in dict.fromkeys(prediction.nbytes for prediction in found.predictions):
        best = best_of(found.predictions, nbytes, found.ours)
        rows.append({"size": nbytes, "seconds": best.seconds, "method": "treefold", "by": best.method})
        rows += [_plain_prediction(one) for one in found.predictions if one.nbytes == nbytes]
    return rows
