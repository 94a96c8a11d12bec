"""Federated averaging with updates that arrive in any order: each is added when it arrives, and then forgotten.

Two servers get the same clients' updates in different orders, and reach models with the same bits in every round.

Run it: python examples/federated_stream.py
"""

import hashlib

import numpy as np

import treefold

TRUTH = np.float32([2.0, -1.0, 0.5])
SAMPLES = [200, 60, 20, 500, 90, 7, 33, 120]  # per client: more samples count more
ROUNDS = 3

Model = dict[str, np.ndarray]


def train(client: int, model: Model) -> Model:
    """Return the model after some steps on a client's own data, which are the same in every round."""
    random = np.random.default_rng(client)
    x = random.normal(size=(SAMPLES[client], 3)).astype(np.float32)
    y = x @ TRUTH + 0.1 * random.normal(size=len(x)).astype(np.float32)
    weights = model["weights"]
    for _ in range(10):
        weights = weights - np.float32(0.2) * x.T @ (x @ weights - y) / np.float32(len(x))
    return {"weights": weights}


def serve(name: str, random: np.random.Generator) -> list[str]:
    """Run the rounds of a server; return the SHA of its model after each."""
    model, shas = {"weights": np.zeros(3, np.float32)}, []
    for number in range(ROUNDS):
        mean = treefold.Mean()
        order = random.permutation(len(SAMPLES)).tolist()
        for client in order:  # as they arrive; no list of updates is kept
            mean.add(train(client, model), weight=SAMPLES[client])
        model = mean.result()
        shas.append(hashlib.sha256(model["weights"].tobytes()).hexdigest())
        print(f"{name}, round {number + 1}: clients {order}, {mean.weight} samples, SHA {shas[-1][:12]}")
    print(f"{name} found {model['weights'].round(2).tolist()}; the data say {TRUTH.tolist()}")
    return shas


def main() -> None:
    """Compare two servers."""
    first, second = (serve(name, np.random.default_rng(seed)) for seed, name in enumerate(["server A", "server B"]))
    print("both servers had the same bits in every round:", first == second)


if __name__ == "__main__":
    main()
