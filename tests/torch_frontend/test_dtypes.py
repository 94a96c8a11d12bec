"""Every dtype of PyTorch in every collective of PyTorch's backend "treefold"."""

from torch_ranks import dtypes, run

_MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all")


class TestDtypes:
    def test_are_moved_or_refused_by_all_ranks(self):
        first, second = run(dtypes.of_every_dtype, 2, seconds=20.0)
        assert first == second
        assert first["torch.float32", "all_reduce"] is True
        refused = {key: said for key, said in first.items() if said is not True}
        assert [key for key in refused if key[1].startswith(_MOVES)] == []
        assert refused["torch.uint4", "all_reduce"].startswith("Replica 0 has a tensor of dtype torch.uint4 at [0].")
