"""NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``) and RCCL's dialect of it.

``<system><cpu><pci …><gpu dev sm rank><nvlink target count tclass/></gpu></pci></cpu></system>``; RCCL has ``<xgmi>``.
The graph is the one that NCCL builds from it: PCIe has width × rate / 80, every two CPUs have a link of their own, and
all NVSwitch chips are one switch. A file with several hosts (``host_hash``) has hosts that NVLink joins. Bus ids and
names of NICs are then unique on each host only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.etree.ElementTree import Element

from treefold.errors import ParseError
from treefold.topology import rates
from treefold.topology.gpus import has_sxm_parts, likely_kind
from treefold.topology.graph import Topology
from treefold.topology.machine import SWITCH_NAMES, MachineFacts
from treefold.topology.parsers.markup import read_xml, root_tag

MAX_CPUS, MAX_GPUS = 64, 1024
TOOL = "NCCL topology XML"

_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,4}):([0-9a-f]{1,4})(?:\.([0-9a-f]{1,2}))?")
_GPU_CLASSES, _NIC_CLASS = ("0x03", "0x12"), "0x02"
_SWITCH_CLASS, _CPU_BRIDGE_CLASS = "0x068000", "0x068001"
_MOST_LINKS = 1024
_KB_PER_S = 10_000_000  # From 10 Tb/s on, the speed of a NIC is in kb/s, not Mb/s.


class _Address(NamedTuple):
    """A bus id on one of the hosts; addresses are ordered by host, then by bus id."""

    host: int
    bus_id: str


@dataclass(slots=True)
class _Gpu:
    element: Element | None
    slot: Element
    address: _Address
    socket: str
    name: str = ""


@dataclass(slots=True)
class _NcclFile:
    """The elements found in one walk over the file, before GPUs have names."""

    machine: MachineFacts
    hosts: tuple[str, ...]  # their hashes
    has_gpu_elements: bool
    intel: set[str] = field(default_factory=set)
    gpus: dict[_Address, _Gpu] = field(default_factory=dict)
    switches: set[_Address] = field(default_factory=set)
    # Nodes below a socket or a switch: kind, address (or the name of a NIC), name of the parent, element.
    slots: list[tuple[str, _Address | str, str, Element]] = field(default_factory=list)
    nics: set[str] = field(default_factory=set)

    def on(self, host: int, name: str) -> str:
        """Return a name that is unique among all hosts."""
        return f"host{host}.{name}" if len(self.hosts) > 1 else name


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return root_tag(text) == "system"


def parse(text: str) -> Topology:
    """Return the machine of a topology XML.

    Raises:
        ParseError: broken XML, no GPU, a bus id twice, a number that cannot be.

    """
    root = read_xml(text)
    cpus = root.findall("cpu")
    if len(cpus) > MAX_CPUS:
        raise ParseError.too_much("<cpu> elements", len(cpus), MAX_CPUS)
    hosts = tuple(dict.fromkeys(cpu.get("host_hash", "") for cpu in cpus))
    file = _NcclFile(MachineFacts(), hosts, has_gpu_elements=next(root.iter("gpu"), None) is not None)
    for number, cpu in enumerate(cpus):
        _read_cpu(file, cpu, number)
    if not file.gpus:
        advice = "Its <pci> elements need a class (0x0302…) or a <gpu>; dump the file with NCCL_TOPO_DUMP_FILE."
        raise ParseError(f"The NCCL topology file names no GPU. {advice}")
    if len(file.gpus) > MAX_GPUS:
        raise ParseError.too_much("GPUs", len(file.gpus), MAX_GPUS)
    _name_gpus(file)
    _place(file)
    for gpu in file.gpus.values():
        _read_links(file, gpu)
    file.machine.unshown = _unshown(file)
    _note(file)
    return file.machine.build(every_pair=True)


def _read_cpu(file: _NcclFile, cpu: Element, number: int) -> None:
    host = file.hosts.index(cpu.get("host_hash", ""))
    name = file.on(host, f"numa:{cpu.get('numaid', number)}")[:80]
    if name in file.machine.sockets:
        raise ParseError.twice("<cpu> with numaid", cpu.get("numaid", ""))
    vendor, family = cpu.get("vendor", ""), _whole(cpu, "familyid", 0)
    model = _whole(cpu, "modelid", 0)
    between = rates.between_sockets_gb_per_s(cpu.get("arch", ""), vendor, family, model)
    file.machine.sockets[name] = between
    file.machine.hosts[name] = cpu.get("host_hash", "")
    if vendor == "GenuineIntel":
        file.intel.add(name)
    todo = [(name, child) for child in reversed(cpu)]
    while todo:
        parent, element = todo.pop()
        if element.tag == "nic":
            _add_nic(file, host, "", parent, element)
        elif element.tag == "pci":
            address = _Address(host, _bus_id(element.get("busid")))
            kind = _kind(element, has_gpu_elements=file.has_gpu_elements)
            if kind == "nic":
                _add_nic(file, host, address.bus_id, parent, element)
            elif kind:
                _add_slot(file, kind, address, name, parent, element)
            if kind == "switch":
                todo += [(_switch_name(file, address), child) for child in reversed(element)]


def _kind(element: Element, *, has_gpu_elements: bool) -> str:
    pci_class = element.get("class", "")
    if element.find("gpu") is not None:
        return "device"
    if element.find("nic") is not None or pci_class.startswith(_NIC_CLASS):
        return "nic"
    if element.find("pci") is not None:
        return "switch"
    return "device" if pci_class.startswith(_GPU_CLASSES) and not has_gpu_elements else ""


def _switch_name(file: _NcclFile, address: _Address) -> str:
    return file.on(address.host, f"pci {address.bus_id}")


def _add_slot(file: _NcclFile, kind: str, address: _Address, socket: str, parent: str, element: Element) -> None:
    """Add a GPU or a PCIe switch."""
    if address in file.gpus or address in file.switches:
        raise ParseError.twice("bus id", address.bus_id)
    if kind == "device":
        file.gpus[address] = _Gpu(element.find("gpu"), element, address, socket)
    else:
        file.switches.add(address)
    file.slots.append((kind, address, parent, element))


def _add_nic(file: _NcclFile, host: int, bus_id: str, parent: str, element: Element) -> None:
    """Add a NIC in a slot, or a NIC without a bus id below a CPU."""
    names = [net.get("name") or f"net{net.get('dev', '')}" for net in element.iter("net")]
    own = bus_id or str(len(file.slots))
    name = file.on(host, "nic " + ("+".join(dict.fromkeys(names))[:80] or own))
    if name in file.nics:
        name = f"{name} {own}"
    if name in file.nics:
        raise ParseError.twice("bus id", own)
    file.nics.add(name)
    file.slots.append(("nic", name, parent, element))


def _name_gpus(file: _NcclFile) -> None:
    """Name GPUs by their numbers in the file, if these are distinct, else in order of bus id."""
    gpus = list(file.gpus.values())
    for attribute in ("dev", "rank"):
        numbers = [_whole(gpu.element, attribute, -1) if gpu.element is not None else -1 for gpu in gpus]
        if min(numbers) >= 0 and len(set(numbers)) == len(numbers):
            break
    else:
        order = sorted(file.gpus)
        numbers = [order.index(gpu.address) for gpu in gpus]
        file.machine.notes.append("The file does not number its GPUs: gpu:0 is the one with the lowest bus id.")
    for gpu, number in zip(gpus, numbers, strict=True):
        gpu.name = f"gpu:{number}"
        file.machine.ids[gpu.name] = (gpu.slot.get("vendor", ""), gpu.slot.get("device", ""))


def _place(file: _NcclFile) -> None:
    """Put GPUs, NICs and switches into the PCIe tree."""
    for kind, of, parent, element in file.slots:
        gb_per_s = rates.pcie_gb_per_s(element.get("link_speed", ""), _width(element))
        if element.tag == "nic":
            gb_per_s = float("inf")
        elif parent in file.intel:
            gb_per_s *= rates.INTEL_P2P_SHARE
        if isinstance(of, str):
            name, gb_per_s = of, _nic_gb_per_s(file, element, gb_per_s)
        else:
            name = file.gpus[of].name if kind == "device" else _switch_name(file, of)
        file.machine.add(name, kind, parent=parent, gb_per_s=gb_per_s)


def _nic_gb_per_s(file: _NcclFile, element: Element, slot_gb_per_s: float) -> float:
    """Return GB/s of a NIC: those of its ports together, or of its slot if that is narrower."""
    total = 0.0
    for net in element.iter("net"):
        megabits = _whole(net, "speed", 0)
        if megabits >= _KB_PER_S:
            file.machine.notes.append(f"The speed of {net.get('name', 'a NIC')!r} is 1000 times too large; it is cut.")
            megabits //= 1000
        total += rates.net_gb_per_s(megabits)
    fastest = min(total or float("inf"), slot_gb_per_s)
    return fastest if fastest < float("inf") else rates.net_gb_per_s(10_000)  # as NCCL, where the speed is unknown


def _read_links(file: _NcclFile, gpu: _Gpu) -> None:
    """Add the NVLinks, xGMI links and C2C links of one GPU."""
    if gpu.element is None:
        return
    nvlink = rates.nvlink_gb_per_s(_whole(gpu.element, "sm", 0) or None)
    for element in gpu.element:
        if element.tag in {"nvlink", "xgmi"}:
            each = nvlink if element.tag == "nvlink" else rates.xgmi_gb_per_s(gpu.element.get("gcn", ""))
            count = _whole(element, "count", 1)
            if not 1 <= count <= _MOST_LINKS:
                raise ParseError.bad_field(f"The count of {element.tag}s of {gpu.name}", count, f"1 to {_MOST_LINKS}")
            _add_link(file, gpu, element, count * each)
        elif element.tag == "c2c":
            gb_per_s = _whole(element, "count", 1) * _whole(element, "bw", 0) / 1000
            file.machine.add_link(gpu.name, gpu.socket, gb_per_s=gb_per_s, kind="c2c")


def _add_link(file: _NcclFile, gpu: _Gpu, element: Element, gb_per_s: float) -> None:
    target, target_class = element.get("target", ""), element.get("tclass", "")
    address = gpu.address._replace(bus_id=_bus_id(target, strict=False))
    if address == gpu.address:
        file.machine.notes.append(f"The {element.tag} of {gpu.name} leads to {gpu.name} itself; it is left out.")
        return
    if address in file.gpus:
        end = file.gpus[address].name
    elif target_class == _CPU_BRIDGE_CLASS:
        end = gpu.socket
    elif target_class == _SWITCH_CLASS or target.startswith("fffffff"):  # hidden in a virtual machine
        end = SWITCH_NAMES[element.tag]
    else:
        file.machine.notes.append(f"{element.tag}s lead to GPUs that the file does not have; they are left out.")
        return
    file.machine.add_link(gpu.name, end, gb_per_s=gb_per_s, kind=element.tag)


def _unshown(file: _NcclFile) -> str:
    """Return the kind of links that the GPUs may have and the file cannot show; empty if it would show them.

    Links stand in ``<gpu>`` elements, which files for ``NCCL_TOPO_FILE`` often leave to NCCL. Other files have
    ``<gpu>`` elements for NCCL to complete. Without PCI ids, these do not tell a board with NVLinks from a PCIe card.
    """
    gpus = list(file.gpus.values())
    if not file.has_gpu_elements:
        return likely_kind(gpus[0].slot.get("vendor", ""), gpus[0].slot.get("class", ""))
    unknown = [gpu.element for gpu in gpus if gpu.element is not None and not gpu.slot.get("device")]
    is_nvidia = all("gcn" not in element.attrib for element in unknown)  # where sm is no compute capability
    return "nvlink" if is_nvidia and any(has_sxm_parts(_whole(element, "sm", 0)) for element in unknown) else ""


def _note(file: _NcclFile) -> None:
    notes = file.machine.notes
    if not file.has_gpu_elements:
        notes.append(
            "The file shows GPUs as PCIe slots only, which have neither NVLinks nor xGMI links in such a file."
        )
    elif not file.machine.has_fast_links:
        notes.append("The file lists no NVLink and no xGMI: it joins its GPUs by PCIe only.")
    if any(not element.get("link_speed") for *_, element in file.slots if element.tag == "pci"):
        notes.append("Some PCIe slots name no speed; they are taken as gen 3, as NCCL does.")
    if any(not _width(element) for *_, element in file.slots if element.tag == "pci"):
        notes.append("Some PCIe slots name no width; they are taken as x16, as NCCL does.")
    if file.intel:
        notes.append("Links to Intel CPUs are taken as 5/6 of their width, which is what peer copies get there.")
    notes.append("Bandwidths are the effective ones of NCCL's and RCCL's topo.h, not measured.")


def _width(element: Element) -> int:
    width = _whole(element, "link_width", 0)
    if not 0 <= width <= 64:  # noqa: PLR2004 - twice what PCIe has
        raise ParseError.bad_field("A link_width", width, "a number of lanes, 0 to 64")
    return width


def _whole(element: Element, attribute: str, default: int) -> int:
    """Return a whole number: decimal, or hexadecimal with 0x."""
    text = element.get(attribute, "").strip().lower()
    if not text:
        return default
    if re.fullmatch(r"-?[0-9]{1,12}", text):
        return int(text)
    if re.fullmatch(r"0x[0-9a-f]{1,10}", text):
        return int(text, 16)
    raise ParseError.bad_field(f"{attribute} of a <{element.tag}>", text, "a whole number")


def _bus_id(text: str | None, *, strict: bool = True) -> str:
    """Return a bus id in one spelling: lower case, four digits of domain, the function with it."""
    found = _BUS_ID.fullmatch((text or "").strip().lower())
    if found is None:
        if strict:
            raise ParseError.bad_field("The busid of a <pci>", text or "", "a bus id such as 0000:3b:00.0")
        return text or ""
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{int(function or '0', 16):x}"
