"""The contenders: a name, the launcher of its ranks, and a function that each rank calls once to get an all-reduce.

Another contender is one more function here, and its line in ``BASELINES``.
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hosts_bench.raw import Exchange

Array = NDArray[np.float32]
#: Gets what this rank brings, which it may overwrite, and returns the sum over all ranks; None if it computes nothing.
AllReduce = Callable[[Array], Array | None]
#: How long ranks wait for each other.
_CONNECT_SECONDS = 10


@dataclass(slots=True)
class Rank:
    """One process of a job.

    Attributes:
        hosts: The host of every rank.
        addresses: The address of every NIC of every host.
        shares: The share of the value that each host owns, in the row under measurement.
        rates: The rate of every host's port, in that row.

    """

    rank: int
    hosts: tuple[int, ...]
    addresses: tuple[tuple[str, ...], ...]
    shares: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()


def gloo(rank: Rank) -> AllReduce:
    """PyTorch's all-reduce; it uses one NIC per call."""
    del rank
    torch, distributed = _torch()

    def all_reduce(array: Array) -> Array:
        distributed.all_reduce(torch.from_numpy(array))
        return array

    return all_reduce


def gloo_by_parts(rank: Rank) -> AllReduce:
    """PyTorch's all-reduce of as many parts at once as there are NICs: calls of a group use its NICs in turn."""
    torch, distributed = _torch()
    kind = distributed.ProcessGroupGloo
    options = kind._Options()
    nics = range(len(rank.addresses[0]))
    options._devices = [kind.create_device(interface=f"eth{nic}") for nic in nics]
    options._threads = 2 * len(nics)
    options._timeout = dt.timedelta(seconds=60)
    store = distributed.PrefixStore("by parts", distributed.distributed_c10d._get_default_store())
    group = kind(store, rank.rank, len(rank.hosts), options)

    def all_reduce(array: Array) -> Array:
        works = [group.allreduce([part]) for part in torch.from_numpy(array).chunk(len(nics))]
        for work in works:
            work.wait()
        return array

    return all_reduce


def treefold_on_gloo(rank: Rank) -> AllReduce:
    """Treefold between PyTorch's ranks, over all NICs."""
    return _treefold(_on_all_nics(rank), rank)


def treefold_per_plan_on_gloo(rank: Rank) -> AllReduce:
    """Treefold between PyTorch's ranks, folded on each host first."""
    return _treefold(_on_all_nics(rank), rank, guarantee="per_plan")


def mpich(rank: Rank) -> AllReduce:
    """MPI's own all-reduce, in place."""
    del rank
    mpi = _mpi()

    def all_reduce(array: Array) -> Array:
        mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, array)
        return array

    return all_reduce


def treefold_on_mpi(rank: Rank) -> AllReduce:
    """Treefold between MPI's ranks."""
    return _treefold(_mpi().COMM_WORLD, rank)


def treefold_per_plan_on_mpi(rank: Rank) -> AllReduce:
    """Treefold between MPI's ranks, folded on each host first."""
    return _treefold(_mpi().COMM_WORLD, rank, guarantee="per_plan")


def raw(rank: Rank) -> AllReduce:
    """As many bytes over sockets, without arithmetic: the limit of the hosts here."""
    exchange = Exchange(rank.hosts, rank.addresses, rank.rank)

    def all_reduce(array: Array) -> None:
        exchange.move(array, rank.shares)

    return all_reduce


@dataclass(frozen=True, slots=True)
class Baseline:
    """A contender of the table.

    Attributes:
        launcher: The launcher of its ranks.
        make: Called once by each rank; returns the all-reduce.
        least_nics: The fewest NICs of a host for which it makes a difference.
        least_ranks: The fewest ranks of a host for which it makes a difference.
        is_limit: True if it computes nothing; calls of few bytes have no such limit.

    """

    launcher: str
    make: Callable[[Rank], AllReduce]
    least_nics: int = 1
    least_ranks: int = 1
    is_limit: bool = False


BASELINES = {
    "raw sockets": Baseline("variables", raw, is_limit=True),
    "gloo": Baseline("variables", gloo),
    "gloo, part per NIC": Baseline("variables", gloo_by_parts, least_nics=2),
    "treefold on gloo": Baseline("variables", treefold_on_gloo),
    "treefold on gloo, per_plan": Baseline("variables", treefold_per_plan_on_gloo, least_ranks=2),
    "MPICH": Baseline("mpiexec", mpich),
    "treefold on MPI": Baseline("mpiexec", treefold_on_mpi),
    "treefold on MPI, per_plan": Baseline("mpiexec", treefold_per_plan_on_mpi, least_ranks=2),
}
#: What a launcher's ranks import.
NEEDS = {"variables": "torch", "mpiexec": "mpi4py"}


def _treefold(source: Any, rank: Rank, guarantee: str = "exact") -> AllReduce:
    """Return treefold's all-reduce, with the speeds of ports if they differ."""
    connect = importlib.import_module("treefold").connect
    groups: dict[tuple[float, ...], Any] = {}

    def all_reduce(array: Array) -> Array:
        rates = rank.rates if len(set(rank.rates)) > 1 else ()
        if rates not in groups:
            topology = _switch(rates) if rates else None
            seconds = _CONNECT_SECONDS
            groups[rates] = connect(source, connect_timeout_seconds=seconds, guarantee=guarantee, topology=topology)
        reduced: Array = groups[rates].all_reduce(array, "sum", out=array)
        return reduced

    all_reduce(np.zeros(1, np.float32))  # refused now, if it is
    return all_reduce


def _switch(rates: tuple[float, ...]) -> Any:
    builder = importlib.import_module("treefold.topology").TopologyBuilder("cluster").switch("switch")
    for host, rate in enumerate(rates):
        builder = builder.device(f"cpu:{host}").link(f"cpu:{host}", "switch", kind="net", gb_per_s=rate / 8000)
    return builder.build()


def _on_all_nics(rank: Rank) -> Any:
    world = _torch()[1].group.WORLD
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join(f"eth{nic}" for nic in range(len(rank.addresses[0])))
    return world


def _torch() -> tuple[Any, Any]:
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_initialized():
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    return torch, distributed


def _mpi() -> Any:
    return importlib.import_module("mpi4py.MPI")
