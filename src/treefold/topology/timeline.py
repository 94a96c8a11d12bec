"""A plan on a machine over time: when each link and device is busy, and the critical path."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.keyed import grouped

Span = tuple[float, float]  # start and stop in seconds
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Activity:
    """One action of a plan on one route or device, chunk by chunk.

    Attributes:
        kind: ``"copy"``, ``"combine"`` or ``"concat"``.
        step: Number of the step from 1, as in the plan's text.
        pack: Number of the pack from 0.
        route: The nodes from the sending device to the receiving one; a single device if nothing crosses a link.
        nbytes: Bytes of all chunks, which have one size.
        spans: When each chunk was in transit, its latency included.

    """

    kind: str
    step: int
    pack: int
    route: tuple[str, ...]
    nbytes: float
    spans: tuple[Span, ...]

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The directed links that the action crosses, by their ends."""
        return tuple(itertools.pairwise(self.route))


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a link or device: bytes in all, seconds for which it was busy, and when."""

    nbytes: float
    busy_s: float
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """A part of the critical path: span number ``span`` (from 0) of ``activities[activity]``."""

    activity: int
    span: int
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Timeline:
    """A plan on a machine over time, from 0 to ``duration_s``; no activity begins before the launch is over.

    Attributes:
        duration_s: Seconds from the call to the end of the last chunk.
        nbytes: Bytes of one replica's values.
        num_chunks: The number of chunks that every pack is cut into.
        activities: The actions of the plan, each with a span per chunk.
        critical_path: Spans that each waited for the one before. The last of them ends the plan.
        chunks_per_span: How many chunks a span stands for. More than 1 if a long pipeline was simulated with fewer
            chunks of the same size, and its times stretched.

    """

    duration_s: float
    nbytes: float
    num_chunks: int
    activities: tuple[Activity, ...]
    critical_path: tuple[Wait, ...]
    chunks_per_span: float = 1.0

    def __reduce__(self) -> tuple[type[Timeline], tuple[Any, ...]]:
        """Copy and pickle the fields; what was derived from them is derived again."""
        return type(self), tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        """Return one line with the duration."""
        amounts = f"{bytes_in_words(self.nbytes)} in {seconds_in_words(self.duration_s)}"
        return f"<Timeline: {amounts}, {counted(len(self.activities), 'activity', 'activities')}>"

    def lasting(self, duration_s: float) -> Timeline:
        """Return the same activities with all times scaled, so that they end after ``duration_s``."""
        scale = duration_s / self.duration_s if self.duration_s else 1.0
        activities = tuple(
            dataclasses.replace(one, spans=tuple((start * scale, stop * scale) for start, stop in one.spans))
            for one in self.activities
        )
        waits = tuple(
            dataclasses.replace(wait, start_s=wait.start_s * scale, stop_s=wait.stop_s * scale)
            for wait in self.critical_path
        )
        return dataclasses.replace(self, duration_s=duration_s, activities=activities, critical_path=waits)

    @property
    def algbw_bytes_per_s(self) -> float:
        """Bytes of one replica's values per second; 0 where nothing had to be done."""
        return self.nbytes / self.duration_s if self.duration_s else 0.0

    @cached_property
    def links(self) -> Mapping[tuple[str, str], Use]:
        """The use of every directed link that carried something, by its ends."""
        return self._used((ends, activity) for activity in self.activities for ends in activity.links)

    @cached_property
    def devices(self) -> Mapping[str, Use]:
        """The use of every device that folded, laid out or copied something within itself."""
        return self._used((one.route[0], one) for one in self.activities if len(one.route) == 1)

    def _used(self, pairs: Iterable[tuple[_Key, Activity]]) -> Mapping[_Key, Use]:
        return MappingProxyType({key: self._use(activities) for key, activities in grouped(pairs).items()})

    def _use(self, activities: Iterable[Activity]) -> Use:
        spans = merged(span for activity in activities for span in activity.spans)
        busy = sum(stop - start for start, stop in spans)
        return Use(sum(activity.nbytes for activity in activities), busy, spans)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the union of spans as spans that do not touch, in order.

    >>> merged([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0)])
    ((0.0, 2.0), (3.0, 4.0))
    """
    found: list[Span] = []
    for start, stop in sorted(spans):
        if stop <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)
