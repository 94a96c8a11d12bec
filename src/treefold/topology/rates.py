"""The bandwidth and latency of links without measurements: one table, with its sources.

Units are GB/s per direction and microseconds. The bandwidths are the effective ones that NCCL and RCCL plan with
(``topo.h`` of each), below the raw figures of a data sheet. The latencies were measured by others. Both are priors,
until they are fitted to measured copies.
"""

from __future__ import annotations

import re

# Per NVLink, by CUDA compute capability: in NCCL (topo.h), and on the data sheets.
_NVLINK = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
_NVLINK_RAW = ((100, 50.0), (70, 25.0), (60, 20.0))
NVLINK_GA10X = 12.0
NVLINK_UNKNOWN = 18.0  # The slowest in data centres.
NVLINK_RAW_SHARE = 0.8  # 20 of 25, 40 of 50: NCCL's figure over that of the data sheet.

# Per xGMI link (RCCL topo.h).
XGMI_VEGA, XGMI_MI200, XGMI_MI300 = 24.0, 36.0, 48.0
XGMI_RAW_SHARE = 0.72  # 36 of 50; 48 of 64 is more

# Per lane in units of 100 Mb/s, by GT/s (NCCL topo.cc); gen 3 x16 is then 12 GB/s.
_PCIE_RATES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
PCIE_GEN3_X16 = 12.0
PCIE_RAW_GEN3_X16 = 15.753846  # hwloc writes raw figures
INTEL_P2P_SHARE = 5 / 6  # peer traffic through an Intel CPU travels in small packets (NCCL topo.h)

# Between two sockets (NCCL topo.h). Intel by the first model number of each line.
_INTEL_MODELS = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
_INTEL_OLDEST = 6.0
BETWEEN_AMD, BETWEEN_POWER9, BETWEEN_ARM = 16.0, 32.0, 6.0
BETWEEN_UNKNOWN = 6.0  # the least of all

# Microseconds per link; a route through switches or hosts pays for each. Other links add no latency.
ALPHA_NVLINK_US, ALPHA_NVSWITCH_PORT_US = 0.7, 0.35  # 0.3 to 0.7 measured on V100 (TACCL, TE-CCL); xGMI as NVLink
ALPHA_PCIE_US = 6.0  # a device's slot; 11 to 13 from device to device through a host (p2pBandwidthLatencyTest)
ALPHA_BETWEEN_SOCKETS_US = 1.0
ALPHA_NIC_US, ALPHA_NET_US = 0.3, 1.0  # 1.7 to 2.6 between hosts over InfiniBand (TACCL)

_NUMBER = re.compile(r"\d{1,4}(?:\.\d{1,6})?")


def nvlink_gb_per_s(capability: int | None) -> float:
    """Return GB/s of one NVLink of a GPU of this compute capability (90 for 9.0); None stands for an unknown GPU."""
    if capability is None:
        return NVLINK_UNKNOWN
    return next((rate for since, rate in _NVLINK if capability >= since), NVLINK_UNKNOWN)


def nvlink_raw_gb_per_s(capability: int) -> float:
    """Return GB/s of one NVLink of a data-centre GPU on its data sheet, by compute capability."""
    return next(raw for since, raw in _NVLINK_RAW if capability >= since)


def xgmi_gb_per_s(architecture: str) -> float:
    """Return GB/s of one xGMI link, by architecture: ``"gfx942"``, ``"942"``, and RCCL's 910 for gfx90a."""
    name = architecture.lower().removeprefix("gfx")
    if name.startswith(("94", "95")):
        return XGMI_MI300
    return XGMI_MI200 if name.startswith(("90a", "910")) else XGMI_VEGA


def pcie_gb_per_s(speed: str, width: int) -> float:
    """Return GB/s of a PCIe link of ``speed`` (such as ``"16 GT/s"``; gen 3 if unknown) and ``width`` (16 lanes if 0).

    >>> pcie_gb_per_s("8 GT/s", 16), pcie_gb_per_s("32 GT/s PCIe/s", 16), pcie_gb_per_s("", 0)
    (12.0, 48.0, 12.0)
    """
    found = _NUMBER.search(speed)
    rate = _PCIE_RATES.get(float(found[0]), 60) if found else 60
    return (width or 16) * rate / 80


def between_sockets_gb_per_s(architecture: str, vendor: str, family: int, model: int) -> float:
    """Return GB/s between two sockets by what the CPU reports of itself; the least of all for an unknown CPU."""
    machine = architecture.lower()
    if machine.startswith(("ppc", "power")):
        return BETWEEN_POWER9
    if machine.startswith(("arm", "aarch")):
        return BETWEEN_ARM
    if vendor == "AuthenticAMD":
        return BETWEEN_AMD
    if vendor != "GenuineIntel":
        return BETWEEN_UNKNOWN
    return next((rate for since, rate in _INTEL_MODELS if family == 6 and model >= since), _INTEL_OLDEST)  # noqa: PLR2004


def net_gb_per_s(megabits_per_s: float) -> float:
    """Return GB/s of a NIC (NCCL topo.cc: speed / 8)."""
    return megabits_per_s / 8000
