"""A word about each machine known by name, for lists of them and for completion."""

from __future__ import annotations

from treefold.cli.tables import Table
from treefold.topology import known_names, known_topology

WORDS = {
    "dgx1_p100": "NVIDIA DGX-1 with P100: a cube mesh of NVLinks",
    "dgx1_v100": "NVIDIA DGX-1 with V100: a cube mesh of NVLinks, some of them double",
    "p3_8xlarge": "Amazon EC2 p3.8xlarge: V100, NVLinks between all, some of them double",
    "dgx2": "NVIDIA DGX-2: V100 on an NVSwitch",
    "dgx_a100": "NVIDIA DGX A100: A100 on an NVSwitch",
    "dgx_h100": "NVIDIA DGX H100: H100 on an NVSwitch",
    "dgx_b200": "NVIDIA DGX B200: B200 on an NVSwitch",
    "mi250": "AMD: 8 MI250 of two devices each, xGMI links between some",
    "mi300x": "AMD: MI300X, xGMI links between all, as wide as copies reach",
    "mi300x_raw": "AMD: MI300X, xGMI links between all, as wide as the data sheet says",
    "pcie3_8gpu": "two Intel sockets, PCIe 3, no NVLinks",
    "a100_pcie_8gpu": "two AMD sockets, PCIe 4, A100 in pairs with NVLink bridges",
    "ring:8": "so many devices in a ring; ring:8:50 with 50 GB/s a link",
    "line:8": "so many devices in a line; line:8:50 with 50 GB/s a link",
    "mesh:8": "so many devices, each with a link to each; mesh:8:50 with 50 GB/s a link",
    "2x8_a100": "two hosts, each a DGX A100 with a NIC per GPU; any number of hosts",
    "2x8_h100": "two hosts, each a DGX H100 with a NIC per GPU; any number of hosts",
    "4x8_h100": "four such hosts",
    "8x8_h100": "eight such hosts",
    "2x16_mi250": "two hosts of 8 MI250 with NICs; any number of hosts",
}


def list_known() -> Table:
    """Return the machines known by name, with how many devices they have and what they are."""
    rows = [[name, str(len(known_topology(name).devices)), WORDS[name]] for name in known_names()]
    return Table(["machine", "devices", "what it is"], rows, words=(0, 2))
