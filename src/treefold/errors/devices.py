"""Devices that do not parse, do not exist, or are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import listed, short


class DeviceError(TreefoldError, ValueError):
    """A device that does not parse, does not exist, or is elsewhere."""

    @classmethod
    def unparsable(cls, name: object) -> Self:
        return cls(
            f'{short(name)} is no device name. Write "cpu:0", "gpu:1", "cuda:1", "/device:GPU:1" or '
            f'"/job:localhost/replica:0/task:0/device:GPU:1".'
        )

    @classmethod
    def op_for_device(cls, name: str) -> Self:
        """A reduce op's name stands where a device is meant."""
        return cls(
            f"{name!r} names a reduce op, and a device is meant. Write the op as op={name!r}, or first where an ops "
            f'object is called, and here a device such as "cpu:0".'
        )

    @classmethod
    def needs_group(cls, name: str, rank: int, device: str) -> Self:
        return cls(
            f"{short(name)} is a device of rank {rank}, and ranks need a group of processes, which this call does not "
            f'have. Names without a rank mean devices of this process: write "{device}" for its own.'
        )

    @classmethod
    def not_of_group(cls, name: str, rank: int | None, size: int) -> Self:
        """A destination without a rank beside others that have one, or of a rank that there is not."""
        problem = "names no rank" if rank is None else f"is a device of rank {rank}"
        return cls(
            f"{short(name)} {problem}, in a group of ranks 0 to {size - 1}. In one call, destinations all name ranks "
            "of the group, or none does, which means each rank's own."
        )

    @classmethod
    def not_on_host(cls, where: str) -> Self:
        """An array that the ranks of a group cannot share, because it is not in host memory."""
        return cls(
            f"The value{where} is not in host memory, where the ranks of a group meet. Copy it to the CPU first."
        )

    @classmethod
    def not_in_backend(cls, device: str) -> Self:
        """A tensor that PyTorch's process groups of this backend cannot share."""
        return cls(
            f'PyTorch\'s backend "treefold" got a tensor on {device}. It takes tensors on the CPU; '
            'copy it there, or name a backend for GPUs, too: init_process_group("cpu:treefold,cuda:nccl").'
        )

    @classmethod
    def missing(cls, device: str, framework: str, *, there: str, why: str, similar: str | None) -> Self:
        """A framework has no such device. ``there``: those that it has; ``why``: a sentence or nothing."""
        hints = [f"{why} "] * bool(why) + [f"Did you mean {similar}? "] * bool(similar)
        return cls(
            f"{framework} has no device {device} here. {''.join(hints)}It has {there}. Name one of these; nothing is "
            "placed elsewhere for you."
        )

    @classmethod
    def unreported(cls, device: str, loaded: Sequence[str], why: Sequence[str], similar: str | None) -> Self:
        """No framework has such a device. ``why``: what each has to say about that, if anything."""
        hints = [f"{reason} " for reason in why if reason] + [f"Did you mean {similar}? "] * bool(similar)
        return cls(
            f"No loaded framework reports a device {device}; loaded: {', '.join(loaded)}. {''.join(hints)}"
            f"Import the framework whose device it is, or name one that exists."
        )

    @classmethod
    def contradicted(cls, replica: int, said: str, found: str, where: str) -> Self:
        return cls(
            f"Replica {replica} is said to be on {said}, but its array{where} is on {found}. "
            f"Leave devices out to take each array's own, or move the array first."
        )

    @classmethod
    def several(cls, replica: int, devices: Iterable[str], where: str) -> Self:
        return cls(
            f"Replica {replica} has arrays on {' and '.join(devices)}{where}. The arrays of one replica must be on one "
            f"device; move them together."
        )

    @classmethod
    def no_component(cls, device: str, devices: Sequence[str]) -> Self:
        return cls(f"There is no component on {device}; there are components on {listed(devices, quote=False)}.")
