"""Sums that go on, and those of whole arrays, have one SHA over hosts that a network joins."""

import exact_cases
import partial_ranks
import pytest
from lab_ranks import Ranks

from lab import star


@pytest.mark.parametrize("hosts", [2, 3])
def test_is_one_sha_over_emulated_hosts(build, hosts):
    with Ranks(build(star(*[200] * hosts)), hosts) as ranks:
        ranks.make("connect", timeout_seconds=60)
        expected = [*partial_ranks.expected(), exact_cases.digest_of(0, 1)]
        assert list(ranks.make("partials").values()) == [expected] * hosts
