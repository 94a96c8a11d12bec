"""Groups on the fake network, one rank on each host: quick, and every byte is counted."""

from fake_network import FakeNetwork

from treefold.engines.interface import Limits
from treefold.group import Group
from treefold.group.links.hosts import ChannelLink
from treefold.group.links.rounds import Rounds
from treefold.group.plans import Layout


def run(size, body, *, seed=1, guarantee="exact", chunk_bytes=1 << 12, is_prompt=False):
    """Call ``body(group)`` on every rank; return the network, and what each call has returned."""
    limits = Limits(tags=1024, message_bytes=1 << 31, chunk_bytes=chunk_bytes)
    network = FakeNetwork(size, seed, limits=limits, is_prompt=is_prompt)

    def live(channel):
        layout = Layout(tuple((rank,) for rank in range(size)), guarantee)
        link = ChannelLink(Rounds(channel), layout, None, None, result_bytes=1 << 30, timeout_seconds=60.0)
        with Group(link) as group:
            return body(group)

    outcomes = network.run(live)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return network, outcomes
