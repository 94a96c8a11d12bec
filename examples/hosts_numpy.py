"""Average NumPy fields over ranks on several hosts, and go on without ranks that are lost.

Run it: torchrun --nnodes 3 --rdzv-backend c10d --rdzv-endpoint host0:29500 examples/hosts_numpy.py
(The same line on every host.)

Run it where a lost rank ends all: mpiexec -hosts host0,host1,host2 -n 3 python examples/hosts_numpy.py.
Run it on one host: treefold run -n 3 examples/hosts_numpy.py
"""

import numpy as np

import treefold
from treefold.errors import DeadlineError, PeerLostError

STEPS = 40


def observe(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return what a rank sees in one step."""
    return {
        "temperature": 280 + rng.standard_normal((60, 120)),
        "humidity": rng.random((60, 120), np.float32),
    }


group = treefold.connect(timeout_seconds=60)
rng = np.random.default_rng(group.rank)
state = {"step": np.zeros(1, int), "temperature": np.zeros((60, 120)), "humidity": np.zeros((60, 120), np.float32)}

while state["step"][0] < STEPS:
    fields = observe(rng)
    try:
        mean = group.all_reduce(fields, "mean")  # the same bits on all ranks: those of one process with all fields
    except (PeerLostError, DeadlineError) as error:
        group = group.without(error.ranks)  # All ranks that are left call this, and get new numbers.
        # Some ranks may have a mean that others did not get: all go on from the state of the most advanced rank.
        steps = group.all_gather(state["step"])
        state = group.broadcast(state, root=int(np.argmax(steps)))
        if group.rank == 0:
            print(f"step {state['step'][0]}: lost {error.ranks}, {group.size} ranks go on")
        continue
    state = {name: state[name] + value for name, value in {"step": 1, **mean}.items()}

with group:
    everyone = group.all_gather(state["temperature"][None])
    if group.rank == 0:
        temperature, humidity = (state[name].mean() / STEPS for name in ("temperature", "humidity"))
        print(f"{STEPS} means over {group.size} ranks: {temperature:.2f} K, humidity {humidity:.3f}")
        print("all ranks hold the same bits:", all(np.array_equal(one, everyone[0]) for one in everyone))
