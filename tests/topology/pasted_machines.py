"""Machines as their own tools print them, written out after the tools' documentation."""

DGX1_V100 = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\tSYS\t0-19
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\tSYS\t0-19
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\tSYS\t0-19
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\tSYS\t0-19
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\tPIX\t20-39
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\tPIX\t20-39
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\tPHB\t20-39
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\tPHB\t20-39
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tSYS\tSYS\tPIX\tPIX\tPHB\tPHB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

FOUR_V100 = """\
$ nvidia-smi topo -m
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV1     NV1     NV2     0-31            N/A
GPU1    NV1      X      NV2     NV1     0-31            N/A
GPU2    NV1     NV2      X      NV2     0-31            N/A
GPU3    NV2     NV1     NV2      X      0-31            N/A
"""

FOUR_H100_ON_NVSWITCH = (
    "\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tPXB\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tNODE\t0-55\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tSYS\t56-111\t1\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tSYS\t56-111\t1\t\tN/A\n"
    "NIC0\tPXB\tNODE\tSYS\tSYS\t X \t\t\t\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
)

EIGHT_ON_PCIE = """\
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  CPU Affinity
GPU0     X    PIX   PHB   PHB   SOC   SOC   SOC   SOC   0-13,28-41
GPU1    PIX    X    PHB   PHB   SOC   SOC   SOC   SOC   0-13,28-41
GPU2    PHB   PHB    X    PIX   SOC   SOC   SOC   SOC   0-13,28-41
GPU3    PHB   PHB   PIX    X    SOC   SOC   SOC   SOC   0-13,28-41
GPU4    SOC   SOC   SOC   SOC    X    PIX   PXB   PXB   14-27,42-55
GPU5    SOC   SOC   SOC   SOC   PIX    X    PXB   PXB   14-27,42-55
GPU6    SOC   SOC   SOC   SOC   PXB   PXB    X    PIX   14-27,42-55
GPU7    SOC   SOC   SOC   SOC   PXB   PXB   PIX    X    14-27,42-55
"""

FOUR_A100_IN_PAIRS = """\
> \tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
> GPU0\t X \tNV12\tSYS\tSYS\t0-31\t0\t\tN/A
> GPU1\tNV12\t X \tSYS\tSYS\t0-31\t0\t\tN/A
> GPU2\tSYS\tSYS\t X \tNV12\t32-63\t1\t\tN/A
> GPU3\tSYS\tSYS\tNV12\t X \t32-63\t1\t\tN/A
"""

TWO_RTX_3090 = """\
GPU0GPU1CPU AffinityNUMA Affinity
GPU0 X NV4 0-23 0
GPU1 NV4 X 0-23 0
"""

THREE_SOCKETS = """\
      GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity
GPU0  X    NODE SYS  SYS  0-7          0
GPU1  NODE X    SYS  SYS  0-7          0
GPU2  SYS  SYS  X    SYS  8-15         1
GPU3  SYS  SYS  SYS  X    16-23        2
"""

ROCM_SMI_XGMI = """\
========================= ROCm System Management Interface =========================
============================== Weight between two GPUs =============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            15           30           15
GPU1   15           0            15           30
GPU2   30           15           0            15
GPU3   15           30           15           0

=============================== Hops between two GPUs ==============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            1            1            1
GPU1   1            0            1            1
GPU2   1            1            0            1
GPU3   1            1            1            0

============================= Link Type between two GPUs ===========================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         XGMI         XGMI
GPU1   XGMI         0            XGMI         XGMI
GPU2   XGMI         XGMI         0            XGMI
GPU3   XGMI         XGMI         XGMI         0

==================================== Numa Nodes ====================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Affinity: 0
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[2]\t\t: (Topology) Numa Affinity: 1
GPU[3]\t\t: (Topology) Numa Node: 1
GPU[3]\t\t: (Topology) Numa Affinity: 1
============================== End of ROCm SMI Log =================================
"""

ROCM_SMI_PCIE = """\
====================== Weight between two GPUs ======================
       GPU0         GPU1         GPU2
GPU0   0            40           72
GPU1   40           0            72
GPU2   72           72           0

======================= Hops between two GPUs =======================
       GPU0         GPU1         GPU2
GPU0   0            2            3
GPU1   2            0            3
GPU2   3            3            0

===================== Link Type between two GPUs ====================
       GPU0         GPU1         GPU2
GPU0   0            PCIE         PCIE
GPU1   PCIE         0            PCIE
GPU2   PCIE         PCIE         0
"""

