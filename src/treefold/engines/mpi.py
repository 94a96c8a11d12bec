"""Channels over MPI, by mpi4py: a communicator of our own, whose requests one loop tests."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from treefold.backends import HostArray
from treefold.engines.interface import CONTROL_TAGS, Channel, Limits, Transfer

_MESSAGE_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18
#: The last one is for the words of ranks that stop.
_MOST_TAGS = 1 << 30
#: What a rank that stopped has sent before may still be on its way.
_ON_ITS_WAY_S = 0.05
#: How many communicators are given back at most when another is made.
_MOST_FREED = 32
#: How often a rank looks for words before it sends a frame.
_LOOKS = 3
_STOPPED_ERROR = "the rank has stopped"
_FINALIZED_ERROR = "MPI is finalized"
_SPINS = 50
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 2e-4


class MpiChannel(Channel):
    """MPI's non-blocking sends and receives. MPICH ends the whole job when a rank dies."""

    def __init__(self, communicator: Any) -> None:
        """Take over a communicator that nobody else uses."""
        self._comm, self._is_free = communicator, False
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self._word_tag = min(communicator.Get_attr(MPI.TAG_UB), _MOST_TAGS)
        self.limits = Limits(self._word_tag, _MESSAGE_BYTES, _CHUNK_BYTES, is_death_fatal=True)
        # With their requests. They hold the buffers, where MPI may write until a request is done.
        self._open: list[Transfer] = []
        self._ended: collections.deque[Transfer] = collections.deque()
        self._said: dict[int, tuple[float, bytes]] = {}
        #: The same of words, for which nobody waits.
        self._kept: list[Transfer] = []
        #: By which all its ranks know the channel, if it can be freed.
        self.number = 0
        self._has_told = False

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once."""
        transfer = Transfer(peer, tag, buffer, is_send=True)
        if MPI.Is_finalized():  # by the user, with groups still open, which say that they are left
            transfer.error = _FINALIZED_ERROR
            return transfer
        # Words lie behind earlier messages, of which each test lets MPI take only some. For frames alone: they are few.
        for _ in range(_LOOKS if tag < CONTROL_TAGS else 0):
            self._test()
            self._hear()
        if peer in self._said:
            transfer.error = _STOPPED_ERROR
            return transfer
        return self._begin(transfer, self._open)

    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to receive, and return at once."""
        return self._begin(Transfer(peer, tag, buffer), self._open)

    def wait(self, deadline: float) -> Transfer | None:
        """Return what has ended; None at the deadline."""
        found: list[Transfer] = []

        def has_ended() -> bool:
            self._test()
            if self._ended:
                found.append(self._ended.popleft())
            return bool(found)

        _until(has_ended, deadline)
        return found[0] if found else None

    def settle(self, deadline: float) -> None:
        """Let MPI work: the others may still be waiting for this rank's frames, and outside of MPI none moves."""
        self.flush(deadline)

    def meanwhile(self, work: Callable[[], object], give_up: Callable[[], object]) -> None:
        """Let another thread call MPI meanwhile: without calls, not even messages move that other ranks wait for."""
        over = list[None]()

        def go_on() -> None:
            # The calling thread is outside of MPI until ``working`` is joined, so one thread at a time calls it
            # (MPI_THREAD_SERIALIZED).
            while not over:
                self._test()
                if any(one.error for one in self._ended):
                    give_up()
                time.sleep(_LONGEST_PAUSE_S)

        working = threading.Thread(target=go_on, daemon=True)
        try:
            working.start()
            work()
        finally:
            # In C: an interrupt where a function of Python's begins would leave the thread within MPI for ever.
            over.append(None)
            # Before the caller goes on: from here on it tests the requests itself.
            if working.is_alive():
                working.join()

    def flush(self, deadline: float) -> None:
        """Let MPI work until no send is under way to a rank that takes it."""
        if MPI.Is_finalized():  # by the user, with groups still open: no send can be under way
            return

        def is_out() -> bool:
            self._test()
            out = set(self._done([one for one in self._kept if one.handle is not None]))
            self._kept = [one for one in self._kept if one not in out]
            # Who has stopped takes no values any more, and may still wait for words.
            sent = [one for one in self._open if one.is_send and one.peer not in self._said]
            return all(one.handle is None for one in (*sent, *self._kept))  # None: an interrupt has lost it

        _until(is_out, deadline)

    def now(self) -> float:
        """Return the time of the monotonic clock."""
        return time.monotonic()

    def words(self, deadline: float) -> Mapping[int, bytes]:  # noqa: ARG002 - they come as messages
        """Return the words that have come."""
        if not MPI.Is_finalized():
            self._hear()
        return {rank: word for rank, (_, word) in self._said.items()}

    def stop(self, word: bytes, deadline: float) -> None:
        """Send a word to all others."""
        self._has_told = True
        if not MPI.Is_finalized():
            self._tell(word)
            self.flush(deadline)

    def close(self) -> None:
        """Keep what is under way: MPI may still write there, until all have closed it and the communicator is freed."""
        self._keep()
        if not self._has_told:
            self._has_told = True
            self._tell(b"")

    def __del__(self) -> None:
        """Keep a channel that was dropped without ``close``; the next ``duplicate`` closes it."""
        # Not closed here: the collector of garbage may run beside another thread that is within MPI.
        kept = globals()["_kept"]  # None when the interpreter ends
        if kept is not None and not self._is_free:
            self._keep()

    def is_quiet(self) -> bool:
        """Tell whether nothing is under way any more, and nothing will be: all ranks have stopped using the channel.

        What one rank sends arrives in its order, and its last words are the last that it sends.
        """
        if not self.number:
            return False
        self._hear()
        if len(self._said) < self.size - 1:
            return False
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):  # what nobody has waited for
            nobodys = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv([nobodys, MPI.BYTE], status.Get_source(), status.Get_tag())
        requests = [one.handle for one in (*self._open, *self._kept)]
        if None in requests:  # begun, and lost by an interrupt: nobody will know when it is done
            return False
        for transfer in self._open:
            if not transfer.is_send and transfer.handle != MPI.REQUEST_NULL:
                # A receive that is never cancelled keeps its buffer for ever, and the communicator from being freed.
                transfer.handle.Cancel()
        return bool(MPI.Request.Testall(requests))

    def tell_numbers(self, own: list[int], told: HostArray) -> None:
        """Let all ranks have the numbers of each, by rank; all ranks call this."""
        told[self.rank, : len(own)] = own
        self._comm.Allgather(MPI.IN_PLACE, told)

    def joins(self, communicator: Any) -> bool:
        """Tell whether the channel and a communicator are of the same ranks."""
        return bool(MPI.Comm.Compare(self._comm, communicator) != MPI.UNEQUAL)

    def free(self) -> None:
        """Give the communicator back; all ranks do, of channels that are quiet on all of them."""
        _kept.remove(self)
        self._comm.Free()
        self._is_free = True
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))

    def _keep(self) -> None:
        """Keep what is under way until the channel is freed, even when the interpreter has ended."""
        if self not in _kept:
            # MPI is finalized after all modules have gone, and ``_kept`` with them, and goes on with messages until
            # then.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            _kept.append(self)

    def _begin(self, transfer: Transfer, among: list[Transfer]) -> Transfer:
        # First: an interrupt behind MPI's call loses the request, and MPI may still use the buffer.
        among.append(transfer)
        begin = self._comm.Isend if transfer.is_send else self._comm.Irecv
        transfer.handle = begin([transfer.buffer, MPI.BYTE], transfer.peer, transfer.tag)
        return transfer

    def _test(self) -> None:
        """Let MPI work, and note what has ended."""
        # Testing is what moves messages: MPI need not have a thread of its own.
        ended = self._done([one for one in self._open if one.handle is not None])
        if ended:
            self._ended.extend(one for one in ended if one.error or not one.is_send)
            gone = set(ended)
            self._open = [one for one in self._open if one not in gone]
            return
        self._hear()
        for peer, (heard_at, _) in self._said.items():
            lost = [one for one in self._open if one.peer == peer and not one.is_send and not one.error]
            if lost and time.monotonic() > heard_at + _ON_ITS_WAY_S:
                for one in lost:
                    one.error = _STOPPED_ERROR
                self._ended.extend(lost)

    def _done(self, begun: Sequence[Transfer]) -> list[Transfer]:
        """Return transfers that are done, in order, and those that MPI could not fulfil."""
        try:
            done = MPI.Request.Testsome([one.handle for one in begun]) if begun else None
            return [begun[index] for index in sorted(done or ())]
        except MPI.Exception:
            pass  # it does not say whose request it was
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

    def _tell(self, word: bytes) -> None:
        buffer = np.frombuffer(word, np.uint8)
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(MPI.Exception):
                    self._begin(Transfer(rank, self._word_tag, buffer, is_send=True), self._kept)

    def _hear(self) -> None:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, self._word_tag, status):
            word = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._comm.Recv([word, MPI.BYTE], status.Get_source(), self._word_tag)
            self._said[status.Get_source()] = time.monotonic(), word.tobytes()


