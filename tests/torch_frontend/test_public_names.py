"""The names of ``treefold.torch``."""

import treefold.torch

NAMES = {
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_hook",
    "average_models",
    "MicroBatches",
    "broadcast_coalesced",
    "clip_grad_norm_",
    "exact_reduce_scatter",
    "mean_hook",
    "reduce_add_coalesced",
    "shared_mean_hook",
}


class TestPublicNames:
    def test_are_what_dir_shows(self):
        assert set(dir(treefold.torch)) == set(treefold.torch.__all__) == NAMES
