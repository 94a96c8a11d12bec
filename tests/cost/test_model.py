"""The closed forms, by numbers that a reader can work out: 1 GB/s, 1 ms of latency, 1 MB unless said otherwise."""

import pytest

from treefold.cost import model

LINK = {"bytes_per_s": 1e9, "alpha_s": 1e-3}
PORT = {"port_bytes_per_s": 1e9, "alpha_s": 1e-3}
MB = 1e6  # takes 1 ms


class TestTrees:
    @pytest.mark.parametrize(("depth", "num_chunks", "expected_ms"), [(1, 1, 4), (3, 1, 12), (1, 2, 4.5), (2, 4, 8.75)])
    def test_take_a_step_for_every_hop_and_chunk(self, depth, num_chunks, expected_ms):
        """(2D + k − 1)·(1 + 1/k) ms."""
        found = model.pipelined_tree_s(MB, depth=depth, num_chunks=num_chunks, **LINK)
        assert 1e3 * found == pytest.approx(expected_ms)

    @pytest.mark.parametrize("depth", [1, 2, 3, 7])
    @pytest.mark.parametrize("nbytes", [1e3, 1e5, 1e6, 1e7, 1e9])
    def test_are_best_in_their_best_chunks(self, depth, nbytes):
        """T* is what chunks of chunk* take, if any number of them could be, and no other size is better."""
        best = model.best_chunk_bytes(nbytes, depth=depth, **LINK)
        least = model.best_tree_s(nbytes, depth=depth, **LINK)
        taken = model.pipelined_tree_s(nbytes, depth=depth, num_chunks=nbytes / best, **LINK)
        assert least == pytest.approx(taken)
        for chunk in (best * 0.9, min(best * 1.1, nbytes)):
            assert least <= model.pipelined_tree_s(nbytes, depth=depth, num_chunks=nbytes / chunk, **LINK) * (1 + 1e-12)

    def test_do_not_cut_what_is_smaller_than_a_chunk(self):
        """1 KB up and down three hops: 6·(1 ms + 1 µs)."""
        assert model.best_chunk_bytes(1e3, depth=3, **LINK) == 1e3
        assert model.best_tree_s(1e3, depth=3, **LINK) == pytest.approx(6 * (1e-3 + 1e-6))


class TestOtherMethods:
    @pytest.mark.parametrize(
        ("found_s", "expected_ms"),
        [
            (model.ring_s(MB, count=4, **LINK), 2 * 3 * (1 + 1 / 4)),
            (model.one_shot_s(MB, count=4, **PORT), 1 + 3),
            (model.two_shot_s(MB, count=4, **PORT), 2 * (1 + 3 / 4)),
            (model.star_s(MB, count=5, **PORT), 2 * (1 + 4)),
            (model.star_s(MB, count=5, num_chunks=2, **PORT), 3 * (1 + 2)),
            (model.star_s(MB, count=1, **PORT), 2 * (1 + 1)),
            (model.two_level_s(MB, count=2, link_bytes_per_s=1e9, alpha_s=1e-3), 2 * (1 + 1)),
            (model.two_level_s(MB, count=3, link_bytes_per_s=1e9, alpha_s=1e-3), 4 * (1 + 1)),
            (model.in_switch_s(MB, count=4, **PORT), 2 + 5 / 4),
            (model.reduce_scatter_all_gather_s(MB, scatter_bytes_per_s=1e9, gather_bytes_per_s=5e8), 1 + 2),
        ],
    )
    def test_take_what_their_formulas_say(self, found_s, expected_ms):
        """Latency and bandwidth each have their part."""
        assert 1e3 * found_s == pytest.approx(expected_ms)


class TestAsGood:
    @pytest.mark.parametrize(
        ("more_us", "is_as_good"), [(-1, True), (0, True), (0.9, True), (1.1, False), (100, False)]
    )
    def test_is_within_a_hundredth_of_what_copies_take(self, more_us, is_as_good):
        """100 µs of copies are as good as 100.9, whatever the launch adds to both."""
        least = model.LAUNCH_S + 100e-6
        assert model.is_as_good(least + 1e-6 * more_us, least) is is_as_good

    def test_of_the_least_is_itself(self):
        """Also where it is less than a launch."""
        assert model.is_as_good(1e-6, 1e-6)
