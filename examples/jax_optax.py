"""Train with JAX and optax: gradients of four replicas in one call, and a step that all of them share.

The gradient is compiled; the reduction happens between compiled functions, where arrays have values.
Run it: python examples/jax_optax.py
"""

import jax
import jax.numpy as jnp
import optax

import treefold

REPLICAS, STEPS = 4, 60


def predict(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return the outputs of a network with one hidden layer."""
    return jnp.tanh(x @ parameters["hidden"]) @ parameters["out"]


@jax.jit
@jax.value_and_grad
def loss_and_gradients(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error; its gradients come with it."""
    return jnp.mean((predict(parameters, x) - y) ** 2)


def main() -> None:
    """Train one set of parameters on a batch that four replicas share."""
    for_data, for_hidden, for_out = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(for_data, (128, 4))
    y = jnp.sin(x[:, :1])
    parameters = {"hidden": jax.random.normal(for_hidden, (4, 16)), "out": jax.random.normal(for_out, (16, 1)) / 4}
    optimizer = optax.adam(0.03)
    state = optimizer.init(parameters)

    for step in range(STEPS):
        parts = zip(jnp.split(x, REPLICAS), jnp.split(y, REPLICAS), strict=True)
        results = [loss_and_gradients(parameters, *part) for part in parts]
        # A pytree per replica in, a pytree per replica out: loss and gradients in one reduction.
        loss, gradients = treefold.all_reduce(results, "mean")[0]
        updates, state = optimizer.update(gradients, state)
        parameters = optax.apply_updates(parameters, updates)
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step:2d}: mean loss of {REPLICAS} replicas {loss:.4f}")


if __name__ == "__main__":
    main()
