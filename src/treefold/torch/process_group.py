"""PyTorch's backend ``"treefold"``: process groups of one host, whose tensors meet in shared memory.

``import treefold.torch`` registers it; ``torch.distributed.init_process_group("treefold")`` then makes such groups,
under ``torchrun`` and wherever else the other backends run. Reductions have the bits of one process that holds all
ranks' tensors. They block, and what they return is complete, also with ``async_op=True``. A call that fails has changed
nothing on any rank, with one exception: tensors that do not fit into the group's memory for results
(``TREEFOLD_GROUP_BYTES``) go through it in parts: after an error some of the output may be new and the rest old.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch._C import _distributed_c10d  # what torch.testing's own process group in Python uses

from treefold.backends.torch_memory import memory
from treefold.backends.torch_untraced import untraced
from treefold.errors import GroupError, ProcessGroupError
from treefold.group.byte_streams import Stream, move, tell_counts
from treefold.group.collectives import Collectives
from treefold.group.connecting import connect_link
from treefold.group.links.link import one_call
from treefold.group.reductions import Reductions
from treefold.group.rosters import StoreRoster
from treefold.torch.addresses import tell_addresses
from treefold.torch.checks import check_count, check_rank, check_sizes, check_tag, columns, op_of, words
from treefold.torch.cutting import cut_apart, cut_in_place, parts_of
from treefold.torch.elsewhere import Elsewhere, or_elsewhere
from treefold.torch.flat import Flat, check_written, laid_out, parts, piece, read_only, rows
from treefold.torch.mailbox import Mailbox
from treefold.torch.signatures import with_defaults
from treefold.torch.transfers import Transfer
from treefold.torch.turns import Turn, Turns

_NAME = "treefold"
#: Results are laid out at multiples of so many bytes.
_LINE = 64
_Result = TypeVar("_Result")
_open = weakref.WeakSet[Any]()
_work_of: Callable[[Any], Any] = vars(_distributed_c10d)["_create_work_from_future"]


@untraced
@or_elsewhere
@with_defaults
class TreefoldProcessGroup(distributed.ProcessGroup):  # type: ignore[misc] # mypy does not read torch
    """The ranks of one host. Methods are those that ``torch.distributed``'s functions call, with their arguments."""

    #: PyTorch asks it of what ``_get_backend`` returns.
    supports_time_estimate = False

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Join the other ranks."""
        super().__init__(rank, size)
        self._name, self._store = "", store
        self._seconds, self._pid = timeout.total_seconds(), os.getpid()
        ranks = StoreRoster(store, rank, size, _NAME)
        self._link = connect_link(ranks, self._seconds, self._seconds, is_one_host=True)
        try:
            self._mailbox = Mailbox(self._link.rank, *tell_addresses(self._link))
        except BaseException as error:  # the others would wait for this rank
            self._link.close(error)
            raise
        self._collectives, self._turns, self._elsewhere = Collectives(self._link), Turns(), Elsewhere(_NAME)
        self._reductions = Reductions(self._link, self._collectives.join)
        _open.add(self)

    def allreduce(self, tensors: list[Any], opts: Any) -> Any:
        """Reduce each tensor into itself."""
        return self._reduce(tensors, opts, None)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Any], opts: Any) -> Any:
        """Reduce each tensor into that of one rank."""
        return self._reduce(tensors, opts, opts.rootRank)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        """Reduce lists of one tensor for each rank, and give each rank its own."""
        return self._reduce_scatter(outputs, lambda: inputs, opts)

    def reduce_scatter_single(self, output: Any, value: Any, opts: Any) -> Any:
        """Reduce a tensor, and give each rank a part of it."""
        return self.reduce_scatter_single_coalesced([output], [value], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Reduce tensors, and give each rank a part of each."""
        return self._reduce_scatter(outputs, lambda: [parts(value, self._link.size) for value in inputs], opts)

    def broadcast(self, tensors: list[Any], opts: Any) -> Any:
        """Copy one rank's tensors into those of the others."""
        root = opts.rootRank

        def body(flat: Flat) -> None:
            check_rank(root, self._link.size)
            is_root = root == self._link.rank
            flats = [flat.source(tensor) if is_root else flat.target(tensor) for tensor in tensors]
            pieces = laid_out(flats)
            stream = Stream(sum(one.nbytes for one in flats), pieces if is_root else [], [] if is_root else pieces)
            move(self._link, stream, "broadcast", words(flats), root=root)

        self._call(opts, body)
        return _done(tensors)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into one list of tensors each, in order of ranks."""
        return self._all_gather(lambda: outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's list of tensors, as a list for each rank."""
        return self._all_gather(lambda: columns("all_gather_coalesced", outputs, len(inputs)), inputs, opts)

    def all_gather_single(self, output: Any, value: Any, opts: Any) -> Any:
        """Copy every rank's tensor into one, behind each other."""
        return self.all_gather_single_coalesced([output], [value], opts)

    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into one each, behind each other."""
        return self._all_gather(lambda: [parts(check_written(one), self._link.size) for one in outputs], inputs, opts)

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensor into a list of them on one rank."""
        rank, size, root = self._link.rank, self._link.size, opts.rootRank

        def body(flat: Flat) -> None:
            check_rank(root, size)
            own = flat.source(inputs[0])
            taken = [flat.target(output) for output in outputs[0]] if root == rank else []
            if root == rank:
                check_count("gather", taken, size)
            check_sizes("gather", taken, [own] * len(taken))
            stream = Stream(size * own.nbytes, [piece(rank * own.nbytes, own)], laid_out(taken))
            move(self._link, stream, "gather", words([own]), root=root)

        self._call(opts, body)
        return _done([one for column in outputs for one in column])

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        """Copy a list of tensors on one rank into one tensor on each."""
        rank, size, root = self._link.rank, self._link.size, opts.rootRank

        def body(flat: Flat) -> None:
            check_rank(root, size)
            own = flat.target(outputs[0])
            given = [flat.source(value) for value in inputs[0]] if root == rank else []
            if root == rank:
                check_count("scatter", given, size)
            check_sizes("scatter", given, [own] * len(given))
            stream = Stream(size * own.nbytes, laid_out(given), [piece(rank * own.nbytes, own)])
            move(self._link, stream, "scatter", words([own]), root=root)

        self._call(opts, body)
        return _done(outputs)

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Copy tensor r of every rank's list to rank r."""
        return self._exchange(lambda: (inputs, outputs), outputs, opts)

    def all_to_all_single(
        self, output: Any, value: Any, output_sizes: list[int] | None, input_sizes: list[int] | None, opts: Any
    ) -> Any:
        """Copy part r of every rank's tensor to rank r; without sizes, parts are equal."""
        size = self._link.size
        return self._exchange(
            lambda: (rows(value, size, input_sizes), rows(check_written(output), size, output_sizes)), [output], opts
        )

    def send(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to send a tensor to a rank, beside the collectives."""
        return self._mail(tensors, peer, tag, is_sent=True)

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to receive a tensor from a rank."""
        return self._mail(tensors, peer, tag, is_sent=False)

    def recv_anysource(self, tensors: list[Any], tag: int) -> Any:
        """Begin to receive a tensor from whichever rank sends one with the tag."""
        return self._mail(tensors, None, tag, is_sent=False)

    def barrier(self, opts: Any) -> Any:
        """Wait until all ranks are here."""
        self._call(opts, lambda _: self._collectives.barrier())
        return _done([])

    def shutdown(self) -> None:
        """Leave the group, waiting for nobody."""
        self._leave()

    def abort(self) -> None:
        """Leave the group because something has failed."""
        self._leave(RuntimeError("abort"))

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long calls wait for ranks that do not come."""
        self._seconds = timeout.total_seconds()

    @property
    def _device_types(self) -> list[torch.device]:
        # PyTorch asks which tensors a group takes, to choose some that hold a program's state. Those of other backends
        # (``elsewhere``) are not named: it would ask for these backends in C++.
        return [torch.device("cpu")]

    def supports_tensor_alloc(self, _device: Any) -> bool:
        """Tell PyTorch that it is to allocate tensors itself."""
        return False

    def _get_backend(self, device: torch.device) -> Any:
        # Whoever finds the CPU above asks what takes its tensors; there is nothing but this group.
        return self if device in self._device_types else super()._get_backend(device)

    def get_group_store(self) -> Any:
        """Return the store through which the ranks have met."""
        return self._store

    def _set_group_name(self, name: str) -> None:
        # PyTorch's own attribute reads it from a backend in C++, which this group does not have.
        self._name = name

    @property
    def group_name(self) -> str:
        """The name under which PyTorch knows the group; a device mesh asks for it."""
        return self._name

    pg_name = group_name  # another place in PyTorch asks for it so

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name under which the backend is registered."""
        return _NAME

    def _call(self, opts: Any, body: Callable[[Flat], _Result]) -> _Result:
        """Call ``body`` when it is this thread's turn, and write into the tensors what they are to hold."""
        # No context manager: an interrupt where its ``__exit__`` begins would keep the turn for ever.
        turn = self._take_turn()
        try:
            return self._made(opts, body)
        finally:
            turn.release()

    @one_call
    def _made(self, opts: Any, body: Callable[[Flat], _Result]) -> _Result:
        seconds = 0.0 if opts is None else opts.timeout.total_seconds()
        self._link.timeout_seconds = seconds if seconds > 0 else self._seconds
        flat = Flat()
        result = body(flat)
        flat.finish()
        return result

    def _take_turn(self) -> Turn:
        self._check_process()  # a thread that a forked child does not have may hold the turn
        self._turns.check()
        try:
            return self._turns.take()
        except BaseException as error:  # of a signal handler: this rank does not make the call that the others make
            self._link.close(error)
            raise

    def elsewhere(self, device: str) -> Any:
        """Return the group of the backend that has a device in this group's string of backends; None if none has."""
        turn = self._take_turn()
        try:
            return self._elsewhere.group(self, device, self._seconds)
        finally:
            turn.release()

    def shared_mean(self, tensor: Any) -> Any:
        """Return the mean of all ranks' tensors, flat, in memory that they share: it must not be written.

        A tensor that is empty or does not fit there becomes the mean itself, and is returned.
        """
        host = memory(tensor.detach())
        if host is None or not host.nbytes or tensor.nbytes + _LINE > self._link.result_bytes:
            distributed.all_reduce(tensor, op=distributed.ReduceOp.AVG, group=self)
            return tensor
        return self._call(None, lambda _: read_only(self._reductions.all_reduce(host, "mean").value, tensor.dtype))

    def _mail(self, tensors: list[Any], peer: int | None, tag: int, *, is_sent: bool) -> Transfer:
        self._check_process()
        tag, peer = check_tag(tag), None if peer is None else check_rank(peer, self._link.size)
        until, post = time.monotonic() + self._seconds, self._mailbox.post
        transfer = Transfer(peer, tag, tensors[0], rank=self._link.rank, is_sent=is_sent, until=until, given_up=post)
        post(transfer)
        return transfer

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise GroupError.forked(self._link.rank)

    def _leave(self, error: Exception | None = None) -> None:
        self._link.close(error)
        self._mailbox.close()

    def _reduce(self, tensors: list[Any], opts: Any, root: int | None) -> Any:
        def body(flat: Flat) -> None:
            if root is not None:
                check_rank(root, self._link.size)
            is_wanted = root in {None, self._link.rank}
            op = op_of(opts, tensors)
            flats = [flat.target(one, keeps=True) if is_wanted else flat.source(one) for one in tensors]
            for batch, which in parts_of(self._link, cut_in_place(flats, self._link.result_bytes), flats):
                part = [one for [one] in batch]
                self._reductions.all_reduce(part, op, out=part, root=root, cut=which)

        self._call(opts, body)
        return _done(tensors)

    def _reduce_scatter(self, outputs: list[Any], find: Callable[[], list[list[Any]]], opts: Any) -> Any:
        """Reduce the lists that ``find`` finds: for each output, one tensor for each rank."""
        rank, size = self._link.rank, self._link.size

        def body(flat: Flat) -> None:
            op = op_of(opts, outputs)
            given = [[flat.source(part) for part in column] for column in find()]
            brought, ends = [*itertools.chain(*given)], [flat.target(output) for output in outputs]
            for column, end in zip(given, ends, strict=True):
                check_count("reduce_scatter", column, size)
                check_sizes("reduce_scatter", [end], [column[rank]])
            for batch, which in parts_of(self._link, cut_apart(given, ends, self._link.result_bytes), brought):
                rows = [[column[index] for column in batch] for index in range(size)]
                self._reductions.reduce_scatter(rows, op, [column[-1] for column in batch], cut=which)

        self._call(opts, body)
        return _done(outputs)

    def _all_gather(self, find: Callable[[], list[list[Any]]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into the lists that ``find`` finds: for each tensor, one place for each rank."""
        rank, size = self._link.rank, self._link.size

        def body(flat: Flat) -> list[Any]:
            outputs = find()
            given = [flat.source(tensor) for tensor in inputs]
            taken = [[flat.target(tensor) for tensor in column] for column in outputs]
            for own, column in zip(given, taken, strict=True):
                check_count("all_gather", column, size)
                check_sizes("all_gather", [column[rank]], [own])
            ends = [end for column in taken for end in column]
            pieces = laid_out(ends)
            sources = [piece(at, own) for (at, _, _), own in zip(pieces[rank::size], given, strict=True)]
            move(self._link, Stream(sum(e.nbytes for e in ends), sources, pieces), "all_gather", words(ends))
            return [output for column in outputs for output in column]

        return _done(self._call(opts, body))

    def _exchange(self, find: Callable[[], tuple[list[Any], list[Any]]], result: list[Any], opts: Any) -> Any:
        """Make an all-to-all of the tensors that ``find`` finds: those to send, and those to write."""
        rank, size = self._link.rank, self._link.size

        def body(flat: Flat) -> None:
            inputs, outputs = find()
            given, taken = [flat.source(one) for one in inputs], [flat.target(one) for one in outputs]
            if {len(given), len(taken)} != {size} or len({one.dtype for one in (*given, *taken)}) != 1:
                raise ProcessGroupError.exchange(size)
            layout = str(given[0].dtype)
            sent, expected = [one.numel() for one in given], [one.numel() for one in taken]
            counts = tell_counts(self._link, sent, expected, layout)
            nbytes = [count * given[0].itemsize for row in counts for count in row]
            starts = [0, *itertools.accumulate(nbytes)]
            own = [piece(starts[rank * size + index], one) for index, one in enumerate(given)]
            ends = [piece(starts[index * size + rank], one) for index, one in enumerate(taken)]
            move(self._link, Stream(starts[-1], own, ends), "all_to_all", layout)

        self._call(opts, body)
        return _done(result)


def make(store: Any, rank: int, size: int, timeout: timedelta) -> TreefoldProcessGroup:
    """Make a process group for ``torch.distributed``.

    Raises:
        ConnectError: some ranks did not come in time, or are on another host.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    return TreefoldProcessGroup(store, rank, size, timeout)


def register() -> None:
    """Make the backend known to ``torch.distributed``."""
    distributed.Backend.register_backend(_NAME, make, devices=["cpu"])


def _done(result: Any) -> Any:
    """Return work that is complete."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return _work_of(future)


@atexit.register
def _close_all() -> None:
    for group in list(_open):
        group.shutdown()
