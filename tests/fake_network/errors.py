"""Errors of a fake network: the code under test is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class ChannelUseError(AssertionError):
    """Code under test uses a channel as no engine allows."""

    @classmethod
    def rank_did(cls, rank: int, what: str) -> Self:
        """A rank broke a rule of channels, which is a defect of the code that it runs."""
        return cls(f"Rank {rank} {what}")

    @classmethod
    def too_long(cls, rank: int, peer: int, tag: int, length: int, room: int) -> Self:
        """A message does not fit: real engines end the process then."""
        return cls(
            f"Rank {rank} receives {length} bytes from rank {peer} with tag {tag} in a buffer of {room}, which would "
            "end its process. Receive into a buffer that is at least as long as the message."
        )


class HangError(RuntimeError):
    """No rank of a fake network can go on, and nothing is on its way."""

    @classmethod
    def of_ranks(cls, now: float, waits: Mapping[int, str]) -> Self:
        """Some ranks wait for each other, or for what never comes."""
        who = "; ".join(f"rank {rank} {doing}" for rank, doing in waits.items())
        return cls(f"No rank can go on after {now:g} s, and nothing is on its way: {who}.")
