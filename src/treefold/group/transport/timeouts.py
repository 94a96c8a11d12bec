"""How long calls may be told to wait."""

from __future__ import annotations

from treefold.errors import ArgumentError

#: What sockets and queues can wait for: 11 days.
MOST_SECONDS = 1e6
_SECONDS = "a number of seconds above 0"


def checked_seconds(caller: str, **given: object) -> float:
    """Return the one argument that is given, as far as anything can wait.

    Raises:
        ArgumentError: it is no time.

    """
    [seconds] = given.values()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ArgumentError.connect(_SECONDS, caller, **given)
    return min(seconds, MOST_SECONDS)
