"""``Group``: processes that reduce together."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from treefold.backends import HostArray, backend_of, refusal_of
from treefold.backends.tracing import Like, as_written
from treefold.calls.reader import read_shape
from treefold.errors import ArgumentError, DtypeError
from treefold.fold import Fold
from treefold.group.collectives import Collectives
from treefold.group.contributions import read_outs_of_part, structure_of
from treefold.group.reductions import Reductions
from treefold.group.traced_calls import call_later, check_untraced, tracing_backend
from treefold.group.transport.link import GroupLink, one_call
from treefold.plan import Plan
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import flatten, unflatten

T = TypeVar("T")


class Group:
    """Ranks that reduce together: every method is called by all of them, in the same order.

    A value is this rank's replica: an array or a pytree of arrays; ``PerReplica([…])`` brings several. The result is
    the same, bit for bit, as in one process that holds all replicas. A call that fails raises on all ranks, and leaves
    outputs as they were. A group is a context manager. Only one thread at a time may call it.
    """

    def __init__(self, link: GroupLink) -> None:
        """Take over a link that ``connect`` has made."""
        self._link = link
        self._collectives = Collectives(link)
        self._reductions = Reductions(link)
        _open.add(self)
        atexit.unregister(_close_all)
        atexit.register(_close_all)  # the last to register is the first to run: before PyTorch and MPI end

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._link.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._link.size

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host."""
        return self._link.layout.hosts

    @property
    def guarantee(self) -> str:
        """The promise of sums and means: ``"exact"`` or ``"per_plan"``."""
        return self._link.layout.guarantee

    @as_written
    @one_call
    def all_reduce(self, value: T, op: ReduceOpLike = "sum", *, out: Any = None, weights: Any = None) -> T:
        """Return the reduction of all ranks' values.

        Large results of NumPy and JAX lie in memory that the ranks share, and are read-only. Pass ``out`` for a result
        that can be written.

        Args:
            value: An array, a pytree of arrays, or a ``PerReplica`` of this rank's replicas. Shapes and dtypes are the
                same on all ranks.
            op: A ``ReduceOp`` or its name; the sum by default.
            out: Arrays of this process that take the result, such as ``value`` itself. None: new arrays.
            weights: The weight of this rank's replica, or a sequence with one for each of its replicas; only for MEAN.
                None: all replicas weigh the same.

        Returns:
            The result, with the structure and the shapes of one replica.

        Raises:
            TreefoldError: one of its kinds, on all ranks; see ``treefold.errors``.

        """
        result: T = self._reductions.all_reduce(value, op, out=out, weights=weights).value
        return result

    @as_written
    @one_call
    def reduce(self, value: T, op: ReduceOpLike = "sum", *, root: int) -> T | None:
        """Return the reduction of all ranks' values on rank ``root``, and None on the others.

        Args:
            value: An array, a pytree of arrays, or a ``PerReplica`` of this rank's replicas. Shapes and dtypes are the
                same on all ranks.
            op: A ``ReduceOp`` or its name; the sum by default.
            root: The rank that gets the result, from 0.

        Returns:
            The result on ``root``, with the structure and the shapes of one replica; None on every other rank.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T | None = self._reductions.all_reduce(value, op, root=self._checked_root(root)).value
        return result

    @as_written
    @one_call
    def reduce_scatter(self, value: T, op: ReduceOpLike = "sum", axis: int = 0, *, out: Any = None) -> T:
        """Reduce all ranks' values, cut the result along ``axis`` into one equal part per rank, and return this rank's.

        Args:
            value: An array or a pytree of arrays. Shapes and dtypes are the same on all ranks.
            op: A ``ReduceOp`` or its name; the sum by default.
            axis: The axis to cut along; negative numbers count from the end. The number of ranks divides its length.
            out: Arrays of this process that take the result, such as views of this rank's part of ``value``. None: new
                arrays.

        Returns:
            Part ``rank`` of the result. It is ``1 / size`` as long as the value along ``axis``.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("reduce_scatter with out=", out)
            like = Fold(ReduceOp.parse(op))
            later: T = call_later(
                backend,
                value,
                lambda given: self.reduce_scatter(given, like.op, axis),
                lambda array, _: Like(array, like, axis),
            )
            return later
        leaves, structure = flatten(value)
        columns = [cut_equally(array, axis, self.size) for array in leaves]
        parts = [[column[rank] for column in columns] for rank in range(self.size)]
        outs = () if out is None else read_outs_of_part(value, op, parts[self.rank], out)
        cut = f"{structure_of(structure)} along axis {axis}"
        own = self._reductions.reduce_scatter(parts, op, outs, cut=cut)
        result: T = unflatten(structure, own)
        return result

    @as_written
    @one_call
    def broadcast(self, value: T, root: int = 0, *, out: Any = None) -> T:
        """Return rank ``root``'s value on all ranks.

        Args:
            value: On ``root`` the array or the pytree of arrays to send. On the others arrays of the same shapes and
                dtypes, in the same structure; their contents do not matter.
            root: The rank that sends its value; 0 by default.
            out: Arrays of this process that take the result, such as ``value`` itself. None: new arrays.

        Returns:
            The value, with the structure, shapes and dtypes of ``value``; ``out`` if it was given.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T = self._collectives.broadcast(value, self._checked_root(root), out)
        return result

    @as_written
    @one_call
    def all_gather(self, value: T, axis: int = 0, *, out: Any = None) -> T:
        """Return all ranks' arrays, concatenated along ``axis`` in order of ranks.

        Args:
            value: An array, a pytree of arrays, or a ``PerReplica`` of this rank's replicas. Dtypes are the same on all
                ranks, and so are shapes, except for the length along ``axis``.
            axis: The axis to concatenate along; negative numbers count from the end.
            out: Arrays of this process that take the result; ``value`` may be a part of them. None: new arrays.

        Returns:
            The structure of one replica; along ``axis`` each array is as long as those of all replicas together.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T = self._collectives.gather(value, axis, None, out=out)
        return result

    @as_written
    @one_call
    def gather(self, value: T, root: int, axis: int = 0, *, out: Any = None) -> T | None:
        """Return all ranks' arrays, concatenated along ``axis``, on rank ``root``, and None on the others.

        Args:
            value: An array, a pytree of arrays, or a ``PerReplica`` of this rank's replicas. Dtypes are the same on all
                ranks, and so are shapes, except for the length along ``axis``.
            root: The rank that gets the result, from 0.
            axis: The axis to concatenate along; negative numbers count from the end.
            out: On ``root`` arrays of this process that take the result; other ranks ignore it. None: new arrays.

        Returns:
            On ``root`` the structure of one replica, with arrays as long as those of all replicas together; else None.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T | None = self._collectives.gather(value, axis, self._checked_root(root), out=out)
        return result

    @as_written
    @one_call
    def scatter(self, value: T, root: int, axis: int = 0, *, out: Any = None) -> T:
        """Cut rank ``root``'s arrays along ``axis`` into one part per rank, in order, and return this rank's part.

        Args:
            value: On ``root`` the array or the pytree of arrays to cut. On the others arrays with the shapes and dtypes
                of the part that the rank expects; their contents do not matter. Parts may differ in length.
            root: The rank that sends, from 0. It keeps the part that no other rank expects.
            axis: The axis to cut along; negative numbers count from the end.
            out: Arrays of this process that take the result. None: new arrays.

        Returns:
            This rank's part, with the structure, shapes and dtypes of ``value`` on every rank but ``root``.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T = self._collectives.scatter(value, self._checked_root(root), axis, out)
        return result

    @as_written
    @one_call
    def all_to_all(self, value: T, axis: int = 0, *, lengths: Sequence[int] | None = None, out: Any = None) -> T:
        """Send part r of each array to rank r; return the parts that this rank gets, concatenated along ``axis``.

        Args:
            value: An array or a pytree of arrays. Dtypes are the same on all ranks, and so are shapes, except for the
                length along ``axis``.
            axis: The axis to cut and to concatenate along; negative numbers count from the end.
            lengths: The length along ``axis`` of the part for each rank. Their sum is the length of the arrays there.
                Each rank gives its own. None: equal parts.
            out: Arrays of this process that take the result, such as ``value`` itself. None: new arrays.

        Returns:
            The structure of ``value``. Along ``axis`` each array is as long as the parts for this rank together.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        result: T = self._collectives.all_to_all(value, axis, lengths, out)
        return result

    @as_written
    @one_call
    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        self._collectives.barrier()

    def plan(self, value: Any, op: ReduceOpLike = "sum") -> Plan:
        """Return the plan that ``all_reduce`` has if every rank brings as many replicas as this one.

        Nothing is sent, so other ranks need not call.

        Args:
            value: An array, a pytree of arrays, or a ``PerReplica``, as for ``all_reduce``. Only shapes and dtypes
                matter.
            op: A ``ReduceOp`` or its name; the sum by default.

        Returns:
            The plan. ``print`` shows its steps.

        Raises:
            TreefoldError: one of its kinds.

        """
        return self._reductions.plan(value, op)

    @property
    def link(self) -> GroupLink:
        """The link between the ranks, for ops objects, which make their calls through this group.

        :meta private:
        """
        return self._link

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> HostArray:
        """Return an uninitialised array in memory that all ranks of this host can read: reductions do not copy it.

        Only this process may write to the array. Its memory is freed with its last view. Other ranks need not call.

        Args:
            shape: The length of each axis, or one number for a flat array.
            dtype: The dtype of its elements; float32 by default.

        Returns:
            A NumPy array in row-major order.

        Raises:
            SharedMemoryError: there is no memory.
            DtypeError: elements are Python objects.

        """
        lengths, of = read_shape((shape,) if isinstance(shape, int) else shape), np.dtype(dtype)
        if of.hasobject:
            raise DtypeError.of_objects(str(of))
        return self._link.empty(lengths, of)

    def without(self, ranks: Collection[int], *, connect_timeout_seconds: float = 60.0) -> Group:
        """Return a group without the given ranks, and close this one. All ranks that stay call it.

        Use it over gloo after ranks were lost: ``group = group.without(error.ranks)``. The ranks that stay are numbered
        anew from 0, in their order. If two parts of a group each leave the other out, at most one of them goes on. If
        more ranks are lost meanwhile, or lost ones come back, all ranks ``connect`` again.

        Args:
            ranks: The ranks to leave out, by their numbers in this group; not this rank.
            connect_timeout_seconds: How long to wait for the ranks that stay, in seconds; 60 by default.

        Returns:
            The group of the ranks that stay.

        Raises:
            GroupError: others go on without this rank, or nothing can decide which ranks do, as over MPI.
            ConnectError: some of the ranks that go on did not come.

        """
        return Group(self._link.without(ranks, connect_timeout_seconds))

    def close(self) -> None:
        """Leave the group without waiting for the others. Results stay readable; later calls of other ranks raise."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close(error)

    def __repr__(self) -> str:
        return f"<treefold.Group: rank {self.rank} of {self.size}>"

    def _checked_root(self, root: object) -> int:
        if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < self.size:
            raise ArgumentError.root(root, self.size)
        return root


