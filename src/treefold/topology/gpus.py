"""GPUs by their PCI ids: those that have links beside PCIe, whether a file shows the links or not."""

from __future__ import annotations

from dataclasses import dataclass

_NVIDIA, _AMD = "10de", "1002"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU with links beside PCIe.

    Attributes:
        kind: ``"nvlink"`` or ``"xgmi"``.
        capability: The CUDA compute capability (90 for 9.0), or 0 for other makers.
        links: NVLinks of one GPU, or 0 for other makers.

    """

    name: str
    kind: str
    capability: int = 0
    links: int = 0


@dataclass(frozen=True, slots=True)
class MissingLinks:
    """Links that GPUs have beside PCIe, which the description of their machine lacks.

    Attributes:
        kind: ``"nvlink"`` or ``"xgmi"``.
        gpus: The models that have such links for certain. Empty if the description can show no GPU's links and does not
            tell the models.

    >>> print(MissingLinks("nvlink", ("H100 SXM",)))
    NVLinks are missing from this file: its GPUs are H100 SXM
    """

    kind: str
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the sentence for headlines, without a full stop."""
        why = f": its GPUs are {' and '.join(self.gpus)}" if self.gpus else ", if its GPUs have any"
        return f"{LINK_NOUNS[self.kind]} are missing from this file{why}"


LINK_NOUNS = {"nvlink": "NVLinks", "xgmi": "xGMI links"}

# PCI device ids after pci.ids; NVLinks per GPU after NVIDIA's data sheets. A800 and H800 have 8 where A100 and H100
# have 12 and 18. A module on a board of its maker is called SXM in all generations.
_NVIDIA_MODELS = {
    GpuModel("P100 SXM", "nvlink", 60, 4): "15f9",
    GpuModel("V100 SXM", "nvlink", 70, 6): "1db0 1db1 1db5 1db8 1dbd 1df5",
    GpuModel("A100 SXM", "nvlink", 80, 12): "20b0 20b2 20b3",
    GpuModel("A800 SXM", "nvlink", 80, 8): "20bd 20f3",
    GpuModel("H100 SXM", "nvlink", 90, 18): "2330 2336 2337 2338 2339",
    GpuModel("H800 SXM", "nvlink", 90, 8): "2324",
    GpuModel("H20", "nvlink", 90, 18): "2329 232c",
    GpuModel("H200 SXM", "nvlink", 90, 18): "2335",
    GpuModel("B200", "nvlink", 100, 18): "2901 2909",
    GpuModel("GB200", "nvlink", 100, 18): "2941",
    GpuModel("B300", "nvlink", 103, 18): "3182",
    GpuModel("GB300", "nvlink", 103, 18): "31c2 31c3",
}
_AMD_MODELS = {
    GpuModel("MI250", "xgmi"): "7408 740c",
    GpuModel("MI300A", "xgmi"): "74a0",
    GpuModel("MI300X", "xgmi"): "74a1 74a9 74b5 74bd",
    GpuModel("MI308X", "xgmi"): "74a2",
    GpuModel("MI325X", "xgmi"): "74a5 74b9",
    GpuModel("MI350X", "xgmi"): "75a0",
    GpuModel("MI355X", "xgmi"): "75a3",
}
_BY_ID = {
    (vendor, device): model
    for vendor, models in ((_NVIDIA, _NVIDIA_MODELS), (_AMD, _AMD_MODELS))
    for model, devices in models.items()
    for device in devices.split()
}
_BY_NAME = {model.name: model for model in (*_NVIDIA_MODELS, *_AMD_MODELS)}
_CAPABILITIES_WITH_SXM = {model.capability for model in _NVIDIA_MODELS}


def gpu_model(vendor: str, device: str) -> GpuModel | None:
    """Return the model with these PCI ids, such as ``"0x10de"`` and ``"0x2330"``; None if it has no links beside PCIe.

    >>> gpu_model("10de", "2330").name
    'H100 SXM'
    """
    return _BY_ID.get((vendor.lower().removeprefix("0x"), device.lower().removeprefix("0x")))


def model_named(name: str) -> GpuModel | None:
    """Return the model of this name, as ``MissingLinks.gpus`` has it; None if the name is not in this module."""
    return _BY_NAME.get(name)


def has_sxm_parts(capability: int) -> bool:
    """Tell whether some GPUs of this CUDA compute capability have NVLinks on the board that carries them."""
    return capability in _CAPABILITIES_WITH_SXM


def likely_kind(vendor: str, pci_class: str) -> str:
    """Return the likely kind of links beside PCIe for GPUs of this maker and PCI class, or an empty string.

    AMD's compute GPUs are accelerators or display controllers of no named kind (0x12, 0x0380); NVIDIA's are 0x0302.
    """
    maker = vendor.lower().removeprefix("0x")
    if maker == _AMD or (not maker and pci_class.startswith(("0x12", "0x0380"))):
        return "xgmi"
    return "nvlink" if maker in {"", _NVIDIA} else ""
