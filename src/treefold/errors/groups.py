"""Errors between the processes of a group, and of processes that connect to become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import seconds_in_words

#: The words for the state letter of a late rank's process.
_STATES = {"T": ", which is stopped,", "t": ", which a debugger has stopped,", "Z": ", which has exited,"}
#: Why a rank is gone.
_CAUSES = {
    "lost": "has exited",
    "interrupted": "was interrupted",
    "left": "has closed the group",
    "failed": "has left the group with an error",
}
_AGAIN_WITHOUT = (
    "Over gloo, go on with `group = group.without(error.ranks)`; everywhere, all ranks can connect again: "
    "`group = treefold.connect()`."
)
_AS_THEY_WERE = "so this call did not happen: outputs are as they were."
_AGAIN = (
    "This group is over; connect again on all ranks: `treefold.connect()`, or `init_process_group` for PyTorch's "
    "process groups."
)
_LONGER = "Give connect a larger timeout_seconds, or init_process_group a larger timeout"
#: The most characters of a reason that a rank sends to the others.
_MOST_WORDS = 4096


class GroupError(TreefoldError, RuntimeError):
    """An error between the processes of a group."""

    #: The ranks that are to blame.
    ranks: tuple[int, ...] = ()

    def blaming(self, *ranks: int) -> Self:
        """Return the error itself, with these ranks as those to blame."""
        self.ranks = ranks
        return self

    def before(self, ranks: Sequence[int]) -> Self:
        """Return the error as one of the group before, of which these ranks go on with new numbers.

        :meta private:
        """
        new, old = ", ".join(map(str, range(len(ranks)))), ", ".join(map(str, ranks))
        words = f"Ranks have their new numbers here: {new} were {old} in the group before, as in error.ranks."
        return type(self)(f"{self} {words}").blaming(*(ranks[rank] for rank in self.ranks))

    @classmethod
    def closed(cls) -> Self:
        """Refuse a call of a group that was closed."""
        return cls(
            "This group is closed. After close(), or an error or Ctrl-C in a call, connect again on all ranks: "
            "`group = treefold.connect()`."
        )

    @classmethod
    def forked(cls, rank: int) -> Self:
        """Refuse a call by a forked child of its parent's group."""
        return cls(
            f"This process was forked from rank {rank} and is no rank itself. Only the process that called connect can "
            "use the group; let it reduce, or start workers before it connects."
        )

    @classmethod
    def decided_otherwise(cls, rank: int, decided: Sequence[int], asked: Sequence[int]) -> Self:
        """Report that the ranks that go on are not those that this rank asked for."""
        onward = f"It was decided that rank{'s' * (len(decided) > 1)} {', '.join(map(str, decided))} may go on"
        if rank not in decided:
            return cls(f"{onward}, without this one, rank {rank}. Connect again to come back.")
        return cls(
            f"{onward}, and rank {rank} asked for {', '.join(map(str, asked))}. All ranks that go on must leave out "
            "the same ones, and it is decided once. Connect again."
        )

    @classmethod
    def concurrent(cls, doing: str) -> Self:
        """Refuse a call by a second thread, a signal handler or a finalizer while another call is under way."""
        return cls(
            f"This group is in the middle of {doing}, which another thread or a signal handler has interrupted. Ranks "
            "make one call after the other, all in the same order: use one thread, or one group per thread."
        )

    @classmethod
    def unknown_ranks(cls, ranks: object, size: int) -> Self:
        """Refuse an argument of ``without`` that does not name some of the other ranks."""
        return cls(f"Group.without takes some of the other ranks, of 0 to {size - 1}, and got {ranks!r}.")

    @classmethod
    def too_large(cls, nbytes: int, limit: int) -> Self:
        """Refuse a batch that does not fit into the memory for results."""
        return cls(
            f"A result of {nbytes} bytes does not fit into the {limit} bytes that this group has for results, so "
            f"nothing was done. Reduce in smaller batches, or set TREEFOLD_GROUP_BYTES={nbytes} in every rank's "
            "environment."
        )


