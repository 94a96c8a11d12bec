"""Sums that go on, over all ranks: one SHA, whatever the ranks and the hosts."""

import numpy as np
import pytest
from partial_ranks import expected, mean_over, scattered_over
from rank_processes import World
from torch_ranks import hosts as on_hosts
from torch_ranks import run

from treefold.errors import TreefoldError
from treefold.partials import Mean

ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def both(me):
    return [*mean_over(me.group), scattered_over(me.group)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_is_one_sha_on_one_host(ranks, size):
    ended = ranks.run(World(both, size))
    assert [one.error for one in ended] == [None] * size
    assert [one.value for one in ended] == [expected()] * size


@pytest.mark.parametrize(
    "layout",
    [
        ((0,), (1,)),
        ((0, 2), (1,)),
        ((0, 1), (2, 3)),
        ((0,), (1, 2), (3,)),
        ((0, 3), (1, 4), (2, 5)),
        ((0, 4, 2), (1, 3, 5)),
    ],
    ids=str,
)
def test_is_one_sha_over_hosts(layout):
    size = sum(map(len, layout))
    done = run(on_hosts.partials, size, layout, backend="gloo", environment=ON_LOOPBACK)
    assert done == [expected()] * size


def differing(me, case):
    """Ask for a mean that differs from rank to rank; return the error's sentence, and that the group goes on."""
    mean = Mean()
    value = {"a": np.ones(3, np.float32), "b": 1}
    if me.rank == 1:
        value = {"shape": {"a": np.ones(4, np.float32), "b": 1}, "name": {"a": np.ones(3, np.float32)}}.get(case, value)
    if case == "flag":
        value["b"] = bool(me.rank)
    if case != "nothing" or me.rank != 1:
        mean.add(value, weight=int(case != "weight"))
    with pytest.raises(TreefoldError) as caught:
        mean.result(group=me.group)
    me.group.barrier()
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("shape", "Rank 1's value is float32 (4,) at ['a'], and rank 0's are float32 (3,)"),
        ("name", "Rank 1's value has no leaf at ['b']"),
        ("flag", "do not agree on ['b']"),
        ("nothing", "Rank 1 has added nothing"),
        ("weight", "weight above 0"),
    ],
)
def test_ranks_that_differ_are_refused_on_all(ranks, case, words):
    said = {one.value for one in ranks.run(World(differing, 3, {"case": case}))}
    assert len(said) == 1
    assert words in said.pop()
