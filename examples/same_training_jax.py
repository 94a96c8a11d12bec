"""Train with JAX and optax on 1, 2 and 3 ranks, and check that all have the same bits.

A step has 6 micro-batches, which any rank may compute; each has a key of its own, for its data and its dropout.
Run it: python examples/same_training_jax.py
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import treefold
from treefold.testing import assert_same_training

PER_STEP, STEPS = 6, 20
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.03))


@jax.jit
@jax.value_and_grad
def loss_and_gradients(parameters: dict[str, jax.Array], step: int, index: int) -> jax.Array:
    """Return the mean squared error of a micro-batch; its gradients come with it."""
    for_data, for_dropout = jax.random.split(jax.random.key(PER_STEP * step + index))
    x = jax.random.normal(for_data, (16, 4))
    hidden = jnp.tanh(x @ parameters["hidden"])
    hidden *= jax.random.bernoulli(for_dropout, 0.9, hidden.shape) / 0.9
    return jnp.mean((hidden @ parameters["out"] - jnp.sin(x[:, :1])) ** 2)


@jax.jit
def update(parameters: dict[str, jax.Array], state: Any, gradients: dict[str, jax.Array]) -> tuple[Any, Any]:
    """Return the parameters and the optimizer's state after a step."""
    updates, state = OPTIMIZER.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state


def train() -> Iterator[dict[str, str]]:
    """Train on the ranks of this process's group; yield the SHA of what it holds after each step."""
    parameters = {"hidden": jnp.sin(jnp.arange(64.0)).reshape(4, 16), "out": jnp.cos(jnp.arange(16.0))[:, None]}
    state = OPTIMIZER.init(parameters)
    with treefold.connect() as group:
        for step in range(STEPS):
            mean = treefold.Mean()
            for index in range(group.rank, PER_STEP, group.size):  # at least one for each rank
                mean.add(loss_and_gradients(parameters, step, index))
            loss, gradients = mean.result(group=group)  # exact, over all micro-batches of all ranks
            parameters, state = update(parameters, state, gradients)
            leaves = jax.tree.leaves((loss, parameters, state))
            sha = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
            yield {"loss, parameters and state": sha}
        if group.rank == 0:
            print(f"ranks: {group.size}, loss {loss:.4f}, SHA {sha[:12]}", flush=True)


if __name__ == "__main__":
    assert_same_training(train, ranks=(1, 2, 3))
    print("the same bits on 1, 2 and 3 ranks, after each step")