class PeerLostError(GroupError, ConnectionError):
    """A rank has ended, was interrupted or has closed the group while others still needed it."""

    is_alike = True

    @classmethod
    def of(cls, cause: str, rank: int) -> Self:
        """Report that rank ``rank`` is gone; ``cause``: a word of the protocol."""
        return cls(
            f"Rank {rank} {_CAUSES[cause]}, so this call did not happen: outputs are as they were. {_AGAIN}"
        ).blaming(rank)

    @classmethod
    def between_hosts(cls, cause: str, ranks: Sequence[int]) -> Self:
        """Report that ``ranks`` are gone; ``cause``: a word of the protocol."""
        words = "have ended, or their hosts cannot be reached" if cause == "lost" else _CAUSES[cause]
        return cls(f"{numbered(ranks)} {_number(words, ranks)}, {_AS_THEY_WERE} {_AGAIN_WITHOUT}").blaming(*ranks)

    @classmethod
    def given_up(cls, rank: int) -> Self:
        """Report that the other ranks have given up this one."""
        return cls(
            f"The other ranks have lost rank {rank}, this one: its connections broke, or it was stopped. It has no "
            "result of this call: outputs are as they were. The others may go on without it: connect again to come "
            "back."
        ).blaming(rank)

    @classmethod
    def unexplained(cls, ranks: Sequence[int]) -> Self:
        """Report broken connections to these ranks, for which no other rank gives a reason."""
        return cls(
            f"The connections to {numbered(ranks).lower()} and others broke, and nobody says why, so this call did not "
            "happen: outputs are as they were. On gloo ranks tell each other by PyTorch's store: whoever held it, "
            "usually rank 0 or torchrun, may have ended or be out of reach. Let all ranks connect again."
        ).blaming(*ranks)


class DeadlineError(GroupError, TimeoutError):
    """A rank did not come in time."""

    is_alike = True

    @classmethod
    def of(cls, rank: int, state: str) -> Self:
        """Report that rank ``rank`` is late; ``state``: its process's state letter."""
        return cls(
            f"Rank {rank}{_STATES.get(state, '')} had not come by the deadline, so this call did not happen: outputs "
            f"are as they were. {_AGAIN} {_LONGER} if that rank is only slow."
        ).blaming(rank)

    @classmethod
    def between_hosts(cls, ranks: Sequence[int]) -> Self:
        """Report that ``ranks`` have sent nothing until the deadline and a grace period after it."""
        return cls(
            f"{numbered(ranks)} had not come by the deadline, {_AS_THEY_WERE} {_AGAIN_WITHOUT} {_LONGER} if "
            "they are only slow."
        ).blaming(*ranks)

    @classmethod
    def slow(cls) -> Self:
        """Report that the deadline has passed, here or on another rank, although all ranks live."""
        return cls(
            f"No rank is missing, but the network or a rank's own work took longer than the deadline, {_AS_THEY_WERE} "
            f"{_LONGER}, and let all ranks connect again."
        )


