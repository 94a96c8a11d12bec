"""Train one model on several processes of this machine, which meet in shared memory.

Run it: treefold run -n 4 examples/ranks.py
(or: torchrun --nproc-per-node 4 examples/ranks.py, or: mpiexec -n 4 python examples/ranks.py)
"""

import numpy as np

import treefold

rng = np.random.default_rng(0)
inputs = np.column_stack([rng.standard_normal(1200), np.ones(1200)])
targets = inputs @ np.array([2.0, 1.0]) + 0.1 * rng.standard_normal(1200)

with treefold.connect() as group:
    mine = slice(group.rank, None, group.size)  # every rank looks at its share of the data
    model = np.zeros(2)
    for _ in range(200):
        errors = inputs[mine] @ model - targets[mine]
        gradient = 2 * inputs[mine].T @ errors / len(errors)
        group.all_reduce(gradient, "mean", out=gradient)
        model -= 0.1 * gradient
    everyone = group.all_gather(model[None])
    if group.rank == 0:
        slope, offset = model
        print(f"{group.size} ranks found y = {slope:.2f}x + {offset:.2f}; the data say y = 2x + 1")
        print("all ranks hold the same bits:", all(np.array_equal(one, model) for one in everyone))
