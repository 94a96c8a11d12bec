"""Sources of the ranks of a group: a ticket, PyTorch, MPI, or the environment that a launcher has left.

PyTorch and MPI are used only where the user has given or installed them, and are not imported to find out.
"""

from __future__ import annotations

import abc
import importlib.util
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from treefold.engines.interface import Channel
from treefold.engines.stores import Meeting, asked
from treefold.engines.times import GRACE_PERIOD_S
from treefold.errors import ConnectError, DeadlineError, PeerLostError
from treefold.group.bootstrap.rendezvous import Ticket
from treefold.group.protocol import CONNECT, Frame
from treefold.group.transport.failures import Rounds

#: Where ``treefold run`` leaves the ticket of a rank.
TICKET_VARIABLE = "TREEFOLD_TICKET"
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: By which variables MPI's launchers tell a process that it is one of several.
_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
_LOOKED_FOR = (
    f"{TICKET_VARIABLE} of `treefold run`",
    "torch.distributed's default group",
    "torchrun's variables",
    "the variables of MPI's launchers, with mpi4py installed",
)


def find_ranks(source: Any, seconds: float) -> Ticket | Bootstrap:
    """Return the source of this rank's number and of the others: a ticket of one host, or a bootstrap.

    Raises:
        ConnectError: ``source`` is of no known kind, or it is None and the environment names no ranks.

    """
    if source is None:
        return _from_environment(seconds)
    if isinstance(source, (Ticket, Bootstrap)):
        return source
    if isinstance(source, str):
        return Ticket.read(source)
    if _is_process_group(source):
        return _from_process_group(source)
    if hasattr(source, "Bcast") and hasattr(source, "Get_rank"):
        return _of_communicator(source)
    raise ConnectError(
        f"connect() takes a torch ProcessGroup, an mpi4py communicator, a Ticket or nothing, and got "
        f"{type(source).__name__}."
    )


def _from_environment(seconds: float) -> Ticket | Bootstrap:
    if TICKET_VARIABLE in os.environ:
        _tickets_of_run[os.getpid()] = os.environ[TICKET_VARIABLE]
        del os.environ[TICKET_VARIABLE]  # programs that this rank starts are no ranks
    if os.getpid() in _tickets_of_run:
        return Ticket.read(_tickets_of_run[os.getpid()])
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _from_process_group(distributed.group.WORLD)
    if all(name in os.environ for name in _TORCHRUN) and importlib.util.find_spec("torch") is not None:
        return _from_torchrun(seconds)
    if any(name in os.environ for name in _MPI) and importlib.util.find_spec("mpi4py") is not None:
        from mpi4py import MPI  # noqa: PLC0415 - the user's own, if at all

        return _of_communicator(MPI.COMM_WORLD)
    raise ConnectError(
        f"connect() found nobody to connect to: looked for {', '.join(_LOOKED_FOR)}. Start the script with "
        "`treefold run -n 4 script.py`, torchrun or mpiexec, or pass a ProcessGroup, a communicator or a Ticket."
    )


#: The ticket that ``treefold run`` has left, by process: a forked child is no rank.
_tickets_of_run: dict[int, str] = {}


def _is_process_group(source: Any) -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and isinstance(source, distributed.ProcessGroup)


def _from_process_group(group: Any) -> Bootstrap:
    """Use the store with which PyTorch made the group, under keys of our own."""
    from torch import distributed  # noqa: PLC0415 - the user's own, if at all

    store = distributed.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 - there is no other way to it
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    return StoreBootstrap(store, rank, size, f"treefold/{group.group_name}")


def _from_torchrun(seconds: float) -> Bootstrap:
    """Use torchrun's store, as a client of it; PyTorch's process groups stay as they are."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - the user's own, if at all

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and not _held_stores

    def open_store() -> TCPStore:
        return TCPStore(address, port, None, is_host, timedelta(seconds=seconds), wait_for_workers=False)

    store = asked(open_store, time.monotonic() + seconds)  # the constructor tries longer than it is told
    if is_host:
        _held_stores.append(store)  # the others may still have to ask, and this process may connect again
    # Not by the number of restarts: each agent counts its own, and not those that follow another agent's. By the number
    # of ranks: an elastic job that comes back with another one has nothing to do with what it was before.
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return StoreBootstrap(store, rank, size, "treefold" if run is None else f"treefold/{run}/{size}")


_held_stores: list[object] = []


def _of_communicator(communicator: Any) -> Bootstrap:
    """Return the ranks of an mpi4py communicator, duplicated to keep messages apart from the user's."""
    from treefold.engines.mpi import MpiChannel  # noqa: PLC0415 - mpi4py, which the user has chosen

    return ChannelBootstrap(MpiChannel(communicator))