AMD_SMI = """\
ACCESS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 ENABLED      ENABLED      ENABLED
0000:22:00.0 ENABLED      ENABLED      ENABLED
0000:38:00.0 ENABLED      ENABLED      ENABLED

WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 0            15           15
0000:22:00.0 15           0            15
0000:38:00.0 15           15           0

HOPS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 0            1            1
0000:22:00.0 1            0            1
0000:38:00.0 1            1            0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 SELF         XGMI         XGMI
0000:22:00.0 XGMI         SELF         XGMI
0000:38:00.0 XGMI         XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0
0000:0c:00.0 N/A          50000-200000 50000-50000
0000:22:00.0 50000-200000 N/A          N/A
0000:38:00.0 50000-50000  N/A          N/A
"""

_V100_LINKS = {
    0: {1: 1, 2: 1, 3: 2, 4: 2},
    1: {0: 1, 2: 2, 3: 1, 5: 2},
    2: {0: 1, 1: 2, 3: 2, 6: 1},
    3: {0: 2, 1: 1, 2: 2, 7: 1},
    4: {5: 1, 6: 1, 7: 2, 0: 2},
    5: {4: 1, 6: 2, 7: 1, 1: 2},
    6: {4: 1, 5: 2, 7: 2, 2: 1},
    7: {4: 2, 5: 1, 6: 2, 3: 1},
}


def _v100(number):
    links = "".join(
        f'<nvlink target="0000:{16 + peer:02x}:00.0" count="{count}" tclass="0x030200"/>'
        for peer, count in _V100_LINKS[number].items()
    )
    return (
        f'<pci busid="0000:{16 + number:02X}:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">'
        f'<gpu dev="{number}" sm="70" rank="{number}" gdr="1">{links}</gpu></pci>'
    )


def _bridge(bus, inside):
    return f'<pci busid="0000:{bus}:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">{inside}</pci>\n'


def _cpu(numa, inside, vendor="GenuineIntel", family=6, model=79):
    return (
        f'<cpu numaid="{numa}" affinity="ff" arch="x86_64" vendor="{vendor}" familyid="{family}" modelid="{model}">\n'
        f"{inside}</cpu>\n"
    )


_NIC = (
    '<pci busid="0000:3a:00.0" class="0x020700" link_speed="8 GT/s" link_width="16">'
    '<nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>'
)

NCCL_DGX1_V100 = (
    "<!-- a comment before the root -->\n"
    '<system version="1">\n'
    + _cpu(0, _bridge("08", _v100(0) + _v100(1) + _NIC) + _bridge("09", _v100(2) + _v100(3)))
    + _cpu(1, _bridge("0a", _v100(4) + _v100(5)) + _bridge("0b", _v100(6) + _v100(7)))
    + "</system>\n"
)

NCCL_H100_PAIR = """\
<system version="1">
  <cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="17">
    <pci busid="0000:18:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:1b:00.0" class="0x030200" link_speed="32 GT/s PCIe/s" link_width="16">
        <gpu dev="1" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:08:00.0" count="9" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:1c:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
          <net name="mlx5_1" dev="1" speed="100000" port="2" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <pci busid="0000:2b:00.0" class="0x030200" link_speed="" link_width="0">
      <gpu dev="0" sm="90" rank="1" gdr="1">
        <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
        <nvlink target="0000:2b:00.0" count="2" tclass="0x030200"/>
        <nvlink target="0000:ee:00.0" count="2" tclass="0x030200"/>
      </gpu>
    </pci>
    <nic>
      <net name="eth0" dev="2" speed="200000000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"""

RCCL_MI300X = """\
<system version="2">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:05:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="304" gcn="gfx942" arch="38911" rank="0" gdr="1">
        <xgmi target="0000:26:00.0" count="1" tclass="0x120000"/>
        <xgmi target="0000:46:00.0" count="2" tclass="0x120000"/>
      </gpu>
    </pci>
    <pci busid="0000:26:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="304" gcn="942" arch="38911" rank="1" gdr="1">
        <xgmi target="0000:05:00.0" count="1" tclass="0x120000"/>
      </gpu>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:46:00.0" class="0x038000" link_speed="16 GT/s" link_width="8">
      <gpu dev="2" sm="104" gcn="910" arch="38911" rank="2" gdr="1">
        <xgmi target="0000:05:00.0" count="2" tclass="0x038000"/>
        <xgmi target="0000:26:00.0" count="1" tclass="0x038000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""

NCCL_WITHOUT_GPU_ELEMENTS = """\
<system version="1">
  <cpu numaid="1" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:40:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:51:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0000:41:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0000:48:00.0" class="0x020000" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""


def hwloc_device(gp, bus, pci_type, speed, inside=""):
    """Return a PCI device as hwloc writes it."""
    return (
        f'<object type="PCIDev" gp_index="{gp}" pci_busid="{bus}" pci_type="{pci_type}" pci_link_speed="{speed}">'
        f"{inside}</object>"
    )


