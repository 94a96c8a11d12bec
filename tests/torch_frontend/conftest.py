"""Ports."""

import socket

import pytest


@pytest.fixture
def unused_port():
    """A port that nobody listened at a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
