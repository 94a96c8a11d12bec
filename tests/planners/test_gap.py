"""The statement of a packing about the gap to its bound."""

from fractions import Fraction

import pytest

from treefold.topology import known_topology
from treefold.topology.planning.tree_packing import optimal_packing


class TestGap:
    def test_is_the_share_that_is_not_reached(self):
        packing = optimal_packing(known_topology("dgx1_v100"), packs=1)
        assert 0 < packing.gap < 1
        assert packing.gap == pytest.approx(1 - packing.algbw_bytes_per_s / packing.bound_bytes_per_s)
        assert packing.algbw_bytes_per_s == float(packing.algbw)

    def test_of_an_optimal_packing_is_nothing(self):
        packing = optimal_packing(known_topology("dgx1_v100"))
        assert packing.algbw == packing.certificate.bound
        assert packing.gap == 0

    def test_is_proved_by_whole_numbers(self):
        certificate = optimal_packing(known_topology("dgx1_v100")).certificate
        assert type(certificate.cost) is int
        assert {type(price) for _, _, price in certificate.prices} == {int}

    def test_of_one_device_is_nothing(self):
        packing = optimal_packing(known_topology("ring:1"))
        assert (packing.algbw_bytes_per_s, packing.bound_bytes_per_s, packing.gap) == (float("inf"), float("inf"), 0)
        assert [(tree.share, tree.up, tree.down) for tree in packing.trees] == [(Fraction(1), (), ())]