#: Channels that are closed, and not freed: MPI may still read or write what is under way there.
_kept: list[MpiChannel] = []


def duplicate(communicator: Any) -> MpiChannel:
    """Return a channel over a duplicate of a communicator, whose ranks all call this.

    Freeing a communicator takes all its ranks, which meet here. Only channels that are quiet on every rank are freed:
    MPI may use the number again, and a late message would reach the new communicator.
    """
    for dropped in _kept:
        dropped.close()
    channel = MpiChannel(communicator.Dup())
    # Behind that call of all ranks, by which each has closed what it had before.
    quiet = {one.number: one for one in list(_kept) if one.joins(communicator) and one.is_quiet()}
    # Freeing takes all ranks, in one order: each tells which channels are quiet for it, and all free those that every
    # rank has named, by ascending number.
    told = np.zeros((channel.size, 1 + _MOST_FREED), np.uint64)
    own = [int.from_bytes(os.urandom(8)) | 1, *sorted(quiet)[:_MOST_FREED]]
    channel.tell_numbers(own, told)
    channel.number = int(told[0, 0])
    for number in sorted(set.intersection(*(set(row) for row in told[:, 1:].tolist())).difference([0])):
        quiet[number].free()
    return channel


def _until(holds: Callable[[], bool], deadline: float) -> bool:
    """Ask again and again whether something holds, first quickly, then with pauses; False at the deadline."""
    spins, pause = 0, _SHORTEST_PAUSE_S
    while not holds():
        if time.monotonic() >= deadline:
            return False
        spins += 1
        if spins > _SPINS:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True
