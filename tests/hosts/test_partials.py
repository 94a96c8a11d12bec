"""Sums that go on have one SHA over hosts that a network joins."""

import partial_ranks
import pytest
from lab_ranks import Ranks

from lab import star


@pytest.mark.parametrize("hosts", [2, 3])
def test_is_one_sha_over_emulated_hosts(build, hosts):
    with Ranks(build(star(*[200] * hosts)), hosts) as ranks:
        ranks.make("connect", timeout_seconds=60)
        assert list(ranks.make("partials").values()) == [partial_ranks.expected()] * hosts
