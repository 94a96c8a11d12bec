"""Who knows the ranks: a ticket, PyTorch, MPI, or the environment that a launcher has left.

PyTorch and MPI are used only where the user has given or installed them, and are not imported to find out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from treefold.engines.stores import asked
from treefold.errors import ConnectError
from treefold.group.bootstrap.rosters import ChannelRoster, Roster, StoreRoster
from treefold.group.bootstrap.ticket import Ticket

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


def find_ranks(source: Any, seconds: float) -> Ticket | Roster:
    """Return what knows this rank and the others: a ticket of this host's ranks, or a roster of all.

    Raises:
        ConnectError: it is nothing that knows them, or None and the environment says nothing.

    """
    if source is None:
        return _from_environment(seconds)
    if isinstance(source, (Ticket, Roster)):
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


def _from_environment(seconds: float) -> Ticket | Roster:
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


def _from_process_group(group: Any) -> Roster:
    """Use the store on which PyTorch has made the group; its messages are not met."""
    from torch import distributed  # noqa: PLC0415 - the user's own, if at all

    store = distributed.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 - there is no other way to it
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    return StoreRoster(store, rank, size, f"treefold/{group.group_name}")


def _from_torchrun(seconds: float) -> Roster:
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
    return StoreRoster(store, rank, size, "treefold" if run is None else f"treefold/{run}/{size}")


_held_stores: list[object] = []


def _of_communicator(communicator: Any) -> Roster:
    """Return the ranks of an mpi4py communicator, which is duplicated, so that the user's messages are not met."""
    from treefold.engines.mpi import MpiChannel  # noqa: PLC0415 - mpi4py, which the user has chosen

    return ChannelRoster(MpiChannel(communicator))


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