def host_key() -> str:
    """Return what differs between hosts; processes for which it is the same may still be unable to meet."""
    try:
        return f"{_boot()} {Path('/proc/self/ns/net').readlink()}"  # a container with a network of its own is a host
    except OSError:
        return _boot()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Bootstrap(abc.ABC):
    """Ranks that can tell each other a few words, and open a channel."""

    rank: int
    size: int
    #: When this rank began to connect, by the monotonic clock; errors tell the seconds since.
    began: float

    @abc.abstractmethod
    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Return what each rank says, by rank; a few kilobytes at most.

        Raises:
            ConnectError: some have said nothing by the deadline, a moment of the monotonic clock, or have given up.

        """

    @abc.abstractmethod
    def open(self, deadline: float) -> Rounds:
        """Return rounds over a channel between all ranks, once all have opened it.

        Raises:
            ConnectError: some have not by the deadline, or have given up.

        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything, for ranks that need no channel because they share a host."""

    @abc.abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Release everything, and tell ranks that still wait why this one does not go on."""


class StoreBootstrap(Bootstrap):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``job``.

    Ranks of a job connect again and again, and some are new processes. So attempts have numbers. A rank joins the first
    attempt that is not over, and that no process of its number has joined: one that it finds there itself has ended.
    """

    def __init__(self, store: Any, rank: int, size: int, job: str) -> None:
        """Use a store that outlives the bootstrap."""
        if rank >= size:
            raise ConnectError(
                f"The group did not form: rank {rank} is not one of {size} ranks, which count from 0 to {size - 1}. "
                "Start every rank with its own number, and with the number of all."
            ).blaming(rank)
        self.rank, self.size = rank, size
        self._store, self._job = store, job
        self.began = time.monotonic()
        self._meeting: Meeting | None = None
        self._steps = 0

    @property
    def attempt(self) -> str:
        """The attempt to connect that this rank has joined, as keys in the store begin with it."""
        assert self._meeting is not None  # noqa: S101 - they have exchanged words
        return self._meeting.name

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        if self._meeting is None:
            return self._come(said, deadline)
        self._steps += 1
        return self._meeting.exchange(f"step {self._steps}", said, deadline)

    def open(self, deadline: float) -> Rounds:
        """Connect by gloo, once all have come so far: gloo does not say which rank is missing."""
        from treefold.engines.gloo import GlooChannel  # noqa: PLC0415 - PyTorch, which the user has chosen

        self.exchange(b"", deadline)
        assert self._meeting is not None  # noqa: S101 - they have exchanged words
        return Rounds(GlooChannel(self._meeting, deadline))

    def close(self) -> None:
        """Leave the keys: others may still read them."""

    def give_up(self, error: BaseException) -> None:
        """Leave the reason in the store."""
        if self._meeting is not None:
            self._meeting.give_up(error)

    def _come(self, said: bytes, deadline: float) -> list[bytes]:
        """Join an attempt, and return what each rank says once all have come."""
        while True:
            self._meeting = asked(self._joined, deadline + GRACE_PERIOD_S)
            try:
                # First without words: all may be there, some of them as processes that have ended.
                self._meeting.exchange("here", b"", deadline)
                return self._meeting.exchange("words", said, deadline)
            except ConnectError as error:
                # A process has come in place of one that has ended, and waits in the next attempt.
                if not error.ranks or str(error) != str(ConnectError.replaced(error.ranks[0])):
                    raise

    def _joined(self) -> Meeting:
        """Return the first attempt for this process."""
        first = f"{self._job}/first"
        number = int(self._store.get(first)) if self._store.check([first]) else 0
        meeting = Meeting(self._store, f"{self._job}/{number}", self.rank, self.size, self.began)
        while meeting.is_past():
            meeting.end(ConnectError.replaced(self.rank))
            number += 1
            meeting = meeting._replace(name=f"{self._job}/{number}")
        self._store.set(first, str(number))
        return meeting


class ChannelBootstrap(Bootstrap):
    """The ranks that a channel joins."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone until it is a group's."""
        self._channel, self._rounds = channel, Rounds(channel)
        self.rank, self.size = channel.rank, channel.size
        self.began = time.monotonic()

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Tell all others, in a round as those of a group's calls."""
        until = deadline - time.monotonic() + self._channel.now()
        try:
            frames = self._rounds.tell(Frame(CONNECT, "connect", said), until, lambda _: None)
        except DeadlineError as error:
            seconds = time.monotonic() - self.began
            raise (
                ConnectError.late(error.ranks, seconds) if error.ranks else ConnectError.out_of_time(self.rank, seconds)
            ) from None
        except PeerLostError as error:
            raise ConnectError.given_up(error.ranks) from None
        return [frame.payload for frame in frames]

    def open(self, deadline: float) -> Rounds:
        """Return the rounds, once all have come so far."""
        self.exchange(b"", deadline)
        return self._rounds

    def close(self) -> None:
        """Close the channel."""
        self._rounds.leave("left")

    def give_up(self, error: BaseException) -> None:
        """Tell the others by the channel, and close it."""
        self._rounds.leave("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
