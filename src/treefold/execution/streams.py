"""Runs a schedule on whatever has streams and events: a GPU runtime, or a fake one that looks for races."""

from __future__ import annotations

import abc
from typing import Any

from treefold.execution.schedule import Operation, Schedule, Stream


class Driver(abc.ABC):
    """A runtime with streams. Calls come from one thread and need not wait for what they start."""

    @abc.abstractmethod
    def wait(self, stream: Stream, event: Any) -> None:
        """Let everything that ``stream`` is given from now on wait for an event of another stream."""

    @abc.abstractmethod
    def perform(self, operation: Operation) -> None:
        """Give an operation to its stream."""

    @abc.abstractmethod
    def signal(self, stream: Stream) -> Any:
        """Return an event that comes when ``stream`` has done all that it was given so far."""


def issue(schedule: Schedule, driver: Driver) -> None:
    """Give every operation to its stream, and every wait before it."""
    events: dict[int, Any] = {}
    for position, operation in enumerate(schedule.operations):
        for other in operation.waits:
            driver.wait(operation.stream, events[other])
        driver.perform(operation)
        if position in schedule.signals:
            events[position] = driver.signal(operation.stream)
