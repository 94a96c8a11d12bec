"""hwloc's XML (``lstopo --of xml``), of versions 1 to 3.

GPUs become devices, below the PCIe tree that the file shows, with the links of its NVLink or xGMI matrix. A machine
without GPUs has its NUMA nodes as devices, from ``cpu:0``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from treefold.errors import ParseError
from treefold.topology import rates
from treefold.topology.graph import Topology
from treefold.topology.machine import SWITCH_NAMES, MachineFacts, numa_topology
from treefold.topology.parsers.markup import read_xml, root_tag

MAX_GPUS, MAX_NUMA_NODES, MAX_PACKAGES = 1024, 1024, 64
TOOL = "hwloc XML"

_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]")
_ACCELERATORS, _DISPLAY, _NETWORK = {"0302", "0380", "1200"}, "0300", "02"
_NVIDIA, _AMD, _IBM, _MAKERS = "10de", "1002", "1014", {"10de", "1002", "8086"}
_AMD_CARDS = range(0x6600, 0x7900)  # device ids of cards; those of APUs and of a server's own display lie outside
_NUMBERED = re.compile(r"(?:nvml|cuda|rsmi|amdsmi)(\d{1,4})")
_COMPUTES = re.compile(r"nvml|cuda|rsmi|amdsmi|opencl|ze\d|ve\d")
_PACKAGES, _IO = {"Package", "Socket"}, {"Bridge", "PCIDev", "OSDev"}


@dataclass(slots=True)
class _HwlocFile:
    """The objects found in one walk over the file."""

    machine: MachineFacts = field(default_factory=MachineFacts)
    gpus: dict[str, tuple[Element, str, float]] = field(default_factory=dict)  # bus id: element, parent, GB/s
    owner: dict[str, str] = field(default_factory=dict)  # gp_index of a PCI or OS device: bus id
    makers: dict[str, str] = field(default_factory=dict)  # bus id: vendor
    socket_of: dict[str, str] = field(default_factory=dict)  # gp_index of CPUs and memory: their package, or nothing
    packages: dict[int, str] = field(default_factory=dict)  # by identity of the element
    numa: list[Element] = field(default_factory=list)


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return root_tag(text) == "topology"


def parse(text: str) -> Topology:
    """Return the machine.

    Raises:
        ParseError: broken XML, a number that cannot be, or a matrix that is cut off.

    """
    root = read_xml(text)
    file = _HwlocFile()
    packages = [element for element in root.iter("object") if element.get("type") in _PACKAGES]
    if len(packages) > MAX_PACKAGES:
        raise ParseError.too_much("packages", len(packages), MAX_PACKAGES)
    between = _between_sockets(root)
    for number, package in enumerate(packages):
        file.packages[id(package)] = f"socket {number}"
        file.machine.sockets[f"socket {number}"] = between
    for element in root.findall("object"):
        _walk(file, element, between)
    if not file.gpus:
        return _numa_machine(file, between)
    if len(file.gpus) > MAX_GPUS:
        raise ParseError.too_much("GPUs", len(file.gpus), MAX_GPUS)
    names = _gpu_names(file)
    for bus_id, (element, parent, gb_per_s) in file.gpus.items():
        file.machine.add(names[bus_id], "device", parent=parent, gb_per_s=gb_per_s)
        found = _PCI_TYPE.match(element.get("pci_type", ""))
        if found:
            file.machine.ids[names[bus_id]] = (found[2], found[3])
    for matrix in [*root.iter("distances2"), *root.iter("distances2hetero")]:
        _read_matrix(file, matrix, names)
    file.machine.notes.append(
        "hwloc's bandwidths are raw; they are cut to what NCCL and RCCL take of them. Idle GPUs may show slow slots."
    )
    return file.machine.build(every_pair=False)


def _between_sockets(root: Element) -> float:
    info = {element.get("name"): element.get("value", "") for element in reversed(list(root.iter("info")))}
    family, model = (_integer(info.get(key, "0") or "0") for key in ("CPUFamilyNumber", "CPUModelNumber"))
    return rates.between_sockets_gb_per_s(info.get("Architecture", ""), info.get("CPUVendor", ""), family, model)


def _walk(file: _HwlocFile, top: Element, between: float) -> None:
    todo = [(top, "", "", top)]
    below: dict[int, str] = {}  # by identity of a bridge's parent
    while todo:
        element, socket, parent, holder = todo.pop()
        kind = element.get("type", "")
        if kind in _PACKAGES:
            socket, parent = file.packages[id(element)], ""
        elif kind == "NUMANode":
            file.numa.append(element)
        if kind not in _IO:
            file.socket_of[element.get("gp_index", "")] = socket
        if kind in {"Bridge", "PCIDev"} and not parent:
            if not socket and id(holder) not in below:
                below[id(holder)] = _socket_below(file, holder, between)
            parent = socket or below[id(holder)]
        if kind == "Bridge" and element.get("bridge_type", "").startswith("1"):
            name = f"pci {_bus_id(element)}"
            if name in file.machine.pcie:
                raise ParseError.twice("bus id", name[4:])
            file.machine.add(name, "switch", parent=parent, gb_per_s=_slot_gb_per_s(file, element))
            parent = name
        elif kind == "PCIDev":
            _add_device(file, element, parent)
            continue
        todo += [(child, socket, parent, element) for child in reversed(element.findall("object"))]


def _socket_below(file: _HwlocFile, holder: Element, between: float) -> str:
    """Return the only package below the parent of a bridge; if there are several, a hub that joins them all."""
    below = list(file.packages.values())
    if len(below) > 1:
        below = [file.packages[id(inner)] for inner in holder.iter("object") if id(inner) in file.packages]
    if len(below) == 1:
        return below[0]
    file.machine.sockets["machine"] = between
    return "machine"


def _add_device(file: _HwlocFile, element: Element, parent: str) -> None:
    found = _PCI_TYPE.match(element.get("pci_type", ""))
    bus_id = _bus_id(element)
    pci_class, vendor = (found[1], found[2]) if found else ("", "")
    file.makers[bus_id] = vendor
    children = [child for child in element.iter("object") if child is not element]
    for index in (element, *children):
        file.owner[index.get("gp_index", "")] = bus_id
    computes = vendor == _NVIDIA or (found is not None and vendor == _AMD and int(found[3], 16) in _AMD_CARDS)
    computes = computes or any(_COMPUTES.match(child.get("name", "")) for child in children)
    is_gpu = (pci_class in _ACCELERATORS and vendor in _MAKERS) or (
        pci_class == _DISPLAY and vendor in _MAKERS and computes
    )
    if is_gpu:
        if bus_id in file.gpus:
            raise ParseError.twice("bus id", bus_id)
        file.gpus[bus_id] = (element, parent, _slot_gb_per_s(file, element))
    elif pci_class.startswith(_NETWORK):
        names = [child.get("name", "") for child in children]
        name = f"nic {names[-1][:80]}" if names and names[-1] else f"nic {bus_id}"
        name = f"{name} {bus_id}" if name in file.machine.pcie else name
        file.machine.add(name, "nic", parent=parent, gb_per_s=_slot_gb_per_s(file, element))


def _gpu_names(file: _HwlocFile) -> dict[str, str]:
    """Number GPUs as NVML or ROCm SMI did, if the file has their numbers, else in order of bus id."""
    numbers: dict[str, int] = {}
    for bus_id, (element, _, _) in file.gpus.items():
        for child in element.iter("object"):
            found = _NUMBERED.fullmatch(child.get("name", ""))
            if found and child is not element:
                numbers[bus_id] = int(found[1])
    if len(numbers) < len(file.gpus) or len(set(numbers.values())) < len(numbers):
        numbers = {bus_id: number for number, bus_id in enumerate(sorted(file.gpus))}
    return {bus_id: f"gpu:{number}" for bus_id, number in numbers.items()}


def _slot_gb_per_s(file: _HwlocFile, element: Element) -> float:
    text = element.get("pci_link_speed", "0")
    if not re.fullmatch(r"\d{1,5}(\.\d{1,9})?", text):
        raise ParseError.bad_field("A pci_link_speed", text, "GB/s, such as 15.753846")
    raw = float(text)
    if not raw:
        file.machine.notes.append("Some PCIe slots show no speed; they are taken as gen 3 x16.")
        return rates.PCIE_GEN3_X16
    return round(raw * rates.PCIE_GEN3_X16 / rates.PCIE_RAW_GEN3_X16, 3)


def _read_matrix(file: _HwlocFile, matrix: Element, names: dict[str, str]) -> None:
    """Add the NVLinks or xGMI links of a bandwidth matrix, which is in MB/s."""
    name = matrix.get("name", "")
    kind = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}.get(name, "")
    if not kind:
        return
    share = rates.NVLINK_RAW_SHARE if kind == "nvlink" else rates.XGMI_RAW_SHARE
    indexes = [word.rpartition(":")[2] for word in _words(matrix, "indexes")]
    values = [_integer(word) for word in _words(matrix, "u64values")]
    if len(values) != len(indexes) ** 2 or matrix.get("nbobjs") != str(len(indexes)):
        raise ParseError.truncated(TOOL, f"{name} has {len(values)} values for {matrix.get('nbobjs')} objects")
    for i, source in enumerate(file.owner.get(index, "") for index in indexes):
        for j, index in enumerate(indexes):
            gb_per_s = round(values[i * len(indexes) + j] * share / 1000, 6)
            if source in names and i != j and gb_per_s:
                _add_link(file, names, source, index, gb_per_s=gb_per_s, kind=kind)


def _add_link(file: _HwlocFile, names: dict[str, str], source: str, index: str, *, gb_per_s: float, kind: str) -> None:
    """Add a GPU's links to the object with this gp_index: a GPU, an NVSwitch, or a CPU (POWER8 and POWER9)."""
    machine, gpu, target = file.machine, names[source], file.owner.get(index, "")
    maker = file.makers.get(target, "")
    if target in names and target != source:
        end = names[target]
    elif target not in names and maker == _NVIDIA:
        end = SWITCH_NAMES[kind]
        machine.notes.append("All NVSwitch chips are taken as one switch: hwloc does not show the links between them.")
    elif maker == _IBM or index in file.socket_of:
        end = file.socket_of.get(index) or _socket_above(machine, gpu)  # NVLink and PCIe lead to the same package
    else:
        if target != source:
            machine.notes.append(f"Some links of {gpu} lead to neither a GPU, a switch nor a CPU; they are left out.")
        return
    machine.add_link(gpu, end, gb_per_s=gb_per_s, kind=kind)


