"""Things that groups never do: open ports, pickle, depend on the vector level or on hash seeds."""

import multiprocessing
import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import pytest
from rank_processes import RankProcesses, World

import treefold
from treefold import IndexedSlices, PerReplica
from treefold.execution.native import vector_levels

_LARGE = 40_000


def call_everything(group):
    """Make every call of a group; return the last sum."""
    mine = np.full(_LARGE, 2.0**group.rank)
    group.all_reduce({"a": mine, "b": [mine[:3]]}, "mean", weights=np.float32(1 + group.rank))
    group.all_reduce(IndexedSlices(np.ones((group.rank, 2)), np.arange(group.rank), (4, 2)))
    group.reduce(mine, root=0)
    group.reduce_scatter(mine[: 120 * group.size])
    group.broadcast(mine, root=1)
    group.all_gather(mine[: 1 + group.rank])
    group.gather(mine, root=0)
    group.barrier()
    group.empty(3)
    treefold.HierarchicalCopyAllReduce(group=group).reduce("sum", PerReplica([mine, mine]), ["cpu:0", "cpu:1"])
    return float(group.all_reduce(mine)[-1])


def audit(me):
    """Connect and call under an audit; return what was seen."""
    seen = []
    mail = ("__new__", "bind", "connect", "sendto", "getaddrinfo", "gethostbyname")
    watched = {f"socket.{name}" for name in mail} | {"pickle.find_class"}

    def hook(event, arguments):
        if event in watched:
            seen.append((event, str(arguments[1:] if event == "socket.__new__" else arguments)))

    sys.addaudithook(hook)
    for name in ("dumps", "dump", "loads", "load", "Pickler", "Unpickler"):
        was = getattr(pickle, name)
        setattr(pickle, name, lambda *given, _was=was, _name=name: (seen.append((_name, "")), _was(*given))[1])
    me.group = treefold.connect(me.ticket)
    total = call_everything(me.group)
    me.group.close()
    return total, [one for one in seen if not one[0].startswith("socket")], [one for one in seen if "socket" in one[0]]


class TestAudits:
    def test_no_network_and_no_pickle(self, ranks):
        """All sockets are of the family AF_UNIX, at a path; nothing is pickled, here or there."""
        for one in ranks.run(World(audit, 3, timeout_seconds=None)):
            total, pickles, sockets = one.value
            assert (total, pickles) == (7.0, [])
            made = [arguments for event, arguments in sockets if event == "socket.__new__"]
            assert made
            assert {arguments.split(",")[0].strip("(") for arguments in made} <= {str(int(socket.AF_UNIX)), "-1"}, made
            others = [arguments for event, arguments in sockets if event != "socket.__new__"]
            assert all("/treefold-" in arguments for arguments in others), others


_SCRIPT = """
import hashlib, sys
import numpy as np, optree, treefold
from treefold import PerReplica
class Layer:
    def __init__(self, *arrays):
        self.arrays = arrays
# as text, their order is another one under each hash seed
tags = frozenset({"frozen", "it's (sparse", ("tied, {", frozenset({frozenset({"a", "b"}), frozenset({"c", "d"})}))})
put_together = lambda _, arrays: Layer(*arrays)
optree.register_pytree_node(Layer, lambda one: (one.arrays, tags), put_together, namespace="treefold")
rng = np.random.default_rng(5)
with treefold.connect(sys.argv[1]) as group:
    ops = treefold.HierarchicalCopyAllReduce(group=group)
    tree = {name: rng.normal(size=30_011).astype(np.float32) for name in ("weights", "bias", "kernel", "scale")}
    tree["layer"] = Layer(tree["bias"])
    made = ops.reduce("mean", PerReplica([tree] * (1 + group.rank)), "cpu:0")
    found = hashlib.sha256(b"".join(made[0][name].tobytes() for name in ("weights", "bias"))).hexdigest()
    print(made.plan.digest, found)
"""


class TestPlans:
    def test_do_not_depend_on_vector_levels_or_hash_seeds(self):
        levels, size = vector_levels(), 3
        said = set()
        for shift in range(2):
            started = []
            for rank, ticket in enumerate(treefold.Ticket.for_ranks(size)):
                level = levels[(rank + shift) % len(levels)]
                settings = {"PYTHONHASHSEED": str(10 * shift + rank), "TREEFOLD_VECTOR_LEVEL": level}
                command = [sys.executable, "-c", _SCRIPT, ticket]
                started.append(subprocess.Popen(command, env=os.environ | settings, stdout=subprocess.PIPE))
            said |= {process.communicate(timeout=60)[0] for process in started}
        assert len(said) == 1
        assert len(said.pop().split()) == 2


_LAUNCHER = """
import multiprocessing, sys
import numpy as np, treefold

def work(ticket, sums):
    with treefold.connect(ticket) as group:
        sums.put(float(group.all_reduce(np.full(9, 2.0**group.rank))[0]))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    sums = context.SimpleQueue()
    processes = [context.Process(target=work, args=(ticket, sums)) for ticket in treefold.Ticket.for_ranks(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([sums.get() for _ in processes])
"""


class TestMultiprocessing:
    @pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
    def test_children_with_tickets_are_a_group(self, tmp_path, method):
        script = tmp_path / "launch.py"
        script.write_text(_LAUNCHER)
        command = [sys.executable, "-W", "error", script, method]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, timeout=100)
        assert (done.stdout, done.stderr) == ("[7.0, 7.0, 7.0]\n", "")


def reduce_very_many(me):
    """Reduce more elements than 32 bits can count, most of them in pages that nobody has written."""
    length = 2**31 + 5
    mine = np.zeros(length, np.int8)
    mine[[0, 2**31 - 1, 2**31, length - 1]] = 2**me.rank
    result = me.group.all_reduce(mine)
    return result[[0, 2**31 - 1, 2**31, length - 1]].tolist(), int(np.count_nonzero(result)), result.shape


class TestLargeValues:
    @pytest.mark.long
    def test_more_elements_than_32_bits_can_count(self):
        processes = RankProcesses({"TREEFOLD_GROUP_BYTES": str(2**31 + 2**28)})
        try:
            ended = processes.run(World(reduce_very_many, 2, seconds=300, timeout_seconds=240))
        finally:
            processes.close()
        assert [one.value for one in ended] == [([3, 3, 3, 3], 4, (2**31 + 5,))] * 2, ended
