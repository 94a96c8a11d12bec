"""What the planning commands print: a machine, a plan and its proof, predictions; in words and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from treefold.cli.console import Block
from treefold.cli.planning.methods import OTHERS, Prediction, best_of
from treefold.cli.planning.published import factor
from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.planners.choose import SizeTable
from treefold.planners.ring import RingPacking
from treefold.planners.tree_packing import TreePacking
from treefold.report.bottleneck import describe_bottleneck
from treefold.report.certificate import most_loaded
from treefold.report.machine_drawing import but_missing, gb_per_s
from treefold.report.page import Check
from treefold.report.tables import Table
from treefold.topology import Topology
from treefold.topology.nvlinks import fitting_nvlinks

_MODEL = "plain values over links that carry both ways at once; devices combine, switches do not"
_TREES = 24
_EXACT = 1e-6


def describe_machine(topology: Topology) -> tuple[Block, ...]:
    """Return a machine in words: what it has, and every link once, if it has links."""
    counts = Counter(topology.kinds.values())
    nouns = {"device": "device", "host": "host", "switch": "switch", "nic": "NIC"}
    plural = {"switch": "switches"}
    parts = [f"{n} {nouns[k] if n == 1 else plural.get(k, nouns[k] + 's')}" for k, n in counts.items()]
    lines = [f"{topology.name or 'this machine'}: {', '.join(parts)}{but_missing(topology)}"]
    lines += [f"note: {note}" for note in machine_notes(topology)]
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
    return (*lines, "", Table(["link", "kind", "GB/s", "alpha µs"], rows, words=(0, 1))) if rows else tuple(lines)


@dataclass(frozen=True)
class Findings:
    """What ``treefold plan`` found: all that it prints and draws.

    ``bound_again``: the certificate's bound, recomputed; None where that is not done. ``table``: if it was asked for.
    """

    topology: Topology
    packing: TreePacking
    bound_again: Fraction | None
    predictions: Sequence[Prediction]
    rings: RingPacking
    table: SizeTable | None


def describe_packing(found: Findings) -> tuple[Block, ...]:
    """Return a packing in words: the bound, what is reached, the proof, what holds it back, the trees."""
    topology, packing = found.topology, found.packing
    count = len(packing.devices)
    if packing.certificate is None or packing.algbw is None:
        return (one_device(topology),)
    bound, reached = packing.bound_bytes_per_s / 1e9, packing.algbw_bytes_per_s / 1e9
    busbw = 2 * (count - 1) / count
    lines = [
        f"{topology.name or 'this machine'}: {count} devices{but_missing(topology)}",
        f"optimum:     X* = {bound:.2f} GB/s all-reduce (S/t), busbw {bound * busbw:.1f}",
        f"this plan:   X = {reached:.2f} GB/s in {counted(len(packing.trees), 'pack')}, {_gap(topology, packing)}",
        f"model:       {_MODEL}",
        f"bottleneck:  {describe_bottleneck(packing, topology)}",
        f"certificate: {describe_certificate(found)}",
        *(f"note:        {note}" for note in packing.notes),
    ]
    return (*lines, "", *_trees(packing))


def one_device(topology: Topology) -> str:
    """Return in words that a machine leaves nothing to plan."""
    return f"{topology.name or 'this machine'}: one device, nothing to reduce"


def machine_notes(topology: Topology) -> list[str]:
    """Return a machine's notes, and how to complete it where NVLinks are missing and a known machine has them."""
    fitting = fitting_nvlinks(topology) if topology.missing is not None and topology.missing.kind == "nvlink" else ()
    how = [f"--nvlinks adds a known machine's NVLinks: {', '.join(fitting)}."] if fitting else []
    return [*topology.notes, *how]


def _gap(topology: Topology, packing: TreePacking) -> str:
    if packing.gap >= _EXACT:
        return f"{packing.gap:.2%} below the optimum"
    return "gap 0: proved optimal" if topology.missing is None else "gap 0 for the links that the file has"


def describe_certificate(found: Findings) -> str:
    """Return the proof of the bound in a line, with what checking it again gave."""
    certificate = found.packing.certificate
    if certificate is None:
        return "none is needed"
    proof = f"prices on {len(certificate.prices)} directed links, at which every tree costs {certificate.cost} or more"
    if certificate.is_partition:
        edges = len(certificate.parts) - 1
        whole = gb_per_s(certificate.bound * edges)
        proof = f"{whole} between {edges + 1} groups, which every tree crosses {edges} times: {whole} / {edges}"
    if found.bound_again is None:
        return f"{proof}; trees up and down apart, not checked again here"
    return f"{proof}; checked again: {'holds' if found.bound_again == certificate.bound else 'DOES NOT HOLD'}"


def _trees(packing: TreePacking) -> list[Block]:
    rows = [
        [
            str(n),
            f"{float(t.share):.2%}",
            t.root,
            str(t.depth),
            ", ".join(f"{_short(a)}→{_short(b)}" for a, b in t.pairs),
        ]
        for n, t in enumerate(packing.trees[:_TREES])
    ]
    table = Table(["pack", "share", "root", "depth", "edges, up to the root"], rows, words=(0, 2, 4))
    more = len(packing.trees) - _TREES
    return [table, f"… and {more} more packs"] if more > 0 else [table]


def _short(name: str) -> str:
    return name.removeprefix("gpu:")


def describe_predictions(predictions: Sequence[Prediction], machine: Topology) -> Table:
    """Return the predicted times as a table: the best of treefold's methods beside what others do."""
    sizes = list(dict.fromkeys(prediction.nbytes for prediction in predictions))
    methods = [name for name in OTHERS if any(prediction.method == name for prediction in predictions)]
    rows = []
    for nbytes in sizes:
        best = best_of(predictions, nbytes)
        row = [bytes_in_words(nbytes), seconds_in_words(best.seconds), best.method]
        for name in methods:
            other = best_of(predictions, nbytes, [name])
            row.append(seconds_in_words(other.seconds) + factor(other, best, machine))
        rows.append(row)
    return Table(["size", "treefold", "by", *methods], rows)


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
    topology, packing = found.topology, found.packing
    is_one = packing.algbw is None
    return {
        "topology": topology.name,
        "devices": list(packing.devices),
        "algbw_gb_per_s": None if is_one else packing.algbw_bytes_per_s / 1e9,
        "bound_gb_per_s": None if is_one else packing.bound_bytes_per_s / 1e9,
        "gap": packing.gap,
        "missing": None if topology.missing is None else str(topology.missing),
        "packs": [
            {"share": float(tree.share), "root": tree.root, "depth": tree.depth, "edges": [list(p) for p in tree.pairs]}
            for tree in packing.trees
        ],
        "bottleneck": describe_bottleneck(packing, topology),
        "certificate": describe_certificate(found),
        "notes": [*machine_notes(topology), *packing.notes],
        "predicted": _predicted(found.predictions),
    }


def _predicted(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    rows = []
    for nbytes in dict.fromkeys(prediction.nbytes for prediction in predictions):
        best = best_of(predictions, nbytes)
        rows.append({"size": nbytes, "seconds": best.seconds, "method": "treefold", "by": best.method})
        of_size = [p for p in predictions if p.nbytes == nbytes]
        rows += [{"size": nbytes, "seconds": p.seconds, "method": p.method} for p in of_size]
    return rows
