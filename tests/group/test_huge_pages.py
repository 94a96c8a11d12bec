"""Huge pages of the memory that ranks share, where the system's setting allows them."""

import re
from pathlib import Path

import numpy as np
import pytest
from rank_processes import World

SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MEBIBYTE = 1 << 20


def sum_in_shared_memory(me):
    """Reduce an array of the group's own memory, and return the sum and the KiB that this rank sees in huge pages."""
    mine = me.group.empty(8 * MEBIBYTE // 4, "float32")
    mine[:] = 2.0**me.rank
    result = me.group.all_reduce(mine)
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    huge = sum(int(kib) for kib in re.findall(r"ShmemPmdMapped: +([0-9]+) kB", smaps))
    return float(result.min()), float(result.max()), np.shares_memory(mine, result), huge


def has_huge_pages():
    return SETTING.exists() and re.search(r"\[(always|within_size|advise|force)\]", SETTING.read_text(encoding="ascii"))


class TestHugePages:
    @pytest.mark.skipif(not has_huge_pages(), reason="this system gives shared memory small pages alone")
    def test_hold_what_is_large(self, ranks):
        """Inputs and results of 8 MiB each lie in huge pages as far as a rank has touched them."""
        for ended in ranks.run(World(sum_in_shared_memory, 2)):
            *sums, is_shared, huge = ended.value
            assert (sums, is_shared) == ([3.0, 3.0], False)
            assert huge >= 8 * MEBIBYTE // 1024
