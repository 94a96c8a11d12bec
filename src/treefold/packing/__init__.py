"""Packs values: chooses which of them travel together, and cuts them."""

from treefold.packing.pack import Fragment, Item, Pack, by_dtype, split_by_shares
from treefold.packing.policy import PackingPolicy

__all__ = ["Fragment", "Item", "Pack", "PackingPolicy", "by_dtype", "split_by_shares"]
