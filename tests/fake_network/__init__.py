"""A network of threads as ranks, in virtual time: a seed draws every delay and every fault."""

from fake_network.channel import FakeNetwork
from fake_network.errors import ChannelUseError, HangError
from fake_network.faults import Cut, Kill, Stop

__all__ = ["ChannelUseError", "Cut", "FakeNetwork", "HangError", "Kill", "Stop"]
