import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import treefold
from treefold import _native
from treefold.execution import native
from treefold.testing import owned, owned_sum

not_sanitized = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the address sanitizer keeps freed memory and needs terabytes"
)
SHAPE = (300_007,)
NBYTES = 4 * SHAPE[0]


def info(name):
    return treefold.host_memory_info()[name]


@pytest.fixture(autouse=True)
def _empty_cache():
    """Begin and end without cached memory, and with the usual bound."""
    limit = info("limit_bytes")
    treefold.empty_cache()
    yield
    _native.set_memory_limit(limit)
    treefold.empty_cache()


def reduced():
    return treefold.all_reduce([owned(r, SHAPE) for r in range(2)])


def printed(program, **environment):
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestCache:
    def test_serves_the_second_call(self):
        before = reduced()[0].__array_interface__["data"][0] and info("hits")
        reduced()
        assert info("hits") == before + 2

    def test_counts_what_is_used_and_what_is_kept(self):
        used = info("used_bytes")
        array = _native.empty(SHAPE, np.dtype("float32"))
        size = info("used_bytes") - used
        assert NBYTES <= size <= NBYTES * 9 / 8
        del array
        assert (info("used_bytes"), info("cached_bytes")) == (used, size)

    @pytest.mark.parametrize("view", [lambda a: a[7:9], memoryview, lambda a: a.view(np.uint8).reshape(-1, 4)[::2].T])
    def test_takes_memory_back_from_the_last_owner(self, view):
        last = view(reduced()[0])
        assert info("used_bytes") >= NBYTES
        kept = info("cached_bytes")
        del last
        assert info("cached_bytes") >= kept + NBYTES

    def test_does_not_touch_results_that_live(self):
        results = [treefold.all_reduce([owned(r, SHAPE), owned(r + 1, SHAPE)])[0] for r in range(5)]
        reduced()
        for r, result in enumerate(results):
            np.testing.assert_array_equal(result, owned(0, SHAPE) * 3 * 2**r)

    def test_is_bounded(self):
        _native.set_memory_limit(3 * NBYTES)
        arrays = [_native.empty(SHAPE, np.dtype("float32")) for _ in range(8)]
        starts = [array.__array_interface__["data"][0] for array in arrays]
        while arrays:
            del arrays[0]
        assert 2 * NBYTES <= info("cached_bytes") <= 3 * NBYTES
        again = [_native.empty(SHAPE, np.dtype("float32")) for _ in range(2)]
        assert {array.__array_interface__["data"][0] for array in again} == set(starts[-2:])

    def test_keeps_nothing_with_a_bound_of_0(self):
        _native.set_memory_limit(0)
        for result in reduced():
            np.testing.assert_array_equal(result, owned_sum(2, SHAPE))
        del result
        assert info("cached_bytes") == 0

    def test_shrinks_to_a_new_bound(self):
        reduced()
        _native.set_memory_limit(NBYTES // 2)
        assert info("cached_bytes") == 0

    def test_takes_its_bound_from_the_environment(self):
        program = (
            "import numpy as np, treefold\n"
            "for turn in range(3):\n"
            "    right = (treefold.all_reduce([np.full(10**6, 2.0), np.full(10**6, 3.0)])[1] == 5).all()\n"
            "print(right, treefold.host_memory_info())"
        )
        assert printed(program, TREEFOLD_HOST_CACHE_BYTES="0") == (
            "True {'used_bytes': 0, 'cached_bytes': 0, 'limit_bytes': 0, 'hits': 0, 'misses': 6}\n"
        )

    def test_is_emptied_when_asked(self):
        living = reduced()
        reduced()
        treefold.empty_cache()
        assert info("cached_bytes") == 0
        np.testing.assert_array_equal(living[0], owned_sum(2, SHAPE))

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    @not_sanitized
    def test_gives_memory_back_to_the_system(self):
        program = (
            "import numpy as np, treefold\n"
            "def resident():\n"
            "    with open('/proc/self/statm') as statm:\n"
            "        return int(statm.read().split()[1]) * 4096\n"
            "arrays = [np.ones(nbytes // 4, 'float32') for nbytes in (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)]\n"
            "for turn in range(3):\n"
            "    for array in arrays:\n"
            "        treefold.all_reduce([array, array])\n"
            "cached, before = treefold.host_memory_info()['cached_bytes'], resident()\n"
            "treefold.empty_cache()\n"
            "print(cached > 1.9 * (85 << 20), before - resident() > 0.9 * cached)"
        )
        assert printed(program) == "True True\n"

    def test_is_safe_to_use_from_many_threads(self):
        wrong = []

        def use(index):
            for turn in range(60):
                arrays = [_native.empty((20_000 + 999 * (turn % 5),), np.dtype("float32")) for _ in range(4)]
                for number, array in enumerate(arrays):
                    array[...] = 4 * index + number
                wrong.extend(turn for number, array in enumerate(arrays) if (array != 4 * index + number).any())
                if turn % 20 == index:
                    treefold.empty_cache()

        threads = [threading.Thread(target=use, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert info("used_bytes") == 0


class TestNewResults:
    @pytest.mark.parametrize("length", [1 << 14, 16_411, 300_007, 3_000_017])
    @pytest.mark.parametrize("dtype", ["float16", "float64", "complex128", "uint8"])
    def test_begin_at_a_cache_line(self, length, dtype):
        result = native.new_result((length, 8), np.dtype(dtype))
        assert result.ctypes.data % 64 == 0
        assert result.flags.carray
        assert (result.shape, result.dtype) == ((length, 8), dtype)

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
    def test_may_be_empty(self, shape):
        assert _native.empty(shape, np.dtype("float32")).shape == shape


class TestOutOfMemory:
    @pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("int8", "mean")])
    def test_is_said_before_anything_is_written(self, dtype, op):
        """A result larger than any machine's memory is refused; the inputs are what they were."""
        elements = np.array([3], dtype), np.array([4], dtype)
        with pytest.raises(
            MemoryError, match=r"^There is no memory for a result of \d+ bytes\. Nothing was written\.$"
        ):
            treefold.all_reduce([np.broadcast_to(element, (2**59,)) for element in elements], op)
        assert [int(element[0]) for element in elements] == [3, 4]

    @not_sanitized
    def test_leaves_out_as_it_was(self):
        program = (
            "import resource, numpy as np, treefold\n"
            "from treefold import PerReplica, ReductionToOneDevice\n"
            "small, large = np.full(1000, 7.0), np.full((4000, 20_000), 7, np.float32).T\n"
            "other = np.full((20_000, 4000), 5, np.float32)\n"
            "batch = [PerReplica([small, small.copy()]), PerReplica([large, other])]\n"
            "pairs = [(value, value) for value in batch]\n"
            "ops = ReductionToOneDevice()\n"
            "with open('/proc/self/statm') as statm:\n"
            "    size = int(statm.read().split()[0]) * resource.getpagesize()\n"
            "before = resource.getrlimit(resource.RLIMIT_AS)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), before[1]))\n"
            "try:\n"
            "    ops.batch_reduce('sum', pairs, out=batch)\n"
            "except MemoryError as error:\n"
            "    resource.setrlimit(resource.RLIMIT_AS, before)  # the comparisons need memory too\n"
            "    print(error, (small == 7).all(), (large == 7).all(), (other == 5).all())\n"
            "print((treefold.all_reduce([small, small])[0] == 14).all())"
        )
        sentence, right = printed(program).splitlines()
        assert sentence.startswith("Unable to allocate 305. MiB for an array with shape (20000, 4000)")
        assert (sentence[-14:], right) == ("True True True", "True")

    @not_sanitized
    def test_frees_the_cache_before_giving_up(self):
        program = (
            "import resource, numpy as np, treefold\n"
            "treefold.all_reduce([np.ones(50 << 18, 'float32')] * 2)\n"
            "array = np.ones(60 << 18, 'float32')\n"
            "with open('/proc/self/statm') as statm:\n"
            "    size = int(statm.read().split()[0]) * resource.getpagesize()\n"
            "before = resource.getrlimit(resource.RLIMIT_AS)\n"
            "resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20), before[1]))\n"
            "result = treefold.reduce([array, array])\n"
            "resource.setrlimit(resource.RLIMIT_AS, before)  # the comparison needs memory too\n"
            "print((result == 2).all())"
        )
        assert printed(program) == "True\n"