_open: weakref.WeakSet[Group] = weakref.WeakSet()


def _close_all() -> None:
    # While the interpreter still works, so that the others hear ``left`` and not that this rank was lost.
    for group in list(_open):
        group.close()


_OWNER = "The value"


def cut_equally(array: Any, axis: object, count: int) -> list[Any]:
    """Return ``count`` parts of an array, equal in length along ``axis``, in its framework.

    Raises:
        ArgumentError: it is no array, has no such axis, or ``count`` does not divide its length there.

    """
    backend = backend_of(array)
    refusal = refusal_of(array) if backend is None else backend.refusal(array)
    if refusal is not None:
        raise ArgumentError.unsupported_array(_OWNER, "", refusal.got, refusal.advice)
    if backend is None:
        raise ArgumentError.not_a_value(array, _OWNER)
    shape, _ = backend.shape_dtype(array)
    is_axis = isinstance(axis, int) and not isinstance(axis, bool) and -len(shape) <= axis < len(shape)
    if not isinstance(axis, int) or not is_axis or shape[axis] % count:
        raise ArgumentError.unequal_parts(shape, axis, count)
    axis %= len(shape)
    first = backend.moveaxis(array, axis, 0)
    flat = backend.ravel_concat([first])
    lengths = (shape[axis] // count, *shape[:axis], *shape[axis + 1 :])
    step = flat.shape[0] // count
    parts = [backend.reshape(backend.split(flat, i * step, (i + 1) * step), lengths) for i in range(count)]
    return [backend.moveaxis(part, 0, axis) for part in parts] if axis else parts
