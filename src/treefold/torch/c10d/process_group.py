"""PyTorch's backend ``"treefold"``: process groups over treefold's links, on one host or on several.

``import treefold.torch`` registers it. ``torch.distributed.init_process_group("treefold")`` then makes such groups,
under ``torchrun`` and wherever else the other backends run. Reductions have the bits of one process that holds all
ranks' tensors.

A call that fails has changed nothing on any rank, with one exception. Tensors that do not fit into the group's memory
for results (``TREEFOLD_GROUP_BYTES``) are processed in parts: after an error, some of the output may be new and the
rest old.
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from treefold.backends.torch_memory import memory
from treefold.backends.tracing import untraced
from treefold.engines.stores import interfaces
from treefold.errors import GroupError, ProcessGroupError
from treefold.group.bootstrap.connecting import connect_link
from treefold.group.bootstrap.rank_sources import StoreBootstrap
from treefold.group.collectives import Collectives, announce_counts, by_receiver, move
from treefold.group.reductions import Reductions
from treefold.group.transport.link import ByteStream, one_call
from treefold.torch.c10d.calls import CallQueue, CollectiveWork
from treefold.torch.c10d.flat import (
    Flat,
    check_count,
    check_rank,
    check_sizes,
    check_written,
    columns,
    in_memory,
    op_of,
    parts,
    piece,
    read_only,
    rows,
    words,
)
from treefold.torch.c10d.reductions import as_sums, cut_apart, cut_in_place, parts_of, write_means
from treefold.torch.c10d.signatures import Elsewhere, as_pytorchs

_NAME = "treefold"
#: Results are laid out at multiples of this number of bytes.
_LINE = 64
_open = weakref.WeakSet[Any]()
_Result = TypeVar("_Result")
_LOOPBACK = "127.0.0.1"


class Ranks:
    """One rank's end of the link between the ranks. One thread at a time calls its methods, except ``leave``."""

    def __init__(self, store: Any, rank: int, size: int, name: str, seconds: float) -> None:
        """Wait until all ranks have come, and connect them.

        This happens even if the group never has a collective: only connected ranks see that another one has ended.

        Raises:
            ConnectError: Some have not come in ``seconds``, or one has failed.
            SharedMemoryError: This system has no shared memory of the needed kind, or none left.

        """
        self.rank, self.size = rank, size
        bootstrap = StoreBootstrap(store, rank, size, name)
        self.link = self._link = connect_link(bootstrap, seconds, seconds)
        self.collectives = Collectives(self.link)
        self.reductions = Reductions(self.link)
        #: Whether all ranks share a host; and a unique name of this attempt to connect them.
        self.is_one_host, self.attempt = len(self.link.layout.hosts) == 1, bootstrap.attempt

    def own_cores(self) -> set[int]:
        """Return the cores for a thread that makes this rank's calls beside its computing; an empty set: any.

        If computing uses all cores, Linux often puts the threads of two ranks on one core, where they wait for each
        other, while another core is idle. A share of the cores for each rank prevents that. There are no shares over
        several hosts: the threads of treefold's core, which such calls start, would inherit them.
        """
        cores = sorted(os.sched_getaffinity(0))
        if not self.is_one_host or self.size * torch.get_num_threads() < len(cores):
            return set()
        begin, end = (place * len(cores) // self.size for place in (self.rank, self.rank + 1))
        return set(cores[begin : max(begin + 1, end)])

    @one_call
    def make(self, seconds: float, body: Callable[[Flat], _Result]) -> _Result:
        """Make a call, and write its results into tensors; ``seconds``: the most time for one part of it.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, on all ranks.

        """
        self.link.timeout_seconds = seconds
        flat = Flat()
        result = body(flat)
        flat.finish()
        return result

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group without waiting; ``error``: the reason, if there is one."""
        self.link.close(error)


def message_group(store: Store, name: str, rank: int, size: int, timeout: timedelta, *, is_one_host: bool) -> Any:
    """Return a gloo process group for sends and receives only, without waiting for the other ranks.

    Two ranks connect with their first message. On one host, this rank listens on the loopback interface only.

    Args:
        store: The store through which ranks find each other.
        name: The prefix of the group's keys in it.
        rank: This rank.
        size: The number of ranks.
        timeout: The most time for a message.
        is_one_host: Whether all ranks share a host.

    """
    options = ProcessGroupGloo._Options()  # noqa: SLF001 - there is no public way to devices
    options._devices = _devices(is_one_host)  # noqa: SLF001 - as above
    options._threads = 1  # noqa: SLF001 - they run collectives, of which there are none here
    options._timeout = timeout  # noqa: SLF001 - as above
    return ProcessGroupGloo(PrefixStore(f"{name}/messages", store), rank, size, options)


def _devices(is_one_host: bool) -> list[Any]:  # noqa: FBT001 - the one argument
    if is_one_host:
        return [ProcessGroupGloo.create_device(hostname=_LOOPBACK, lazy_init=True)]
    names = [ProcessGroupGloo.create_device(interface=name, lazy_init=True) for name in interfaces()]
    return names or [ProcessGroupGloo.create_default_device(lazy_init=True)]


class Moved(NamedTuple):
    """A collective without arithmetic, as pieces of one stream of bytes.

    Args:
        sizes: The bytes of each piece.
        given: This rank's sources, each with the number of its piece.
        taken: This rank's targets, each with the number of its piece.
        layout: Everything in which ranks must agree, in words.
        result: The value of the work's future.

    """

    sizes: list[int]
    given: list[tuple[int, Any]]
    taken: list[tuple[int, Any]]
    layout: str
    result: list[Any]


@untraced
@as_pytorchs
class TreefoldProcessGroup(distributed.ProcessGroup):  # type: ignore[misc] # mypy does not read torch
    """Ranks that reduce together, with the methods that ``torch.distributed``'s functions call.

    Collectives are made one after the other by a thread of the group's own, or by the caller if it waits for them and
    no other is waiting. A gloo group carries messages.
    """

    #: PyTorch reads this from the result of ``_get_backend``.
    supports_time_estimate = False

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Connect the ranks.

        Raises:
            ConnectError: Some ranks did not come in time.
            SharedMemoryError: This system has no shared memory of the needed kind, or none left.

        """
        super().__init__(rank, size)
        self._name, self._store = "", store
        self._seconds, self._pid = timeout.total_seconds(), os.getpid()
        self._ranks = ranks = Ranks(store, rank, size, _NAME, self._seconds)
        try:
            self._messages = message_group(store, ranks.attempt, rank, size, timeout, is_one_host=ranks.is_one_host)
        except BaseException as error:  # the others would wait for this rank
            ranks.leave(error)
            raise
        self._calls, self._elsewhere = CallQueue(ranks.leave, ranks.own_cores), Elsewhere(_NAME)
        _open.add(self)

    def allreduce(self, tensors: list[Any], opts: Any) -> Any:
        """Reduce each tensor into itself."""
        return self._reduce(tensors, opts, None)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Any], opts: Any) -> Any:
        """Reduce each tensor into the one of the root."""
        return self._reduce(tensors, opts, opts.rootRank)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        """Reduce lists of one tensor for each rank, and give each rank its own."""
        return self._reduce_scatter(outputs, lambda: inputs, opts)

    def reduce_scatter_single(self, output: Any, value: Any, opts: Any) -> Any:
        """Reduce a tensor, and give each rank a part of it."""
        return self.reduce_scatter_single_coalesced([output], [value], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Reduce tensors, and give each rank a part of each."""
        return self._reduce_scatter(outputs, lambda: [parts(value, self._ranks.size) for value in inputs], opts)

    def broadcast(self, tensors: list[Any], opts: Any) -> Any:
        """Copy one rank's tensors into those of the others."""
        is_root = opts.rootRank == self._ranks.rank

        def find(flat: Flat) -> Moved:
            flats = [flat.source(tensor) if is_root else flat.target(tensor) for tensor in tensors]
            pieces = [*enumerate(flats)]
            given, taken = (pieces, []) if is_root else ([], pieces)
            return Moved([one.nbytes for one in flats], given, taken, words(flats), tensors)

        return self._move("broadcast", find, opts, opts.rootRank)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into one list of tensors each, in order of ranks."""
        return self._all_gather(lambda: outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's list of tensors, as a list for each rank."""
        return self._all_gather(lambda: columns("all_gather_coalesced", outputs, len(inputs)), inputs, opts)

    def all_gather_single(self, output: Any, value: Any, opts: Any) -> Any:
        """Copy every rank's tensor into one, in order of ranks."""
        return self.all_gather_single_coalesced([output], [value], opts)

    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into one each, in order of ranks."""
        return self._all_gather(lambda: [parts(check_written(one), self._ranks.size) for one in outputs], inputs, opts)

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensor into a list of them on one rank."""
        return self._move_by_root("gather", inputs, outputs, opts)

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Any:
        """Copy a list of tensors on one rank into one tensor on each."""
        return self._move_by_root("scatter", outputs, inputs, opts)

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any) -> Any:
        """Copy tensor r of every rank's list to rank r."""
        return self._exchange(lambda: (inputs, outputs), outputs, opts)

    def all_to_all_single(
        self, output: Any, value: Any, output_sizes: list[int] | None, input_sizes: list[int] | None, opts: Any
    ) -> Any:
        """Copy part r of every rank's tensor to rank r; without sizes, parts are equal."""
        size = self._ranks.size
        return self._exchange(
            lambda: (rows(value, size, input_sizes), rows(check_written(output), size, output_sizes)), [output], opts
        )

    def send(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to send a tensor to a rank, beside the collectives."""
        return self._messages.send([in_memory(one) for one in tensors], peer, tag)

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to receive a tensor from a rank."""
        return self._messages.recv([check_written(one) for one in tensors], peer, tag)

    def recv_anysource(self, tensors: list[Any], tag: int) -> Any:
        """Begin to receive a tensor with the tag from any rank."""
        return self._messages.recv_anysource([check_written(one) for one in tensors], tag)

    def barrier(self, opts: Any) -> Any:
        """Wait until all ranks are here."""

        def body(_: Flat) -> list[Any]:
            self._ranks.collectives.barrier()
            return []

        return self._call(opts, body)

    def shutdown(self) -> None:
        """Leave the group without waiting."""
        self._leave()

    def abort(self) -> None:
        """Leave the group because of an error."""
        self._leave(RuntimeError("abort"))

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long collectives wait for ranks; gloo cannot change it for messages."""
        self._seconds = timeout.total_seconds()

    @property
    def _device_types(self) -> list[torch.device]:
        # PyTorch reads the devices of a group to choose tensors for a program's state. Devices of other backends
        # (``elsewhere``) are left out: PyTorch would look for these backends in C++.
        return [torch.device("cpu")]

    def supports_tensor_alloc(self, _device: Any) -> bool:
        """Return False: PyTorch allocates tensors itself."""
        return False

    def _get_backend(self, device: torch.device) -> Any:
        # PyTorch finds the CPU in ``_device_types``, and asks for the backend of its tensors: this group itself.
        return self if device in self._device_types else super()._get_backend(device)

    def get_group_store(self) -> Any:
        """Return the store through which the ranks have met."""
        return self._store

    def _set_group_name(self, name: str) -> None:
        # PyTorch's own attribute reads a backend in C++, which this group does not have.
        self._name = name

    @property
    def group_name(self) -> str:
        """The name under which PyTorch knows the group; a device mesh asks for it."""
        return self._name

    pg_name = group_name  # another part of PyTorch reads this name

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name under which the backend is registered."""
        return _NAME

    def _call(self, opts: Any, body: Callable[[Flat], Any]) -> CollectiveWork:
        """Add a call; ``body`` returns the value of its work's future, a list of tensors."""
        seconds = 0.0 if opts is None else opts.timeout.total_seconds()
        seconds, ranks = seconds if seconds > 0 else self._seconds, self._ranks
        is_waited_for = not getattr(opts, "asyncOp", True)  # older releases of PyTorch do not say
        return self._calls.add(lambda: ranks.make(seconds, body), is_waited_for=is_waited_for)

    def elsewhere(self, device: str) -> Any:
        """Return the group of the backend for a device in this group's backend string; None if none has it."""
        return self._elsewhere.group(self, device, self._seconds)

    def shared_mean(self, tensor: Any) -> CollectiveWork:
        """Begin to make the mean of all ranks' tensors, flat, in memory that they share: it must not be written.

        If a tensor is empty or does not fit there, it takes the mean itself, and is the result.
        """
        self.check_process()
        ranks, host = self._ranks, memory(tensor.detach())

        def body(flat: Flat) -> Any:
            if host is None or not host.nbytes or tensor.nbytes + _LINE > ranks.link.result_bytes:
                self._reduce_into(flat, [tensor], "mean", None)
                return tensor
            return read_only(ranks.reductions.all_reduce(host, "mean").value, tensor.dtype)

        return self._call(None, body)

    def check_process(self) -> None:
        """Refuse a call in a forked child.

        Raises:
            GroupError: This process is one.

        """
        if os.getpid() != self._pid:
            raise GroupError.forked(self._ranks.rank)

    def _leave(self, error: Exception | None = None) -> None:
        if os.getpid() != self._pid:
            return
        if error is None:
            self._calls.end()
        self._ranks.leave(error)
        self._calls.join()

    def _reduce(self, tensors: list[Any], opts: Any, root: int | None) -> Any:
        def body(flat: Flat) -> list[Any]:
            if root is not None:
                check_rank(root, self._ranks.size)
            self._reduce_into(flat, tensors, op_of(opts, tensors), root)
            return tensors

        return self._call(opts, body)

    def _reduce_into(self, flat: Flat, tensors: list[Any], op: str, root: int | None) -> None:
        link, is_wanted = self._ranks.link, root in {None, self._ranks.rank}
        given = [flat.target(one, keeps=True) if is_wanted else flat.source(one) for one in tensors]
        flats, how, cut = as_sums(op, given)
        for batch, which in parts_of(link, cut_in_place(flats, link.result_bytes), flats):
            part = [one for [one] in batch]
            self._ranks.reductions.all_reduce(part, how, out=part, root=root, cut=which + cut)
        if cut and is_wanted:
            write_means(given, flats, self._ranks.size)

    def _reduce_scatter(self, outputs: list[Any], find: Callable[[], list[list[Any]]], opts: Any) -> Any:
        """Reduce the lists that ``find`` returns: for each output, one tensor for each rank."""
        rank, size = self._ranks.rank, self._ranks.size

        def body(flat: Flat) -> list[Any]:
            op = op_of(opts, outputs)
            given = [[flat.source(part) for part in column] for column in find()]
            brought, ends = [*itertools.chain(*given)], [flat.target(output) for output in outputs]
            for column, end in zip(given, ends, strict=True):
                check_count("reduce_scatter", column, size)
                check_sizes("reduce_scatter", [end], [column[rank]])
            made, how, cut = as_sums(op, ends)
            halved = [as_sums(op, column)[0] for column in given]
            batches = cut_apart(halved, made, self._ranks.link.result_bytes)
            for batch, which in parts_of(self._ranks.link, batches, brought):
                rows = [[column[index] for column in batch] for index in range(size)]
                self._ranks.reductions.reduce_scatter(rows, how, [column[-1] for column in batch], cut=which + cut)
            if cut:
                write_means(ends, made, size)
            return outputs

        return self._call(opts, body)

    def _all_gather(self, find: Callable[[], list[list[Any]]], inputs: list[Any], opts: Any) -> Any:
        """Copy every rank's tensors into the lists that ``find`` returns: for each tensor, one target for each rank."""
        rank, size = self._ranks.rank, self._ranks.size

        def moved(flat: Flat) -> Moved:
            outputs = find()
            given = [flat.source(tensor) for tensor in inputs]
            taken = [[flat.target(tensor) for tensor in column] for column in outputs]
            for own, column in zip(given, taken, strict=True):
                check_count("all_gather", column, size)
                check_sizes("all_gather", [column[rank]], [own])
            ends, result = [*itertools.chain(*taken)], [*itertools.chain(*outputs)]
            own_places = range(rank, len(ends), size)
            pieces = [*zip(own_places, given, strict=True)]
            return Moved([end.nbytes for end in ends], pieces, [*enumerate(ends)], words(ends), result)

        return self._move("all_gather", moved, opts)

    def _move_by_root(self, collective: str, tensors: list[Any], lists: list[list[Any]], opts: Any) -> Any:
        """Gather every rank's tensor into a list of the root's, or scatter that list."""
        rank, size, root, gathers = self._ranks.rank, self._ranks.size, opts.rootRank, collective == "gather"

        def find(flat: Flat) -> Moved:
            own = flat.source(tensors[0]) if gathers else flat.target(tensors[0])
            at_root = lists[0] if root == rank else []
            whole = [flat.target(one) if gathers else flat.source(one) for one in at_root]
            if root == rank:
                check_count(collective, whole, size)
            check_sizes(collective, whole, [own] * len(whole))
            given, taken = [(rank, own)], [*enumerate(whole)]
            if not gathers:
                given, taken = taken, given
            return Moved([own.nbytes] * size, given, taken, words([own]), at_root if gathers else tensors)

        return self._move(collective, find, opts, root)

    def _exchange(self, find: Callable[[], tuple[list[Any], list[Any]]], result: list[Any], opts: Any) -> Any:
        """Make an all-to-all of the tensors that ``find`` returns: those to send, and those to write."""
        rank, size = self._ranks.rank, self._ranks.size

        def moved(flat: Flat) -> Moved:
            inputs, outputs = find()
            given, taken = [flat.source(one) for one in inputs], [flat.target(one) for one in outputs]
            if {len(given), len(taken)} != {size} or len({one.dtype for one in (*given, *taken)}) != 1:
                raise ProcessGroupError.exchange(size)
            layout = str(given[0].dtype)
            sent, expected = [one.numel() for one in given], [one.numel() for one in taken]
            counts = announce_counts(self._ranks.link, sent, expected, layout)
            sizes = [count * given[0].itemsize for count in by_receiver(counts)]
            pieces = [*zip(range(rank, size * size, size), given, strict=True)]
            return Moved(sizes, pieces, [*enumerate(taken, rank * size)], layout, result)

        return self._move("all_to_all", moved, opts)

    def _move(self, collective: str, find: Callable[[Flat], Moved], opts: Any, root: int | None = None) -> Any:
        """Add a call that moves the pieces that ``find`` returns."""

        def body(flat: Flat) -> list[Any]:
            if root is not None:
                check_rank(root, self._ranks.size)
            moved = find(flat)
            starts = [*itertools.accumulate(moved.sizes, initial=0)]
            sources, targets = ([piece(starts[number], one) for number, one in some] for some in moved[1:3])
            stream = ByteStream(max(starts[-1], 1), sources, targets)
            move(self._ranks.link, stream, collective, moved.layout, root=root)
            return moved.result

        return self._call(opts, body)


def register() -> None:
    """Register the backend with ``torch.distributed``."""
    distributed.Backend.register_backend(_NAME, TreefoldProcessGroup, devices=["cpu"])


@atexit.register
def _close_all() -> None:
    for group in list(_open):
        group.shutdown()
