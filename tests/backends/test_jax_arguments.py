"""JAX's arrays where something else than a contribution is meant: as weights, and as static data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treefold import all_reduce, reduce
from treefold.errors import ArgumentError


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Masked:
    """An array, and a mask that JAX takes for static."""

    array: jax.Array
    mask: object = dataclasses.field(metadata={"static": True})


class TestWeights:
    def test_are_arrays_of_one_axis_or_scalars(self):
        for weights in (jnp.array([1, 3]), jnp.array([0.25, 0.75]), [jnp.array(1.0), jnp.array(3)]):
            assert reduce([1.0, 3.0], "mean", weights=weights) == 2.5

    def test_are_no_tracers(self):
        with pytest.raises(
            ArgumentError, match=r"^weights has a JAX tracer, which stands for an array without being one"
        ):
            jax.jit(lambda weights: reduce([1.0, 3.0], "mean", weights=weights))(jnp.array([1, 3]))


class TestStaticFields:
    def test_are_compared(self):
        [made, _] = all_reduce([Masked(jnp.ones(2), "mask"), Masked(jnp.ones(2), "mask")])
        assert (made.array.tolist(), made.mask) == ([2, 2], "mask")

    def test_are_no_arrays(self):
        with pytest.raises(ArgumentError, match=r"^Two structures cannot be compared, because == of the static data"):
            all_reduce([Masked(jnp.ones(2), np.arange(2)), Masked(jnp.ones(2), np.arange(2))])
