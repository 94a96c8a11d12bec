"""A rank on a host of a lab: it makes the calls that it is told by lines of JSON, and prints what becomes of each."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import treefold
from treefold.errors import TreefoldError

sys.path.append(str(Path(__file__).parents[1]))
import exact_cases
import partial_ranks

LENGTH = 100_000
_RANK = int(os.environ["RANK"])


class Caller:
    """The lines of a user's script, one method for each; each returns what it saw."""

    group: treefold.Group

    def connect(self, timeout_seconds, connect_timeout_seconds=60.0, **options):
        seconds = {"timeout_seconds": timeout_seconds, "connect_timeout_seconds": connect_timeout_seconds}
        self.group = treefold.connect(**seconds, **options)
        return self.group.size

    def reduce(self):
        total = self.group.all_reduce(np.full(LENGTH, 2.0**_RANK))
        assert (total == total[0]).all()
        return total[0]

    def reduce_until_error(self):
        """Add as long as it goes well; the error tells how late it was, and whether its output is torn."""
        for number in range(1_000_000):
            out, began = np.full(LENGTH, -1.0), time.monotonic()
            try:
                self.group.all_reduce(np.full(LENGTH, 2.0**_RANK + number), out=out)
            except TreefoldError as error:
                late = time.monotonic() - began - self.group._link.timeout_seconds
                return {**described(error), "late": late, "is_as_it_was": bool((out == -1).all())}
            assert (out == out[0]).all()
        raise AssertionError(number)

    def partials(self):
        """Add hostile numbers over all ranks: to sums that go on, and of whole arrays."""
        of_whole = exact_cases.digest_of(_RANK, self.group.size, self.group)
        return [*partial_ranks.mean_over(self.group), partial_ranks.scattered_over(self.group), of_whole]

    def without(self, lost, seconds=60.0):
        self.group = self.group.without(lost, connect_timeout_seconds=seconds)
        return self.group.size

    def close(self):
        self.group.close()


def described(error):
    return {"error": type(error).__name__, "says": str(error), "ranks": list(getattr(error, "ranks", ()))}


def main():
    """Make one call for each line of the input."""
    caller = Caller()
    for line in sys.stdin:
        name, options = json.loads(line)
        began = time.monotonic()
        try:
            told = getattr(caller, name)(**options)
        except TreefoldError as error:
            told = described(error) | {"took": time.monotonic() - began}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
