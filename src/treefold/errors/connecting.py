"""Errors before there is a group: ranks do not find each other, or do not fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from treefold.errors.base import TreefoldError
from treefold.errors.groups import GroupError, numbered
from treefold.errors.words import seconds_in_words

#: Of what a rank says of its error, in characters.
_MOST_WORDS = 4096


class ConnectError(GroupError, ConnectionError):
    """The processes that should make a group did not find each other, or do not fit together."""

    @classmethod
    def no_launcher(cls, looked_for: Sequence[str]) -> Self:
        """Nothing says who the other ranks are."""
        return cls(
            f"connect() found nobody to connect to: looked for {', '.join(looked_for)}. Start the script with "
            "`treefold run -n 4 script.py`, torchrun or mpiexec, or pass a ProcessGroup, a communicator or a Ticket."
        )

    @classmethod
    def gloo(cls, problem: str, interfaces: str) -> Self:
        """PyTorch's gloo has not connected, by the network interfaces that its variable names."""
        told = f"GLOO_SOCKET_IFNAME is {interfaces!r}" if interfaces else "GLOO_SOCKET_IFNAME is not set"
        return cls(
            f"gloo did not connect the hosts: {_first_line(problem)}. {told} on this rank: it names the network "
            "interface by which the others are reached, such as 'eth0'."
        )

    @classmethod
    def store(cls, problem: str) -> Self:
        """PyTorch's store, by which ranks find each other, does not do its part."""
        return cls(
            f"The group did not form: PyTorch's store has failed this rank: {_first_line(problem)}. Look at the "
            "network to whoever holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )

    @classmethod
    def unfit_store(cls) -> Self:
        """A store lacks what ranks find each other by."""
        return cls(
            "The group did not form: the store lacks set, get or check, by which ranks find each other. "
            "Use PyTorch's TCPStore, FileStore or HashStore, or write what is missing."
        )

    @classmethod
    def differs(cls, name: str, rank: int, got: object, own: object, first: int = 0) -> Self:
        """Ranks do not fit together."""
        return cls(f"The group did not form: rank {rank} has {name} {got!r} where rank {first} has {own!r}.")

    @classmethod
    def unknown_source(cls, source: object) -> Self:
        """``connect`` got something else than it takes."""
        return cls(
            f"connect() takes a torch ProcessGroup, an mpi4py communicator, a Ticket or nothing, and got "
            f"{type(source).__name__}."
        )

    @classmethod
    def late(cls, ranks: Sequence[int], seconds: float) -> Self:
        """Some ranks did not come."""
        return cls(
            f"{numbered(ranks)} did not connect within {seconds_in_words(seconds)}. Start all ranks, or give connect a "
            "larger connect_timeout_seconds."
        ).blaming(*ranks)

    @classmethod
    def out_of_time(cls, rank: int, seconds: float) -> Self:
        """A deadline has passed, though the ranks may all be there: nobody is to blame."""
        return cls(
            f"The group did not form: the connect_timeout_seconds of rank {rank} ({seconds_in_words(seconds)}), or of "
            "another rank, was over before all ranks were connected. Give connect more time on all ranks."
        )

    @classmethod
    def replaced(cls, rank: int) -> Self:
        """A process that the others wait for is gone, and its successor has come."""
        return cls(
            f"The group did not form: another process has come as rank {rank} while the ranks were being connected. "
            "Connect again."
        ).blaming(rank)

    @classmethod
    def given_up(cls, ranks: Sequence[int]) -> Self:
        """Some ranks were there, and have gone before all were connected."""
        verb = "has" if len(ranks) == 1 else "have"
        return cls(
            f"{numbered(ranks)} {verb} given up connecting before all were connected. Look at what was raised there, "
            "and connect again; if nothing else was, give connect a larger connect_timeout_seconds on all ranks."
        ).blaming(*ranks)

    @staticmethod
    def reason(rank: int, error: BaseException) -> list[Any]:
        """Return what the others are told of the error for which a rank gives up, for ``told``."""
        words = str(error) if isinstance(error, TreefoldError) else f"{type(error).__name__} {error}".rstrip()
        return [rank, words[:_MOST_WORDS], list(getattr(error, "ranks", ()))]

    @classmethod
    def told(cls, rank: int, why: str, ranks: Sequence[int]) -> Self:
        """A rank has given up, and told the others why; ``ranks``: whom it blames itself."""
        if why.startswith("The group did not form"):  # a sentence for all
            return cls(why).blaming(*ranks)
        return cls(f"The group did not form: rank {rank} has given up: {why.rstrip('.')}.").blaming(*ranks or [rank])

    @classmethod
    def rank_too_high(cls, rank: int, size: int) -> Self:
        """A rank's number is not below the number of ranks."""
        return cls(
            f"The group did not form: rank {rank} is not one of {size} ranks, which count from 0 to {size - 1}. Start "
            "every rank with its own number, and with the number of all."
        ).blaming(rank)

    @classmethod
    def absent(cls, ranks: Sequence[int]) -> Self:
        """Some of the ranks that should go on did not come."""
        return cls(
            f"{numbered(ranks)} should go on in a smaller group, and did not come before the deadline. Connect again."
        ).blaming(*ranks)

    @classmethod
    def gone(cls, rank: int) -> Self:
        """A rank of this host has ended its connection to this one without a word."""
        sentence = f"The group did not form: rank {rank} has ended, or has turned this rank away."
        return cls(sentence).blaming(rank)

    @classmethod
    def folder(cls, folder: str, problem: str) -> Self:
        """The folder where the first rank of a host listens is not there or not as it must be."""
        return cls(f"The group did not form: the folder {folder!r}, where the ranks of this host meet, {problem}.")

    @classmethod
    def ticket(cls, text: str) -> Self:
        """A ticket that cannot be read."""
        return cls(
            f"This is no ticket of treefold: {text[:80]!r}. Make them with Ticket.for_ranks(n), one for each rank."
        )

    @classmethod
    def rank_count(cls, size: object, most: int) -> Self:
        """A number of ranks that no host can have."""
        return cls(f"A host has 1 to {most} ranks, and {size!r} were asked for.")


def _first_line(problem: str) -> str:
    """Return what an engine says, without the stack that may follow."""
    return problem.partition("\n")[0].rstrip(". ")[:300]
