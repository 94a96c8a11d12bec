"""Who knows the ranks: a ticket, PyTorch, MPI, or the environment that a launcher has left.

PyTorch's and MPI's ranks are told a ticket by rank 0, in one broadcast of bytes; treefold uses nothing else of theirs.
Both are used only where the user has given or installed them, and are not imported to find out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from treefold.errors import ConnectError
from treefold.group.guest import is_listening
from treefold.group.ticket import Ticket

#: Where ``treefold run`` leaves the ticket of a rank.
TICKET_VARIABLE = "TREEFOLD_TICKET"
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: By which variables MPI's launchers tell a process that it is one of several.
_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
_STORE_KEY = "treefold/ticket"
_RETRY_S = 0.02
#: A ticket as text, padded with blanks.
_TICKET_BYTES = 512
_LOOKED_FOR = (
    f"{TICKET_VARIABLE} of `treefold run`",
    "torch.distributed's default group",
    "torchrun's variables",
    "the variables of MPI's launchers, with mpi4py installed",
)


@dataclass(frozen=True, slots=True)
class StoreRanks:
    """A rank that PyTorch knows, and a store that is its group's alone, where rank 0 leaves a ticket for the others."""

    store: Any
    rank: int
    size: int

    def find_ticket(self, seconds: float) -> Ticket:
        """Return this rank's ticket.

        Raises:
            ConnectError: there is none in time, or rank 0 is on another host.

        """
        if self.rank == 0:
            self.store.set(_STORE_KEY, _first_ticket(self.size) + _host().encode())
            return self._read()
        deadline = time.monotonic() + seconds
        # What an earlier incarnation of the job has left there leads to nobody.
        while time.monotonic() < deadline:
            if self.store.check([_STORE_KEY]):
                ticket = self._read()
                if is_listening(ticket):
                    return ticket
            time.sleep(_RETRY_S)
        raise ConnectError.late([0], seconds)

    def _read(self) -> Ticket:
        told = self.store.get(_STORE_KEY)
        host = told[_TICKET_BYTES:].decode()
        if host and _host() and host != _host():
            raise ConnectError.other_host(self.rank)
        return _own_ticket(told[:_TICKET_BYTES], self.rank)

    def forget(self) -> None:
        """Take the ticket away, once all ranks have used it."""
        if self.rank == 0:
            self.store.delete_key(_STORE_KEY)


def find_ticket(source: Any, seconds: float) -> Ticket:
    """Return this rank's ticket, from whatever knows the ranks.

    Raises:
        ConnectError: it is nothing that knows them, or None and the environment says nothing.

    """
    if source is None:
        return _from_environment(seconds)
    if isinstance(source, Ticket):
        return source
    if isinstance(source, str):
        return Ticket.read(source)
    if isinstance(source, StoreRanks):
        return source.find_ticket(seconds)
    if _is_process_group(source):
        return _from_process_group(source)
    if hasattr(source, "Bcast") and hasattr(source, "Get_rank"):
        return _from_communicator(source)
    raise ConnectError.unknown_source(source)


def _from_environment(seconds: float) -> Ticket:
    if TICKET_VARIABLE in os.environ:
        return Ticket.read(os.environ.pop(TICKET_VARIABLE))  # good for one group, and none of its children's business
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _from_process_group(distributed.group.WORLD)
    if all(name in os.environ for name in _TORCHRUN) and importlib.util.find_spec("torch") is not None:
        return _from_torchrun(seconds)
    if any(name in os.environ for name in _MPI) and importlib.util.find_spec("mpi4py") is not None:
        from mpi4py import MPI  # noqa: PLC0415 - the user's own, if at all

        return _from_communicator(MPI.COMM_WORLD)
    raise ConnectError.no_launcher(_LOOKED_FOR)


def _is_process_group(source: Any) -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and isinstance(source, distributed.ProcessGroup)


def _from_process_group(group: Any) -> Ticket:
    import torch  # noqa: PLC0415 - the user's own, if at all
    from torch import distributed  # noqa: PLC0415 - the user's own, if at all

    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    told = torch.empty(_TICKET_BYTES, dtype=torch.uint8)
    if rank == 0:
        told.copy_(torch.frombuffer(bytearray(_first_ticket(size)), dtype=torch.uint8))
    distributed.broadcast(told, src=distributed.get_global_rank(group, 0), group=group)
    return _own_ticket(bytes(told.tolist()), rank)


def _from_torchrun(seconds: float) -> Ticket:
    """Be told by torchrun's store, as a client of it; PyTorch's process groups stay as they are."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - the user's own, if at all

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(address, port, None, is_host, timedelta(seconds=seconds), wait_for_workers=False)
    # Ranks connect in the same order, so each counts for itself; a restart begins anew, beside stale keys.
    _counts[restart] = _counts.get(restart, 0) + 1
    key = f"treefold/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{restart}/{_counts[restart]}"
    if rank == 0:
        store.set(key, _first_ticket(size))
    told = store.get(key)
    if is_host:
        _kept_stores.append(store)  # the others may still have to ask
    return _own_ticket(told, rank)


_counts: dict[str, int] = {}
_kept_stores: list[object] = []


def _from_communicator(communicator: Any) -> Ticket:
    """Be told by a broadcast on a communicator of our own, so that the user's messages are not met."""
    own = communicator.Dup()
    try:
        told = np.zeros(_TICKET_BYTES, np.uint8)
        if own.Get_rank() == 0:
            told[:] = np.frombuffer(_first_ticket(own.Get_size()), np.uint8)
        own.Bcast(told, 0)
        return _own_ticket(told.tobytes(), own.Get_rank())
    finally:
        own.Free()


def _first_ticket(size: int) -> bytes:
    return Ticket.for_ranks(size)[0].encode().ljust(_TICKET_BYTES)


def _own_ticket(told: bytes, rank: int) -> Ticket:
    first = Ticket.read(told.decode().strip())
    return Ticket(first.folder, first.token, rank, first.size)


def _host() -> str:
    """Return what differs between hosts; processes for which it is the same may still be unable to meet."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
