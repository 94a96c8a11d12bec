"""The simulator's clock in Python: what the native one does, to compare it with, and where that is missing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from treefold.cost.flow import Sharing
from treefold.cost.lanes import Lane, Needs

_AT_ONCE = 1 + 1e-9  # what ends within a billionth of the time that has passed ends together
_STARTS = -1  # instead of a version: the latency is over


class Clock:
    """Runs lanes to their end. ``starts[l][c]`` and ``stops[l][c]`` are the seconds of chunk c on lane l."""

    def __init__(
        self, lanes: Sequence[Lane], needs: Sequence[Needs], capacities: Sequence[float], num_chunks: int
    ) -> None:
        """Set up the clock at 0 and run it until nothing happens any more."""
        self.lanes, self.needs, self.num_chunks = lanes, needs, num_chunks
        self.starts: list[list[float]] = [[] for _ in lanes]
        self.stops: list[list[float]] = [[] for _ in lanes]
        self._lanes_of: list[list[int]] = [[] for _ in needs]
        for number, lane in enumerate(lanes):
            self._lanes_of[lane.task].append(number)
        self._followers: list[list[int]] = [[] for _ in needs]
        for task, need in enumerate(needs):
            for other, _ in need:
                self._followers[other] += self._lanes_of[task]
        self._done = [0] * len(needs)
        self._is_busy = [False] * len(lanes)
        self._events: list[tuple[float, int, int]] = []  # (time, lane, _STARTS or the version of its rate)
        self._version = [0] * len(lanes)  # an event of an older version is void: the rate has changed since
        self._left = [0.0] * len(lanes)  # of a chunk, when the rate last changed
        self._rate = [0.0] * len(lanes)
        self._since = [0.0] * len(lanes)
        self._sharing = Sharing([lane.resources for lane in lanes], [lane.nbytes for lane in lanes], capacities)
        self.now = 0.0
        self._run()

    def _run(self) -> None:
        events, version = self._events, self._version
        self._start(range(len(self.lanes)))
        self._share()
        while events:
            soon = max(self.now, events[0][0]) * _AT_ONCE
            freed: dict[int, None] = {}
            while events and events[0][0] <= soon:
                time, lane, what = heapq.heappop(events)
                if what == _STARTS:
                    self.now = max(self.now, time)
                    self._flow(lane, freed)
                elif what == version[lane]:
                    self.now = max(self.now, time)
                    self._sharing.remove(lane)
                    self._end(lane, freed)
            self._start(freed)
            self._share()

    def _start(self, lanes: Iterable[int]) -> None:
        """Start every one of these lanes that is free and has what its next chunk needs, and what that sets free."""
        done = self._done
        while lanes:
            freed: dict[int, None] = {}
            for number in lanes:
                chunk = len(self.stops[number])
                if self._is_busy[number] or chunk == self.num_chunks:
                    continue
                lane = self.lanes[number]
                for other, counts in self.needs[lane.task]:
                    if done[other] < counts[chunk]:
                        break
                else:
                    self._is_busy[number] = True
                    self.starts[number].append(self.now)
                    if lane.alpha_s > 0:
                        heapq.heappush(self._events, (self.now + lane.alpha_s, number, _STARTS))
                    else:
                        self._flow(number, freed)
            lanes = freed

    def _flow(self, number: int, freed: dict[int, None]) -> None:
        lane = self.lanes[number]
        if not lane.resources or lane.nbytes <= 0:
            self._end(number, freed)
            return
        self._left[number], self._rate[number], self._since[number] = 1.0, 0.0, self.now
        self._sharing.add(number)

    def _share(self) -> None:
        """Give every lane its new rate, and say when its chunk will end at that."""
        now = self.now
        for lane, rate in self._sharing.changes().items():
            old = self._rate[lane]
            if rate != old:
                self._left[lane] -= old * (now - self._since[lane])
                self._rate[lane], self._since[lane] = rate, now
                self._version[lane] += 1
                heapq.heappush(self._events, (now + max(self._left[lane], 0.0) / rate, lane, self._version[lane]))

    def _end(self, number: int, freed: dict[int, None]) -> None:
        self._version[number] += 1
        self.stops[number].append(self.now)
        self._is_busy[number] = False
        freed[number] = None
        task = self.lanes[number].task
        siblings = self._lanes_of[task]
        done = len(self.stops[number]) if len(siblings) == 1 else min(len(self.stops[lane]) for lane in siblings)
        if done > self._done[task]:
            self._done[task] = done
            freed.update(dict.fromkeys(self._followers[task]))
