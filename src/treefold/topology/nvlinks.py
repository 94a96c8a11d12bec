"""The NVLinks of a known machine, laid over the GPUs of a description that lacks them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from treefold.devices import device_type
from treefold.errors import TopologyError
from treefold.errors.words import some
from treefold.topology import rates
from treefold.topology.gpus import LINK_NOUNS, model_named
from treefold.topology.graph import Link, Node, Topology
from treefold.topology.known import known_topology
from treefold.topology.machine import SWITCH_NAMES

#: CUDA's compute capability of the GPUs of the known machines that lend: one host, GPUs on boards with NVLinks.
_CAPABILITIES = {"dgx1_p100": 60, "p3_8xlarge": 70, "dgx1_v100": 70, "dgx2": 70, "dgx_a100": 80}
_CAPABILITIES |= {"dgx_h100": 90, "dgx_b200": 100}
#: The known machines that lend their NVLinks.
LENDERS = tuple(_CAPABILITIES)
_SWITCH = SWITCH_NAMES["nvlink"]
_GIGA = 10**9


def with_nvlinks(topology: Topology, name: str) -> Topology:
    """Return a machine with the NVLinks of the known machine ``name`` added to its own links, and nothing missing.

    The first GPU of one is the first GPU of the other, and so on. A machine whose GPUs share an NVSwitch lends its
    ports to as many GPUs as there are; one whose NVLinks join GPUs directly must have as many GPUs. NVLinks carry what
    NCCL takes for them, as those of an NCCL file do: less than ``known_topology(name)`` has from the data sheet.

    Raises:
        TopologyError: no known machine with NVLinks has this name, or it has too few or other GPUs; or the topology
            has NVLinks or xGMI links of its own, or devices that are no GPUs.

    >>> laid = with_nvlinks(known_topology("pcie3_8gpu"), "dgx_a100")
    >>> laid.capacity("gpu:0", "nvswitch") / 10**9
    Fraction(240, 1)
    """
    _check(topology, name)
    lender = known_topology(name)
    names = dict(zip(lender.devices, topology.devices, strict=False))
    nodes = topology.nodes
    if _SWITCH in lender.kinds:
        names[_SWITCH] = _SWITCH
        nodes = (*nodes, Node(_SWITCH, "switch"))
    # By way of the decimal, so that 20.6 GB/s are 20,600,000,000 bytes per second, and sums of links stay exact.
    each = Fraction(str(rates.nvlink_gb_per_s(_CAPABILITIES[name]))) * _GIGA
    links = tuple(
        Link(names[link.source], names[link.target], link.kind, float(_count(link, name) * each), link.alpha_s)
        for link in _nvlinks(lender)
        if link.source in names and link.target in names
    )
    note = f"The NVLinks are those of {name}, at what NCCL takes for them."
    if _SWITCH not in names:
        note += f" They join the GPUs in the order of {name}: compare with `nvidia-smi topo -m`."
    return replace(topology, nodes=nodes, links=(*links, *topology.links), notes=(*topology.notes, note), missing=None)


def fitting_nvlinks(topology: Topology) -> tuple[str, ...]:
    """Return the names that ``with_nvlinks`` takes for this machine."""
    fitting = []
    for name in _CAPABILITIES:
        try:
            _check(topology, name)
        except TopologyError:
            continue
        fitting.append(name)
    return tuple(fitting)


def _check(topology: Topology, name: str) -> None:
    if name not in _CAPABILITIES:
        raise TopologyError.unknown_nvlinks(name, list(_CAPABILITIES))
    strangers = [device for device in topology.devices if device_type(device) != "gpu"]
    if strangers:
        raise TopologyError(
            f"NVLinks join GPUs, and this topology has {some(strangers)}. Give a topology of GPUs only."
        )
    own = next((link.kind for link in topology.links if link.kind in LINK_NOUNS), None)
    if own is not None:
        raise TopologyError(
            f"This topology has {LINK_NOUNS[own]} of its own, and a known machine's NVLinks would be added to them. "
            "Plan it without these, or remove its own."
        )
    lender = known_topology(name)
    there, here = len(lender.devices), len(topology.devices)
    is_switched = _SWITCH in lender.kinds
    if here > there or (here < there and not is_switched):
        raise TopologyError.nvlinks_of_so_many(name, there, here, is_switched=is_switched)
    of_a_gpu = max(sum(_count(link, name) for link in _nvlinks(lender) if link.source == gpu) for gpu in lender.devices)
    for model in map(model_named, topology.missing.gpus if topology.missing is not None else ()):
        # Tens of a capability are its generation: a B300 (103) has a B200's (100) NVLinks.
        if model and (model.capability // 10 != _CAPABILITIES[name] // 10 or of_a_gpu > model.links):
            raise TopologyError(
                f"The GPUs of this topology are {model.name}, which do not have the NVLinks of {name}. Name a machine "
                "of such GPUs, or write their NVLinks into the plain JSON form."
            )


def _nvlinks(lender: Topology) -> list[Link]:
    return [link for link in lender.links if link.kind == "nvlink"]


def _count(link: Link, name: str) -> Fraction:
    """Return how many NVLinks of the known machine ``name`` a link is."""
    return Fraction(link.bytes_per_s) / (Fraction(rates.nvlink_raw_gb_per_s(_CAPABILITIES[name])) * _GIGA)
