"""Plan the all-reduce of a machine: links in, the best trees out, the proof, and predicted times of several ops.

No device of the machine needs to be here, so you can plan for one that you want to buy or rent.
Run it: python examples/plan_machine.py
"""

import json
import tempfile
from pathlib import Path

import treefold

MACHINE = {  # four GPUs: two wide bridges, joined by narrow links
    "devices": ["gpu:0", "gpu:1", "gpu:2", "gpu:3"],
    "links": [
        {"between": ["gpu:0", "gpu:1"], "gb_per_s": 100.0, "alpha_us": 1.0},
        {"between": ["gpu:2", "gpu:3"], "gb_per_s": 100.0, "alpha_us": 1.0},
        {"between": ["gpu:0", "gpu:2"], "gb_per_s": 25.0, "alpha_us": 2.0},
        {"between": ["gpu:1", "gpu:3"], "gb_per_s": 12.5, "alpha_us": 2.0},
    ],
}


def main() -> None:
    """Find the optimum, then compare the predicted times of the ops classes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"  # or a file of nvidia-smi topo -m, NCCL, rocm-smi, hwloc
        path.write_text(json.dumps(MACHINE), encoding="utf-8")
        machine = treefold.load_topology(path)

    packing = treefold.optimal_packing(machine)
    print(f"{len(packing.trees)} trees carry {packing.algbw_bytes_per_s / 1e9:.1f} GB/s of all-reduce")
    print(f"nothing can carry more than {packing.bound_bytes_per_s / 1e9:.1f} GB/s")
    for tree in packing.trees:
        hops = ", ".join(f"{source} to {target}" for source, target in tree.up)
        print(f"  {float(tree.share):.0%} of the values are folded along {hops}")

    for megabytes in (0.01, 1, 256):
        choice = treefold.choose_cross_device_ops(machine.devices, topology=machine, nbytes=int(megabytes * 1e6))
        print(f"{megabytes:g} MB per GPU:")
        for ops, seconds in sorted(choice.predicted.items(), key=lambda pair: pair[1]):
            print(f"  {seconds * 1e3:8.3f} ms  {ops}")

    ops, _ = treefold.choose_cross_device_ops(machine.devices, topology=machine, nbytes=256_000_000)
    print(f"for 256 MB take {ops}")


if __name__ == "__main__":
    main()
