"""Forks at random moments: of a thread while others reduce, and of a signal handler within a fold."""

import os

import pytest
from attack import cases, in_shards, report_of

FULL = 700


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestForks:
    @in_shards
    def test_leave_parent_and_child_working(self, shard):
        assert report_of("forking.py", cases=cases(FULL, shard))["wrong"] == []
