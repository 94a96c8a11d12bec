"""This machine: its GPUs and NVLinks from NVML, its PCIe tree and NUMA nodes from the system."""

from __future__ import annotations

import importlib
import platform
import re
from pathlib import Path
from typing import Any

from treefold.errors import ParseError
from treefold.files import readable_text
from treefold.topology import rates
from treefold.topology.graph import Topology
from treefold.topology.machine import SWITCH_NAMES, MachineFacts, numa_topology

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REMOTE_GPU, _REMOTE_CPU = 0x00, 0x01  # NVML's kinds of an NVLink's remote end; all others are switches
_MOST_LINKS = 64


def discover_topology(
    *, nvml: Any = None, sysfs: Path = Path("/sys"), cpuinfo: Path = Path("/proc/cpuinfo")
) -> Topology:
    """Return the machine that this process runs on.

    Its devices are the GPUs as NVML counts them, from ``gpu:0``. This is CUDA's order under
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Without NVML or GPUs, they are the NUMA nodes, from ``cpu:0``. Bandwidths are
    those of ``topology/rates.py`` for what was found, not measured.

    Args:
        nvml: the module that speaks NVML; nvidia-ml-py's, if it is installed and finds a driver.
        sysfs: where the system shows its devices.
        cpuinfo: where it shows its CPUs.

    Raises:
        ParseError: NVML is there and does not answer.
        TopologyError: what was found does not hold together.

    """
    nvml = nvml or _nvidia_ml_py()
    between = _between_sockets(cpuinfo)
    count = _asked(nvml, nvml.nvmlDeviceGetCount) if nvml else 0
    if not count:
        notes = ["No GPU was found: the devices are the NUMA nodes of this machine."]
        return numa_topology(platform.node(), _numa_nodes(sysfs), between_gb_per_s=between, notes=notes)
    machine = MachineFacts(platform.node())
    handles = [_asked(nvml, nvml.nvmlDeviceGetHandleByIndex, number) for number in range(count)]
    buses = [_bus_id(_asked(nvml, nvml.nvmlDeviceGetPciInfo, handle).busId) for handle in handles]
    names = {bus_id: f"gpu:{number}" for number, bus_id in enumerate(buses)}
    for handle, bus_id in zip(handles, buses, strict=True):
        socket = f"numa:{_numa_node(sysfs, bus_id)}"
        machine.sockets[socket] = between
        _add_slots(machine, sysfs, names[bus_id], bus_id, socket)
        _add_nvlinks(machine, nvml, handle, names, bus_id, socket)
    machine.notes.append(
        "Bandwidths are what NCCL takes for such links; treefold.topology.cost.refine puts measured ones in their "
        "place."
    )
    machine.notes.append("GPUs are numbered as by NVML; CUDA does so with CUDA_DEVICE_ORDER=PCI_BUS_ID.")
    return machine.build(every_pair=True)


def _nvidia_ml_py() -> Any:
    """Return nvidia-ml-py's module, initialized, or None if it or the driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _asked(nvml: Any, question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        raise ParseError(
            f"NVML does not describe this machine: {error!s}. Give its topology as a file instead."
        ) from None


def _numa_node(sysfs: Path, bus_id: str) -> int:
    text = readable_text(sysfs / "bus" / "pci" / "devices" / bus_id / "numa_node")
    return int(text) if text.isdecimal() else 0  # -1 where the system does not know


def _add_slots(machine: MachineFacts, sysfs: Path, name: str, bus_id: str, socket: str) -> None:
    """Add a GPU's slot and the bridges above it, up to its NUMA node."""
    resolved = (sysfs / "bus" / "pci" / "devices" / bus_id).resolve()
    above = [path for path in reversed(resolved.parents) if _BUS_ID.fullmatch(path.name)]
    parent = socket
    for bridge in above:
        machine.add(f"pci {bridge.name}", "switch", parent=parent, gb_per_s=_slot_gb_per_s(bridge))
        parent = f"pci {bridge.name}"
    machine.add(name, "device", parent=parent, gb_per_s=_slot_gb_per_s(resolved))


def _slot_gb_per_s(device: Path) -> float:
    # The largest, not the current ones: idle GPUs lower both.
    width = readable_text(device / "max_link_width")
    lanes = int(width) if width.isdecimal() and int(width) <= 64 else 0  # noqa: PLR2004 - 255 stands for unknown
    return rates.pcie_gb_per_s(readable_text(device / "max_link_speed"), lanes)


def _add_nvlinks(
    machine: MachineFacts, nvml: Any, handle: Any, names: dict[str, str], bus_id: str, socket: str
) -> None:
    major, minor = _asked(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    each = rates.nvlink_gb_per_s(10 * major + minor)
    for link in range(_MOST_LINKS):
        try:
            is_up = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError:
            break  # no more links, or a GPU without any
        try:
            remote = _bus_id(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId) if is_up else ""
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) if is_up else _REMOTE_GPU
        except nvml.NVMLError:
            machine.notes.append("NVML does not say where some NVLinks lead; they are left out.")
            continue
        if not is_up:
            continue
        if remote in names and remote != bus_id:
            machine.add_link(names[bus_id], names[remote], gb_per_s=each, kind="nvlink")
        elif kind == _REMOTE_CPU:
            machine.add_link(names[bus_id], socket, gb_per_s=each, kind="nvlink")
        elif kind != _REMOTE_GPU:
            machine.add_link(names[bus_id], SWITCH_NAMES["nvlink"], gb_per_s=each, kind="nvlink")
        else:
            machine.notes.append("Some NVLinks lead to GPUs that this process does not see; they are left out.")


def _numa_nodes(sysfs: Path) -> int:
    """Return how many NUMA nodes have CPUs, or 1 if the system does not say."""
    nodes = (sysfs / "devices" / "system" / "node").glob("node[0-9]*")
    return sum(1 for node in nodes if readable_text(node / "cpulist")) or 1


def _between_sockets(cpuinfo: Path) -> float:
    found = dict(re.findall(r"^(vendor_id|cpu family|model)\s*:\s*(\S{1,40})", readable_text(cpuinfo), re.MULTILINE))
    family, model = (int(found[key]) if found.get(key, "").isdecimal() else 0 for key in ("cpu family", "model"))
    return rates.between_sockets_gb_per_s(platform.machine(), found.get("vendor_id", ""), family, model)


def _bus_id(text: str | bytes) -> str:
    """Return a bus id as the system spells it: NVML writes eight digits of domain."""
    name = (text.decode("ascii", "replace") if isinstance(text, bytes) else text).lower().strip("\0")
    domain, _, rest = name.partition(":")
    return f"{domain[-4:]}:{rest}"
