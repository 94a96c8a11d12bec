"""PyTorch's backend "treefold" on what is no fraction: means of whole numbers, and sums of booleans."""

import math
from fractions import Fraction

import pytest
from torch_ranks import on_hosts, run, whole


class TestMeansOfWholeNumbers:
    @pytest.mark.parametrize(
        ("hosts", "memory"), [((0, 0), {}), ((0, 0, 1), {}), ((0, 0, 0), {"TREEFOLD_GROUP_BYTES": "4096"})]
    )
    def test_are_exact_and_rounded_toward_zero(self, hosts, memory):
        size, root = len(hosts), 1
        answers = run(whole.means, size, root, environment=on_hosts(*hosts) | memory)
        for dtype in whole.DTYPES:
            columns = zip(*(whole.brought(dtype, rank) for rank in range(size)), strict=True)
            wanted = [math.trunc(Fraction(sum(column), size)) for column in columns]
            for rank, answer in enumerate(answers):
                at_root = wanted if rank == root else whole.brought(dtype, rank)
                assert answer[dtype] == [wanted, at_root, wanted], (dtype, rank)

    def test_that_lightning_logs(self):
        """It averages its counts of samples, too. 1 and 2 by rank, and 8 times the number of each of two batches."""
        pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install 'treefold[layouts]'")
        assert run(whole.log_in_lightning, 2) == [(5.5, "TreefoldProcessGroup")] * 2


class TestSumsOfBooleans:
    def test_are_or_and_products_are_and(self):
        """As with gloo; PyTorch itself asks for such sums, where a DTensor is to say whether any of its elements is."""
        assert run(whole.booleans, 3) == [[[True, True, False, True], [False, True, False, False], True, False]] * 3
