"""``treefold demo``: a small network on real data, trained data-parallel through the public API."""
