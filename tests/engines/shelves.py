"""Stores that are dictionaries, and fail or are slow when they are told to; and ranks that meet in them."""

import json
import threading
import time

from treefold.engines.roster import StoreRoster
from treefold.errors import ConnectError


class Shelf:
    """A store of this process, with as much of PyTorch's interface as ranks use."""

    def __init__(self):
        self._values, self._lock = {}, threading.Lock()
        self.error = None

    def set(self, key, value):
        """Keep a value."""
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        """Return a value."""
        return self._values[key]

    def check(self, keys):
        """Tell whether all are there."""
        return all(key in self._values for key in keys)

    def names(self):
        """Return the keys that are there."""
        return list(self._values)

    def delete_key(self, key):
        """Forget a value."""
        return self._values.pop(key, None) is not None

    def compare_set(self, key, expected, desired):
        """Set a value if it is as expected, and return what it is then; or fail."""
        if self.error is not None:
            raise self.error
        with self._lock:
            if self._values.get(key, b"") == expected.encode():
                self._values[key] = desired.encode()
            return self._values.get(key, expected.encode())


class Slow:
    """A store as one rank sees it, whose answers about some keys take a while."""

    def __init__(self, store, seconds, words=""):
        self._store, self._seconds, self._words = store, seconds, words

    def __getattr__(self, name):
        """Return what asks the store."""

        def ask(key, *values):
            if self._words in str(key):
                time.sleep(self._seconds)
            return getattr(self._store, name)(key, *values)

        return ask


def connect(store, rank, size, seconds):
    """Return what all ranks say, or the error."""
    try:
        one = StoreRoster(store, rank, size, "job")
        return [
            one.exchange(f"{round_number} of {rank}".encode(), time.monotonic() + seconds) for round_number in (1, 2)
        ]
    except ConnectError as error:
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


def die_behind_first_words(store, rank, size):
    """Be there as a process that is killed once all have come, and it has said its first words."""
    store.compare_set("job/0/tokens", "", json.dumps({rank: "of the dead"}))

    def say():
        tokens = {}
        while len(tokens) < size:
            time.sleep(0.005)
            tokens = json.loads(store.get("job/0/tokens"))
        if tokens[str(rank)] == "of the dead":
            store.set(f"job/0/words 0/{rank}", b"of the dead")

    threading.Thread(target=say, daemon=True).start()