def _socket_above(machine: MachineFacts, name: str) -> str:
    while name in machine.pcie:
        name = machine.pcie[name].parent
    return name


def _numa_machine(file: _HwlocFile, between: float) -> Topology:
    """Return the NUMA nodes that have CPUs as devices; nodes with the same CPUs are one device."""
    cpusets = {cpuset for node in file.numa if (cpuset := node.get("cpuset", "")).strip("0x,")}
    count = max(len(cpusets), 1)
    if count > MAX_NUMA_NODES:
        raise ParseError.too_much("NUMA nodes", count, MAX_NUMA_NODES)
    notes = ["The file shows no GPU: the devices are its NUMA nodes."]
    return numa_topology("", count, between_gb_per_s=between, notes=notes)


def _words(matrix: Element, tag: str) -> Iterator[str]:
    for element in matrix.iter(tag):
        yield from (element.text or "").split()


def _integer(text: str) -> int:
    if not re.fullmatch(r"\d{1,12}", text):
        raise ParseError.bad_field("A number of the hwloc XML", text, "a whole number")
    return int(text)


def _bus_id(element: Element) -> str:
    bus_id = element.get("pci_busid", "").lower()
    if not re.fullmatch(r"[0-9a-f]{1,8}(:[0-9a-f]{1,4}){1,2}(\.[0-9a-f]{1,2})?", bus_id):
        raise ParseError.bad_field("A pci_busid", bus_id, "a bus id such as 0000:3b:00.0")
    return bus_id