def _hwloc_package(number, vendor, model, inside):
    return (
        f'<object type="Package" os_index="{number}"><info name="CPUVendor" value="{vendor}"/>'
        f'<info name="CPUFamilyNumber" value="6"/><info name="CPUModelNumber" value="{model}"/>'
        f'<object type="NUMANode" os_index="{number}" cpuset="0x0000000{1 << number}"/>{inside}</object>'
    )


def _hwloc(inside, matrix=""):
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
        f'<topology version="3.0"><object type="Machine" cpuset="0x3">{inside}</object>{matrix}</topology>'
    )


_GPU_TYPE, _BRIDGE_OPEN = "0302 [10de:1db8] [10de:131d] a1 00", '<object type="Bridge" bridge_type='

HWLOC_NVLINKS = _hwloc(
    _hwloc_package(
        0,
        "GenuineIntel",
        85,
        f'{_BRIDGE_OPEN}"0-1" gp_index="7">'
        f'{_BRIDGE_OPEN}"1-1" gp_index="8" pci_busid="0000:30:00.0" pci_link_speed="7.876923">'
        + hwloc_device(
            10,
            "0000:34:00.0",
            _GPU_TYPE,
            "15.753846",
            '<object type="OSDev" gp_index="80" name="nvml1" osdev_type="12"/>',
        )
        + hwloc_device(12, "0000:36:00.0", "0680 [10de:1ac2] [10de:0000] a1 00", "1.000000")
        + hwloc_device(13, "0000:37:00.0", "0300 [1a03:2000] [1a03:2000] 41 00", "0.000000")
        + "</object></object>",
    )
    + _hwloc_package(
        1,
        "GenuineIntel",
        85,
        f'{_BRIDGE_OPEN}"0-1" gp_index="9">'
        + hwloc_device(
            11,
            "0000:b7:00.0",
            _GPU_TYPE,
            "0.000000",
            '<object type="OSDev" gp_index="81" name="nvml0" osdev_type="12"/>',
        )
        + hwloc_device(
            14,
            "0000:c1:00.0",
            "0207 [15b3:1017] [15b3:0006] 00 00",
            "15.753846",
            '<object type="OSDev" gp_index="90" name="mlx5_0" osdev_type="48"/>',
        )
        + "</object>",
    ),
    '<distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth">'
    '<indexes length="20">OSDev:80 OSDev:81 </indexes><indexes length="9">PCIDev:12 </indexes>'
    '<u64values length="9">0 50000 100000 50000 0 25000 100000 </u64values>'
    '<u64values length="9">25000 0 </u64values></distances2hetero>',
)


def _power_socket(number):
    gpus = "".join(
        f'{_BRIDGE_OPEN}"0-1" gp_index="{20 + gpu}">'
        + hwloc_device(
            30 + gpu,
            f"{gpu:04x}:01:00.0",
            "0302 [10de:15f9] [10de:116b] a1 00",
            "15.753846",
            f'<object type="OSDev" gp_index="{40 + gpu}" name="nvml{gpu}"/>',
        )
        + "</object>"
        for gpu in (2 * number, 2 * number + 1)
    )
    return f'<object type="Package" gp_index="{3 + number}"><info name="Architecture" value="ppc64le"/>{gpus}</object>'


HWLOC_POWER8 = _hwloc(
    _power_socket(0) + _power_socket(1),
    '<distances2hetero nbobjs="6" kind="25" name="NVLinkBandwidth">'
    '<indexes length="60">OSDev:40 OSDev:41 OSDev:42 OSDev:43 Package:3 Package:4 </indexes>'
    '<u64values length="50">1000000 40000 0 0 40000 0 40000 1000000 0 0 40000 0 </u64values>'
    '<u64values length="50">0 0 1000000 40000 0 40000 0 0 40000 1000000 0 40000 </u64values>'
    '<u64values length="50">40000 40000 0 0 1000000 0 0 0 40000 40000 0 1000000 </u64values></distances2hetero>',
)

HWLOC_NUMA = _hwloc(
    _hwloc_package(0, "AuthenticAMD", 1, "")
    + _hwloc_package(1, "AuthenticAMD", 1, '<object type="NUMANode" os_index="5" cpuset="0x00000002"/>')
)

PLAIN_JSON = """\
{"name": "two and a switch", "devices": ["gpu:0", "cuda:1"], "switches": ["sw0"],
 "links": [{"between": ["gpu:0", "sw0"], "gb_per_s": 25.0, "alpha_us": 1.0},
           {"between": ["gpu:1", "sw0"], "gb_per_s": [25, 12.5]},
           {"between": ["gpu:1", "sw0"], "gb_per_s": 0.1},
           {"between": ["gpu:0", "gpu:1"], "gb_per_s": [null, 3], "kind": "pcie"}]}
"""

MEASURED_MATRIX = "[[550.0, 10.0, 11.0], [10.5, 560.0, 11.5], [11.0, 12.0, 555.5]]"

ALL = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, str) and name[0] != "_"}
