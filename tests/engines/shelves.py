"""Stores that are dictionaries, and fail or are slow when they are told to; and ranks that meet in them."""

import threading
import time

from treefold.errors import ConnectError
from treefold.group.rosters import StoreRoster


class Shelf:
    """A store of this process, with as much of PyTorch's interface as ranks use."""

    def __init__(self):
        self._values = {}
        self.error = None

    def set(self, key, value):
        """Keep a value, or fail."""
        if self.error is not None:
            raise self.error
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        """Return a value."""
        return self._values[key]

    def check(self, keys):
        """Return whether all are there."""
        return all(key in self._values for key in keys)


def connect(store, rank, size, seconds):
    """Return what all ranks say in two steps, or the error."""
    one = StoreRoster(store, rank, size, "job")
    try:
        return [one.exchange(f"{step} of {rank}".encode(), time.monotonic() + seconds) for step in (1, 2)]
    except ConnectError as error:
        one.give_up(error)
        return error


def together(body, size=3):
    """Return what a function of a rank returns, on some ranks at once."""
    told = {}
    ranks = [threading.Thread(target=lambda rank=rank: told.update({rank: body(rank)})) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    return [told[rank] for rank in range(size)]
