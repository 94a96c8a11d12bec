import os

import numpy as np
import pytest

import treefold

LENGTH = 2**31 + 7
NEEDED_BYTES = 5 << 30


@pytest.mark.long
class TestMoreElementsThan32BitsCount:
    def test_are_reduced_in_place(self):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - no file
            available = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
        assert max(free, available["MemAvailable"]) >= NEEDED_BYTES, "this test needs 5 GiB of free memory"
        pattern = np.arange(127, dtype=np.int8)
        arrays = [np.resize(pattern, LENGTH), np.full(LENGTH, 1, np.int8)]
        treefold.all_reduce(arrays, out=arrays)
        step = 127 << 18
        expected = np.resize(pattern + np.int8(1), step)
        for array in arrays:
            for start in range(0, LENGTH, step):
                block = array[start : start + step]
                assert np.array_equal(block, expected[: block.size]), start
