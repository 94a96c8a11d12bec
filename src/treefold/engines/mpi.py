"""Channels over MPI, by mpi4py: a communicator of our own, with requests that one loop tests."""

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

    Its communicator is kept when it is closed: MPI may still read or write what is under way there, and to free it
    would take all ranks. MPICH has room for some 2,000.
    """

    def __init__(self, communicator: Any) -> None:
        """Take a duplicate of a communicator. All its ranks call this, and wait for each other without a deadline."""
        self._comm = communicator.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        tags = min(self._comm.Get_attr(MPI.TAG_UB), _MOST_TAGS)
        self.limits = Limits(tags, _MESSAGE_BYTES, _CHUNK_BYTES, needs_calls=True)
        # With their requests. They hold the buffers, where MPI may write until a request is done.
        self._open: list[Transfer] = []
        self._ended: collections.deque[Transfer] = collections.deque()
        # MPI is finalized after all modules have gone, and goes on with messages until then.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once."""
        transfer = Transfer(peer, tag, buffer, is_send=True)
        if MPI.Is_finalized():  # by the user, with groups still open, which say that they are left
            transfer.error = "MPI is finalized"
            return transfer
        return self._begin(transfer)

    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to receive, and return at once."""
        return self._begin(Transfer(peer, tag, buffer))

    def wait(self, deadline: float) -> Transfer | None:
        """Return what has ended; None at the deadline."""
        tests = 0
        # A few times in any case: each lets MPI take only some of what has come.
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
        """Do nothing: see above."""

    def _begin(self, transfer: Transfer) -> Transfer:
        # First: an interrupt behind MPI's call loses the request, and MPI may still use the buffer.
        self._open.append(transfer)
        begin = self._comm.Isend if transfer.is_send else self._comm.Irecv
        transfer.handle = begin([transfer.buffer, MPI.BYTE], transfer.peer, transfer.tag)
        return transfer

    def _is_sending(self) -> bool:
        self._test()
        return any(one.is_send and one.handle is not None for one in self._open)  # None: an interrupt has lost it

    def _test(self) -> None:
        """Let MPI work, and note what has ended."""
        # Testing is what moves messages: MPI need not have a thread of its own.
        ended = self._done([one for one in self._open if one.handle is not None])
        if ended:
            self._ended.extend(one for one in ended if one.error or not one.is_send)
            gone = set(ended)
            # In place: the list is kept for MPI.
            self._open[:] = [one for one in self._open if one not in gone]

    def _done(self, begun: Sequence[Transfer]) -> list[Transfer]:
        """Return transfers that are done, in order, and those that MPI could not fulfil."""
        try:
            done = MPI.Request.Testsome([one.handle for one in begun]) if begun else None
            return [begun[index] for index in sorted(done or ())]
        except MPI.Exception:
            pass  # it does not say which request has failed
        ended = []
        for transfer in begun:
            if transfer.handle == MPI.REQUEST_NULL:  # done by the call that failed, whether well is not known
                transfer.error = "MPI has failed to carry a message"
            try:
                is_done = transfer.handle.Test()
            except MPI.Exception as error:
                transfer.error, is_done = str(error), True
            if is_done:
                ended.append(transfer)
        return ended

    def _pause(self, tests: int) -> int:
        """Let others have the processor, after some tests in vain; return the number of tests."""
        if tests > _SPINS and not self._ended:
            time.sleep(min(POLL_S, POLL_S / 16 * (tests - _SPINS)))
        return tests + 1
