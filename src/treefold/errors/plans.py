"""Plans that do not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, listed, short, some


class PlanError(TreefoldError, ValueError):
    """A movement that fails its proof, a plan that cannot run, or text that is no plan."""

    @classmethod
    def not_a_plan(cls, value: object) -> Self:
        return cls(f"An executor runs a Plan and got {short(value)}. Make one with ops.plan or treefold.plan.Plan.")

    @classmethod
    def unreadable(cls, problem: str) -> Self:
        return cls(f"This text is no plan: {problem}. Write plans with plan.to_json().")

    @classmethod
    def in_head(cls, error: PlanError) -> Self:
        """Return the error of a plan that is wrong before its first step."""
        return cls(f"The plan does not hold: {error}")

    @classmethod
    def in_step(cls, number: int, error: PlanError) -> Self:
        """Return the error of a plan that is wrong in one of its steps."""
        return cls(f"The plan does not hold: in step {number}, {error}")

    @classmethod
    def malformed(cls, problem: str) -> Self:
        """Name a fault of form."""
        return cls(f"{problem}.")

    @classmethod
    def read_before_written(cls, buffer: str, start: int, stop: int) -> Self:
        return cls(f"elements {start}:{stop} of {buffer} are read before they are written.")

    @classmethod
    def overwritten(cls, buffer: str, start: int, stop: int) -> Self:
        return cls(f"elements {start}:{stop} of {buffer} are overwritten before they are read.")

    @classmethod
    def conflict(cls, buffer: str, start: int, stop: int) -> Self:
        return cls(f"elements {start}:{stop} of {buffer} are written while another action of the step uses them.")

    @classmethod
    def crossed(cls, leaf: int, offset: int) -> Self:
        return cls(f"contributions to different elements are combined at element {offset} of leaf {leaf}.")

    @classmethod
    def twice(cls, replicas: Sequence[int]) -> Self:
        return cls(f"the contribution of replica {listed([str(r) for r in replicas], quote=False)} is added twice.")

    @classmethod
    def out_of_order(cls, replicas: Sequence[int]) -> Self:
        return cls(f"contributions starting at replicas {list(replicas)} are not combined in replica order.")

    @classmethod
    def missing(cls, leaf: int, replicas: Sequence[int]) -> Self:
        numbers = listed([str(replica) for replica in replicas], quote=False)
        return cls(f"the result of leaf {leaf} is finished without replica {numbers}.")

    @classmethod
    def incomplete(cls, buffer: str, length: int) -> Self:
        return cls(
            f"The plan does not hold: {buffer} does not end up with its {counted(length, 'element')} of the result."
        )

    @classmethod
    def differing(cls, leaf: int) -> Self:
        return cls(f"The plan does not hold: the destinations of leaf {leaf} get results of different associations.")

    @classmethod
    def unused(cls, buffer: str, start: int, stop: int) -> Self:
        return cls(f"The plan does not hold: elements {start}:{stop} of {buffer} are computed and never used.")

    @classmethod
    def hosts(cls, hosts: Sequence[Sequence[int]]) -> Self:
        ranks = short([rank for ranks in hosts for rank in ranks])
        return cls(
            f"{len(hosts)} hosts have the ranks {ranks}. Every host has some, and every rank from 0 on is on one."
        )

    @classmethod
    def shares(cls, hosts: int, shares: Sequence[object]) -> Self:
        words = listed([str(share) for share in shares], quote=False) if shares else "none"
        return cls(
            f"The shares of {hosts} hosts are {words}. Each host needs one that is not negative, not all of them 0."
        )

    @classmethod
    def not_there(cls, device: str, devices: Sequence[str]) -> Self:
        return cls(f"A result is to go to {device}, and ranks have theirs on {some(devices)}.")

    @classmethod
    def of_no_rank(cls, device: str, ranks: int) -> Self:
        return cls(f"{device} is on none of the {ranks} ranks. Name it by its rank, as 0/cpu:0.")

    @classmethod
    def across_ranks(cls, rank: int) -> Self:
        return cls(f"Rank {rank} is to fold or concatenate what other ranks hold: copy it to one device of it first.")
