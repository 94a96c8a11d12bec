"""Signals with handlers that raise at random moments of a call: afterwards all is as if it had never been made."""

import signal

import pytest
from attack import cases, in_shards, report_of

FULL = 6_000
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
class TestInterruptions:
    @in_shards
    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_leave_a_library_that_works(self, framework, shard):
        """Inputs stay, the next calls of this thread and of another are right, and no result memory is lost."""
        report = report_of("interrupting.py", framework, cases=cases(FULL // len(FRAMEWORKS), shard))
        assert report["wrong"] == []
        assert report["lost_bytes"] == 0
