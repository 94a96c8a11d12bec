"""Channels over MPI, by mpi4py: a communicator of our own, and one loop that tests its requests."""

from __future__ import annotations

import collections
import ctypes
import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from treefold.backends import HostArray
from treefold.engines.interface import Channel, Limits, Transfer
from treefold.engines.times import POLL_S

_MESSAGE_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18
_MOST_TAGS = 1 << 30
_LEAST_TESTS, _SPINS = 4, 50


class MpiChannel(Channel):
    """MPI's non-blocking sends and receives. MPICH ends the whole job when a rank dies.

    Closing keeps the communicator: MPI may still read or write buffers of transfers under way, and to free it would
    take all ranks. MPICH has room for some 2,000 communicators.
    """

    def __init__(self, communicator: Any) -> None:
        """Duplicate a communicator. All its ranks call this, and wait for each other without a deadline."""
        self._comm = communicator.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        tags = min(self._comm.Get_attr(MPI.TAG_UB), _MOST_TAGS)
        self.limits = Limits(tags, _MESSAGE_BYTES, _CHUNK_BYTES, needs_calls=True)
        # Transfers with their requests. They keep the buffers alive: MPI may write there until a request is done.
        self._open: list[Transfer] = []
        self._ended: collections.deque[Transfer] = collections.deque()
        # Never freed: MPI is finalized after all modules are gone, and moves messages until then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once."""
        transfer = Transfer(peer, tag, buffer, is_send=True)
        if MPI.Is_finalized():  # by the user, while groups are open: closing them sends a word
            transfer.error = "MPI is finalized"
            return transfer
        return self._begin(transfer)

    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to receive, and return at once."""
        return self._begin(Transfer(peer, tag, buffer))

    def wait(self, deadline: float) -> Transfer | None:
        """Return a transfer that has ended; None at the deadline."""
        tests = 0
        # At least a few tests: each lets MPI take only some of the messages that have come.
        while not self._ended and (tests < _LEAST_TESTS or time.monotonic() < deadline):
            self._test()
            tests = self._pause(tests)
        return self._ended.popleft() if self._ended else None

    def flush(self, deadline: float) -> None:
        """Let MPI work until no send is under way."""
        tests = 0
        while not MPI.Is_finalized() and self._is_sending() and time.monotonic() < deadline:
            tests = self._pause(tests)

    def now(self) -> float:
        """Return the time of the monotonic clock."""
        return time.monotonic()

    def stop(self, word: bytes, deadline: float) -> None:
        """Do nothing: MPI has no store, and no connections that others could see break."""

    def close(self) -> None:
        """Do nothing: the communicator is kept."""

    def _begin(self, transfer: Transfer) -> Transfer:
        # Before MPI's call: an interrupt just after it loses the request, while MPI may still use the buffer.
        self._open.append(transfer)
        begin = self._comm.Isend if transfer.is_send else self._comm.Irecv
        transfer.handle = begin([transfer.buffer, MPI.BYTE], transfer.peer, transfer.tag)
        return transfer

    def _is_sending(self) -> bool:
        self._test()
        return any(one.is_send and one.handle is not None for one in self._open)  # None: an interrupt has lost it

    def _test(self) -> None:
        """Let MPI work, and note the transfers that have ended."""
        # Messages may move only in these tests: MPI need not have a thread of its own.
        ended = self._done([one for one in self._open if one.handle is not None])
        if ended:
            self._ended.extend(one for one in ended if one.error or not one.is_send)
            gone = set(ended)
            # In place: the list is kept for MPI.
            self._open[:] = [one for one in self._open if one not in gone]

    def _done(self, begun: Sequence[Transfer]) -> list[Transfer]:
        """Return the transfers that are done, in order, and those that have failed."""
        try:
            done = MPI.Request.Testsome([one.handle for one in begun]) if begun else None
            return [begun[index] for index in sorted(done or ())]
        except MPI.Exception:
            pass  # it does not say which request has failed
        ended = []
        for transfer in begun:
            if transfer.handle == MPI.REQUEST_NULL:  # ended by the call that failed; its success is unknown
                transfer.error = "MPI has failed to carry a message"
            try:
                is_done = transfer.handle.Test()
            except MPI.Exception as error:
                transfer.error, is_done = str(error), True
            if is_done:
                ended.append(transfer)
        return ended

    def _pause(self, tests: int) -> int:
        """Leave the processor to others after some tests in vain; return the number of tests so far."""
        if tests > _SPINS and not self._ended:
            time.sleep(min(POLL_S, POLL_S / 16 * (tests - _SPINS)))
        return tests + 1
