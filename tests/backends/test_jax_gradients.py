"""The results of ``jax.grad`` for leaves that have no gradient."""

import jax
import jax.numpy as jnp
import pytest

import treefold
from treefold.errors import DtypeError

# Before JAX's platforms start, as in test_jax.py.
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def trees():
    grad = jax.grad(lambda tree: (tree["w"] ** 2).sum(), allow_int=True)
    return [grad({"step": [jnp.array([1, 2])], "w": jnp.full(2, 2.0**r)}) for r in range(2)]


class TestGradientsOfWholeNumbers:
    @pytest.mark.parametrize("op", ["mean", "max"])
    def test_are_named_and_what_to_do_is_said(self, trees, op):
        with pytest.raises(DtypeError) as caught:
            treefold.all_reduce(trees, op)
        assert str(caught.value) == (
            "float0 at ['step'][0] is JAX's dtype for gradients of whole numbers, which have none. Put None in its "
            "place: jax.tree.map(lambda g: None if g.dtype == jax.dtypes.float0 else g, gradients)."
        )

    def test_may_be_none(self, trees):
        trees = [jax.tree.map(lambda g: None if g.dtype == jax.dtypes.float0 else g, tree) for tree in trees]
        [mean, _] = treefold.all_reduce(trees, "mean")
        assert mean["step"] == [None]
        assert mean["w"].tolist() == [3.0, 3.0]

    def test_are_copied(self, trees):
        [copied] = treefold.broadcast(trees[0], ["cpu:0"])
        assert copied["step"][0].dtype == jax.dtypes.float0
