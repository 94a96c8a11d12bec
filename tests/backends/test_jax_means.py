import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treefold
from treefold import HierarchicalCopyAllReduce, IndexedSlices, PerReplica, ReductionToOneDevice


def put(array, device=0):
    """Return a JAX array with a copy of a NumPy array, of its dtype whatever jax_enable_x64 says."""
    with jax.enable_x64(True):  # noqa: FBT003 - JAX's own signature
        return jax.device_put(np.array(array), jax.devices("cpu")[device])


class TestMean:
    @pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64"])
    def test_of_integers_have_a_mean_that_the_next_jit_takes(self, dtype):
        """Without x64 it is float32, as that of ``jnp.mean``, with x64 what NumPy's arrays give; later calls too."""
        arrays = [put(np.array([r, 2**24 + 1 if dtype[-2:] != "t8" else 100], dtype)) for r in (1, 2)]
        value = treefold.PerReplica(arrays)
        for _ in range(2):
            [mean, _] = treefold.all_reduce(arrays, "mean")
            wide = "float32" if dtype == "int8" else "float64"
            assert mean.dtype == np.float32
            assert np.asarray(mean).tolist() == [1.5, 2**24 if wide == "float64" else 100]
            add = lambda _, total, mean=mean: total + mean  # noqa: E731
            looped = jax.lax.fori_loop(0, 3, add, jnp.zeros(2, jnp.float32))
            assert float(looped[0]) == 4.5
            with jax.enable_x64(True):  # noqa: FBT003 - JAX's own signature
                exact = HierarchicalCopyAllReduce().reduce("mean", value, value)[1]
                assert (exact.dtype, exact.tolist()) == (np.dtype(wide), [1.5, 2**24 + 1 if wide == "float64" else 100])

    def test_of_sparse_integers_have_a_float32_mean(self):
        rows = [IndexedSlices(put(np.array([[2 * r]], "int32")), put(np.array([r], "int32")), (4, 1)) for r in (1, 2)]
        mean = ReductionToOneDevice().reduce("mean", PerReplica(rows), "cpu:0")[0]
        assert (mean.values.dtype, np.asarray(mean.values).tolist()) == (np.float32, [[1.0], [2.0]])
        assert (mean.indices.dtype, np.asarray(mean.indices).tolist()) == (np.int32, [1, 2])