class CallMismatchError(GroupError, ValueError):
    """Ranks of a group make different calls. Nothing has moved, and the group can be used."""

    @classmethod
    def of(cls, words: Sequence[str], kinds: Sequence[bytes]) -> Self:
        """Report the first two kinds of calls, with one rank of each."""
        first = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        sides = f"Rank {first} calls {words[first]}, while rank 0 calls {words[0]}."
        if words[first] == words[0]:
            sides = f"Ranks {first} and 0 both call {words[0]}, of other leaves, options or names."
        return cls(f"{sides} All ranks of a group make the same calls in the same order. Nothing was done.").blaming(
            *(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        )

    @classmethod
    def plans(cls) -> Self:
        """Report that ranks plan the same call differently."""
        return cls("Ranks plan this call differently. Install the same treefold, and its native core, on all of them.")

    @classmethod
    def refused(cls, rank: int, sentence: str) -> Self:
        """Report that another rank could not make its call."""
        why = sentence.rstrip(". ")
        return cls(f"Rank {rank} could not make this call: {why}. Nothing was done, on no rank.").blaming(rank)


class SharedMemoryError(GroupError, MemoryError):
    """There is no shared memory: none of this kind, none left, or none allowed."""

    @classmethod
    def of_system(cls, error: OSError, nbytes: int = 0) -> Self:
        """Report that the system refused memory: ``nbytes`` bytes or, if 0, the memory of a whole group."""
        what = f"{nbytes} bytes of shared memory" if nbytes else "the shared memory of a group"
        # Python's own refusals, of a path that is too long for one, have no words of the system.
        return cls(
            f"The system refused {what} ({error.strerror or error}), so nothing was done. Free memory or descriptors, "
            "or raise the limits of this process (ulimit -v, ulimit -n) or its container."
        )


def numbered(ranks: Sequence[int]) -> str:
    """Return "Rank 1" or "Ranks 1, 2"."""
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _number(words: str, ranks: Sequence[int]) -> str:
    """Return words about one rank as words about several, or the reverse."""
    one, several = words.replace("have ", "has ").replace("their hosts", "its host"), words
    if len(ranks) == 1:
        return one
    return several.replace("has ", "have ").replace("was", "were")


class ConnectError(GroupError, ConnectionError):
    """Processes that should become a group did not find each other, or do not fit together."""

    @classmethod
    def gloo(cls, problem: str, interfaces: str) -> Self:
        """Report that PyTorch's gloo has not connected over the network interfaces that its variable names."""
        setting = f"GLOO_SOCKET_IFNAME is {interfaces!r}" if interfaces else "GLOO_SOCKET_IFNAME is not set"
        return cls(
            f"gloo did not connect the hosts: {_first_line(problem)}. {setting} on this rank: it names the network "
            "interface by which the others are reached, such as 'eth0'."
        )

    @classmethod
    def store(cls, problem: str) -> Self:
        """Report that PyTorch's store, through which ranks find each other, does not work."""
        return cls(
            f"The group did not form: PyTorch's store has failed this rank: {_first_line(problem)}. Look at the "
            "network to whoever holds the store, usually rank 0 or torchrun, and at whether it still runs."
        )

    @classmethod
    def differs(cls, name: str, rank: int, got: object, own: object, first: int = 0) -> Self:
        """Report that ranks do not fit together."""
        return cls(f"The group did not form: rank {rank} has {name} {got!r} where rank {first} has {own!r}.")

    @classmethod
    def late(cls, ranks: Sequence[int], seconds: float) -> Self:
        """Report that some ranks did not come."""
        return cls(
            f"{numbered(ranks)} did not connect within {seconds_in_words(seconds)}. Start all ranks, or give connect a "
            "larger connect_timeout_seconds."
        ).blaming(*ranks)

    @classmethod
    def out_of_time(cls, rank: int, seconds: float) -> Self:
        """Report that a deadline has passed, although all ranks may be there: none is to blame."""
        return cls(
            f"The group did not form: the connect_timeout_seconds of rank {rank} ({seconds_in_words(seconds)}), or of "
            "another rank, was over before all ranks were connected. Give connect more time on all ranks."
        )

    @classmethod
    def replaced(cls, rank: int) -> Self:
        """Report that a process that the others wait for is gone, and that its successor has come."""
        return cls(
            f"The group did not form: another process has come as rank {rank} while the ranks were being connected. "
            "Connect again."
        ).blaming(rank)

    @classmethod
    def given_up(cls, ranks: Sequence[int]) -> Self:
        """Report that some ranks were there, and have gone before all were connected."""
        verb = "has" if len(ranks) == 1 else "have"
        return cls(
            f"{numbered(ranks)} {verb} given up connecting before all were connected. Look at what was raised there, "
            "and connect again; if nothing else was, give connect a larger connect_timeout_seconds on all ranks."
        ).blaming(*ranks)

    @staticmethod
    def reason(rank: int, error: BaseException) -> list[Any]:
        """Return a rank's number and the reason why it gives up, for ``announced`` on the other ranks."""
        words = str(error) if isinstance(error, TreefoldError) else f"{type(error).__name__} {error}".rstrip()
        return [rank, words[:_MOST_WORDS], list(getattr(error, "ranks", ()))]

    @classmethod
    def announced(cls, rank: int, why: str, ranks: Sequence[int]) -> Self:
        """Report that a rank has given up, and why; ``ranks``: the ranks that it blames."""
        if why.startswith("The group did not form"):  # a sentence for all
            return cls(why).blaming(*ranks)
        return cls(f"The group did not form: rank {rank} has given up: {why.rstrip('.')}.").blaming(*ranks or [rank])

    @classmethod
    def gone(cls, rank: int) -> Self:
        """Report that a rank of this host has closed its connection without a word."""
        sentence = f"The group did not form: rank {rank} has ended, or has turned this rank away."
        return cls(sentence).blaming(rank)

    @classmethod
    def folder(cls, folder: str, problem: str) -> Self:
        """Report that the folder in which the first rank of a host listens is missing or unsuitable."""
        return cls(f"The group did not form: the folder {folder!r}, where the ranks of this host meet, {problem}.")

    @classmethod
    def ticket(cls, text: str) -> Self:
        """Report that a ticket cannot be read."""
        return cls(
            f"This is no ticket of treefold: {text[:80]!r}. Make them with Ticket.for_ranks(n), one for each rank."
        )


def _first_line(problem: str) -> str:
    """Return an engine's message, without the stack trace that may follow."""
    return problem.partition("\n")[0].rstrip(". ")[:300]
