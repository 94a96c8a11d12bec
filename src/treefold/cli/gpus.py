"""The GPUs that drivers report, and the platform of the installed PyTorch: read from files, without imports."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from treefold.files import readable_text


class Gpus(NamedTuple):
    """The GPUs of one vendor: their models, if the driver tells them, and the driver."""

    vendor: str
    models: tuple[str, ...]
    driver: str


def find_gpus(
    *,
    proc: Path = Path("/proc/driver/nvidia"),
    kfd: Path = Path("/sys/class/kfd/kfd"),
    wsl: Path = Path("/dev/dxg"),
) -> Gpus | None:
    """Return the GPUs of this machine; None if no driver of NVIDIA's or AMD's reports any.

    Args:
        proc: where NVIDIA's driver for Linux shows its GPUs.
        kfd: where AMD's shows its own, among the processors.
        wsl: what is there under WSL, where NVIDIA's driver shows no files, as on Windows.

    """
    shown = map(readable_text, sorted(proc.glob("gpus/*/information")))
    models = [re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in shown]
    if models:
        version = re.search(r"\b\d+\.\d+(\.\d+)?\b", readable_text(proc / "version"))
        names = tuple(model[1] if model else "of an unknown model" for model in models)
        return Gpus("NVIDIA", names, version[0] if version else "")
    if shutil.which("nvidia-smi") and (os.name == "nt" or wsl.exists()):
        return Gpus("NVIDIA", (), "")
    amd = [path for path in kfd.glob("topology/nodes/*/gpu_id") if readable_text(path) not in {"", "0"}]
    return Gpus("AMD", ("AMD",) * len(amd), "") if amd else None


def torch_build() -> str:
    """Return the platform of the installed PyTorch, such as "CUDA 12.8" or "CPU"; empty if that cannot be read."""
    spec = importlib.util.find_spec("torch")
    text = readable_text(Path(spec.origin).parent / "version.py") if spec and spec.origin else ""
    built = {name: re.search(rf"^{name}\b[^=\n]*= '([^']+)'", text, re.MULTILINE) for name in ("cuda", "hip")}
    return next(
        (f"{label} {found[1]}" for label, found in zip(("CUDA", "ROCm"), built.values(), strict=True) if found),
        "CPU" if text else "",
    )
