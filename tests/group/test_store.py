"""``treefold.connect(store=, rank=, size=)``: ranks that share one of PyTorch's stores."""

import threading

import numpy as np
import pytest
from torch.distributed import HashStore, PrefixStore

import treefold
from treefold.errors import ArgumentError, ConnectError
from treefold.group.bootstrap.rank_sources import StoreBootstrap


class TestStore:
    def test_joins_the_ranks_that_share_it(self):
        """Again and again, and apart from those of another prefix."""
        store, sums = HashStore(), {}

        def be(rank, size, prefix):
            for turn in range(2):
                with treefold.connect(store=PrefixStore(prefix, store), rank=rank, size=size) as group:
                    sums[prefix, rank, turn] = float(group.all_reduce(np.float32(2**group.rank)))

        ranks = [threading.Thread(target=be, args=(rank, 2, prefix)) for rank in range(2) for prefix in "ab"]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert sums == {(prefix, rank, turn): 3.0 for prefix in "ab" for rank in range(2) for turn in range(2)}

    @pytest.mark.parametrize(
        ("source", "given", "sentence"),
        [
            (None, {"store": HashStore()}, "connect() got no rank, size."),
            (None, {"rank": 0, "size": 1}, "connect() got no store."),
            ("{}", {"store": HashStore(), "rank": 0, "size": 1}, "connect() got a source beside a store."),
            (None, {"store": HashStore(), "rank": 2, "size": 2}, "connect() got rank=2 and size=2."),
            (None, {"store": HashStore(), "rank": 0.0, "size": 2}, "connect() got rank=0.0 and size=2."),
        ],
    )
    def test_goes_with_rank_and_size(self, source, given, sentence):
        with pytest.raises(ArgumentError) as raised:
            treefold.connect(source, **given)
        assert str(raised.value).startswith(sentence)

    def test_of_a_job_that_counts_its_ranks_from_1(self):
        with pytest.raises(ConnectError) as raised:
            StoreBootstrap(HashStore(), 2, 2, "job")
        assert str(raised.value) == (
            "The group did not form: rank 2 is not one of 2 ranks, which count from 0 to 1. "
            "Start every rank with its own number, and with the number of all."
        )
        assert raised.value.ranks == (2,)
