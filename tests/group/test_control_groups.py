"""Containers with little memory, pretended by files: a call that needs too much gets an error and is not killed."""

import os

import numpy as np
import pytest
from rank_processes import World, told

from treefold.group import connect
from treefold.group.bootstrap import memory_limits

_MIB = 1 << 20
_PATH = "/docker/0123"
#: For each version: how a process is told its group, the folder of the groups, and the names of files and statistics.
_VERSIONS = {
    "v2": (f"0::{_PATH}\n", "", ("memory.max", "memory.current"), ("inactive_file", "active_file")),
    "v1": (
        f"5:cpuacct,cpu:{_PATH}\n4:memory:{_PATH}\n0::/\n",
        "/memory",
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("total_inactive_file", "total_active_file"),
    ),
}


def pretend(root, version, *, limit, used, cached=0):
    """Write the files of a control group with this many bytes."""
    line, folder, (limit_name, used_name), names = _VERSIONS[version]
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    group = root / f"sys/fs/cgroup{folder}{_PATH}"
    group.mkdir(parents=True)
    (group / limit_name).write_text(f"{limit}\n")
    (group / used_name).write_text(f"{used}\n")
    counts = "".join(f"{name} {cached // 2}\n" for name in names)
    (group / "memory.stat").write_text(f"anon 1\nfile {cached}\n{counts}shmem 0\n")


def reduce_in_a_container(me, *, folder, elements):
    os.environ["TREEFOLD_TEST_CGROUPS"] = folder
    stories = []

    def join():
        me.group = connect(me.ticket, connect_timeout_seconds=20)

    stories.append(told(join))
    if me.group is not None:
        value = np.full(elements, 2.0**me.rank, np.float32)
        stories.append(told(lambda: me.group.all_reduce(value)))
        stories.append(told(lambda: me.group.empty(elements)))
        assert me.group.all_reduce(np.float32(2**me.rank)) == 2**me.size - 1
    return stories


def count_cores(me, *, folder):
    del me
    os.environ["TREEFOLD_TEST_CGROUPS"] = folder
    return memory_limits.usable_cores()


@pytest.mark.parametrize("version", _VERSIONS)
class TestControlGroups:
    def test_results_may_take_an_eighth_of_what_the_container_has(self, refusing, tmp_path, version):
        pretend(tmp_path, version, limit=512 * _MIB, used=0)
        world = World(reduce_in_a_container, 2, {"folder": str(tmp_path), "elements": 17 * _MIB}, timeout_seconds=None)
        for one in refusing.run(world):
            joined, (name, sentence), _ = one.value
            assert (joined, name) == ("done", "GroupError")
            assert f"does not fit into the {64 * _MIB} bytes" in sentence
            assert f"TREEFOLD_GROUP_BYTES={4 * 17 * _MIB}" in sentence

    def test_a_container_that_is_nearly_full_refuses_memory(self, refusing, tmp_path, version):
        pretend(tmp_path, version, limit=512 * _MIB, used=500 * _MIB)
        world = World(reduce_in_a_container, 2, {"folder": str(tmp_path), "elements": 4 * _MIB}, timeout_seconds=None)
        for one in refusing.run(world):
            assert [story if story == "done" else story[0] for story in one.value] == [
                "done",
                "SharedMemoryError",
                "SharedMemoryError",
            ], one

    def test_files_that_the_system_keeps_in_memory_are_no_hindrance(self, refusing, tmp_path, version):
        """Whoever has read much of a data set can still reduce: the system gives that memory back."""
        pretend(tmp_path, version, limit=512 * _MIB, used=511 * _MIB, cached=400 * _MIB)
        world = World(reduce_in_a_container, 2, {"folder": str(tmp_path), "elements": 4 * _MIB}, timeout_seconds=None)
        assert [one.value for one in refusing.run(world)] == [["done"] * 3] * 2


class TestUsableCores:
    @pytest.mark.parametrize(
        ("version", "files"),
        [
            ("v2", {"cpu.max": "50000 100000"}),
            ("v1", {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}),
        ],
    )
    def test_are_those_of_the_quota(self, refusing, tmp_path, version, files):
        """Half a core, in the files of either version."""
        pretend(tmp_path, version, limit=1 << 40, used=0)
        folder = tmp_path / ("sys/fs/cgroup" + ("/cpu" if version == "v1" else "") + _PATH)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        world = World(count_cores, 1, {"folder": str(tmp_path)}, timeout_seconds=None, may_leave=("folder",))
        (ended,) = refusing.run(world)
        assert ended.value == 0.5
