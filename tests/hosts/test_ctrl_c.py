"""Ctrl-C or a handler's error anywhere in a call over hosts, on the fake network: all hear of it, or go on in step.

``TREEFOLD_CASES=full`` interrupts everywhere; else some of the places are drawn.
"""

import inspect
import os
import random
import sys
from pathlib import Path

import fake_groups
import numpy as np
import pytest

import treefold
from treefold import PerReplica
from treefold.errors import CallMismatchError, GroupError, PeerLostError

_ROOMS = tuple(str(Path(treefold.__file__).parent / room) for room in ("group", "calls", "execution"))
_MOST = 100_000
_IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"


class AlarmError(Exception):
    """What a user's handler of a signal raises."""


class Interrupting:
    """Raises an error as the nth function of a call over hosts begins or ends on this thread, once.

    Python runs handlers of signals where functions begin and behind calls. Left out are generators: they end blocks,
    and Python has no way to keep a signal out of that.
    """

    def __init__(self, link, number, error):
        self.link, self.left, self.error, self.where = link, number, error, ""

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _trace(self, frame, event, argument):
        del argument
        code = frame.f_code
        is_left_out = code.co_flags & inspect.CO_GENERATOR
        if is_left_out or not code.co_filename.startswith(_ROOMS):
            return None
        if self.link.under_way and event in {"call", "return"}:  # before, it has not begun a call
            self.left -= 1
            if self.left == 0:
                self.where = f"{event} of {code.co_qualname}"
                raise self.error
        return self._trace


def reduce_other_numbers(group, value):
    """Reduce one value of each rank, which rank 1 has done before it is interrupted, and then other numbers of them."""
    if group.rank != 1:
        group.all_reduce(value)
    group.all_reduce(PerReplica([value] * (3 - group.rank)))


CALLS = {
    "the first of its kind": lambda group, value: group.all_reduce(value),
    "numbers of replicas that differ": lambda group, value: group.all_reduce(PerReplica([value] * (1 + group.rank))),
    "numbers of replicas that change": reduce_other_numbers,
    "weights": lambda group, value: group.all_reduce(value, "mean", weights=1.0),
    "shapes that are told": lambda group, value: group.all_gather(value),
    "a barrier": lambda group, _: group.barrier(),
}


def outcome_of(call, group, value):
    """Return what became of a call: "done", "interrupted" or its error."""
    try:
        call(group, value)
    except (KeyboardInterrupt, AlarmError):
        return "interrupted"
    except GroupError as error:
        return error
    return "done"


def add(group, value):
    """Add, and look at the sum, of which each rank has its part."""
    assert group.all_reduce(value).tolist() == [7.0] * len(value)


def interrupted_at(number, name, error):
    """Interrupt rank 1 in a call of three, let all make another; return both outcomes of each, what is left, where."""
    left = []

    def body(group):
        value, call = np.full(3000, 2.0**group.rank), CALLS[name]
        if group.rank == 1:
            if call is reduce_other_numbers:
                group.all_reduce(value)
            with Interrupting(group._link, number, error) as interrupting:
                first = outcome_of(call, group, value)
            left.append((interrupting.left, interrupting.where))
        else:
            first = outcome_of(call, group, value)
        return first, outcome_of(add, group, value[:10])

    _, outcomes = fake_groups.run(3, body, seed=number, is_prompt=True)
    return outcomes, left[0]


class TestCtrlC:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, AlarmError])
    @pytest.mark.parametrize("name", CALLS)
    def test_anywhere(self, name, error):
        """The others finish the call, or are told at once who was interrupted; what follows fits together, too."""
        draw, number = random.Random(name), 0  # noqa: S311 - a test's choice
        for _ in range(_MOST):
            number += 1 if _IS_FULL else draw.randint(1, 40)
            ((first, second), (own, then), (third, last)), (left, where) = interrupted_at(number, name, error)
            if left > 0:
                break
            where = f"{where}: {[first, second, own, then, third, last]}"
            assert own == "interrupted", where
            assert all(_is_fair(told) for told in (first, third)), where
            assert all(told == "done" or _has_left(told) for told in (second, last)), where
            assert (then == "done") == (second == "done") == (last == "done"), where
        assert number > 50  # it has been interrupted somewhere


def _is_fair(told):
    """Tell whether a rank went on, lost the interrupted one, or was told its words before anything was done."""
    is_told = isinstance(told, CallMismatchError) and "Rank 1 could not make this call" in str(told)
    return told == "done" or is_told or _has_left(told)


def _has_left(told):
    return isinstance(told, PeerLostError) and told.ranks == (1,)
