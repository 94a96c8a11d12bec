import functools

import gloo_ranks
import pytest
from channel_cases import CHANNEL_CONFORMANCE
from rank_processes import World


@pytest.fixture
def run(gloo, stores):
    """Return a function that runs the suite, each time with a store of its own, which outlives the ranks."""

    def run_function(function, size):
        plain, options = function, {}
        if isinstance(function, functools.partial):
            plain, options = function.func, function.keywords
        arguments = {"name": plain.__name__, "options": options, "port": stores()}
        ended = gloo.run(World(gloo_ranks.on_channel, size, arguments, timeout_seconds=None, may_leave=("folder",)))
        assert [(one.rank, one.error) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run_function


class TestGlooChannel:
    @pytest.mark.parametrize("case", CHANNEL_CONFORMANCE, ids=lambda case: case.name)
    def test_is_a_channel(self, run, case):
        case.check(run)
