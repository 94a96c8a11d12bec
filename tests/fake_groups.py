"""Groups on the fake network, one rank on each host: quick, and every byte is counted."""

from fake_network import FakeNetwork

from treefold.engines.interface import Limits
from treefold.group import Group
from treefold.group.plans import RankLayout
from treefold.group.transport.failures import Rounds
from treefold.group.transport.hosts import ChannelLink


def group_on(channel, guarantee="exact", *, timeout_seconds=60.0):
    """Return a group over a channel; so are those that go on without some of its ranks."""
    link = ChannelLink(
        Rounds(channel),
        RankLayout(tuple((rank,) for rank in range(channel.size)), guarantee),
        None,
        lambda onward, _: group_on(onward, guarantee, timeout_seconds=timeout_seconds)._link,
        result_bytes=1 << 30,
        timeout_seconds=timeout_seconds,
    )
    return Group(link)


def run(size, body, *, seed=1, guarantee="exact", chunk_bytes=1 << 12, rails=1, is_prompt=False):
    """Call ``body(group)`` on every rank; return the network, and what each call has returned."""
    limits = Limits(tags=1024, message_bytes=1 << 31, chunk_bytes=chunk_bytes, rails=rails)
    network = FakeNetwork(size, seed, limits=limits, is_prompt=is_prompt)

    def live(channel):
        with group_on(channel, guarantee) as group:
            return body(group)

    outcomes = network.run(live)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return network, outcomes
