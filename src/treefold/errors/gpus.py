"""Errors of plans that run on GPUs."""

from __future__ import annotations

from typing import Self

from treefold.errors.base import TreefoldError


class GpuError(TreefoldError, RuntimeError):
    """A reduction on GPUs that cannot start or did not end."""

    @classmethod
    def first_in_capture(cls) -> Self:
        return cls(
            "This reduction would have to copy a table of addresses to the GPU while a CUDA graph is being captured. "
            "Reduce the same tensors in place once before the capture, as for every warm-up; then capture it."
        )

    @classmethod
    def several_in_capture(cls, devices: tuple[str, ...]) -> Self:
        return cls(
            f"A CUDA graph of one GPU is being captured, and this plan works on {', '.join(devices)}. "
            f"Capture reductions between replicas on one GPU; call others outside the capture."
        )

    @classmethod
    def nccl_failed(cls, devices: tuple[str, ...], problem: str) -> Self:
        return cls(
            f"NCCL could not all-reduce between {', '.join(devices)} ({problem}). Set NCCL_DEBUG=INFO to see why; "
            "HierarchicalCopyAllReduce does without NCCL."
        )

    @classmethod
    def nccl_late(cls, devices: tuple[str, ...], seconds: float) -> Self:
        return cls(
            f"NCCL is not done after {seconds:g} s between {', '.join(devices)}, and what these GPUs were given next "
            "waits for it. End this process; set NCCL_DEBUG=INFO to see what it waited for."
        )
