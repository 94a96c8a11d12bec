"""What a planning command says on a machine without GPUs: what there is, and which machines it can do."""

from __future__ import annotations

from treefold.cli.doctor.gpus import find_gpus
from treefold.cli.extras import has_module
from treefold.devices import device_type
from treefold.execution.host import describe_machine
from treefold.topology import Topology


def without_gpus(topology: Topology) -> bool:
    """Tell whether none of a machine's devices is a GPU."""
    return all(device_type(device) == "cpu" for device in topology.devices)


def offer_known(command: str) -> tuple[str, ...]:
    """Return lines for the end of what a command prints: why there is no GPU, and a known machine to try."""
    facts = describe_machine()
    gpus = find_gpus()
    seen = "no GPU"
    if gpus is not None:
        seen = f"{gpus.vendor} GPUs that treefold does not see"
        if gpus.vendor == "NVIDIA" and not has_module("pynvml"):
            seen += ' without nvidia-ml-py: pip install "treefold[nvml]"'
    return (
        "",
        f"here: {facts['processor']}, {facts['cores']} cores, {seen}",
        f"try:  treefold {command} dgx1_v100, or another machine of: treefold topology --list",
    )
