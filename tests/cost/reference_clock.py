"""The simulator's clock, slow and obvious: what the native one must agree with, on the same arrays."""

AT_ONCE = 1 + 1e-9  # what ends within a billionth of the time that has passed ends together
SAME = 1 + 1e-9  # shares that differ by less are equal: what differs is the order in which they were added up


def max_min_rates(lanes, resources, nbytes, capacities):
    """Return how many chunks per second each of these lanes gets: all rise together, until a resource is full.

    Lane l uses ``resources[l]``, with ``nbytes[l]`` bytes per chunk.
    """
    rates, level = {}, 0.0
    while len(rates) < len(lanes):
        rising = [lane for lane in lanes if lane not in rates]
        share = {}
        for resource in {resource for lane in rising for resource in resources[lane]}:
            users = [lane for lane in lanes if resource in resources[lane]]
            left = capacities[resource] - sum(rates[lane] * nbytes[lane] for lane in users if lane in rates)
            share[resource] = left / sum(nbytes[lane] for lane in users if lane not in rates)
        level = max(level, min(share.values()))
        for lane in rising:
            if any(share[resource] <= level * SAME for resource in resources[lane]):
                rates[lane] = level
    return rates


class Clock:
    """Lanes at a time ``now``. Every time that anything happens, everybody's rate is found anew.

    Arguments are those of ``treefold._native.run_pipeline``.
    """

    def __init__(self, lanes):
        self.__dict__ |= lanes
        count = len(self.task)
        starts = self.resource_start
        self.used = [tuple(self.resources[starts[lane] : starts[lane + 1]].tolist()) for lane in range(count)]
        self.ended = [0] * count  # chunks
        self.waiting = {}  # by lane: when its latency ends
        self.left = {}  # by lane: the part of its chunk that has still to flow
        self.now = 0.0

    def run(self):
        """Let it run until nothing happens any more."""
        self.start_all()
        while self.waiting or self.left:
            rates = max_min_rates(list(self.left), self.used, self.nbytes, self.capacities)
            events = {lane: self.now + max(self.left[lane], 0.0) / rate for lane, rate in rates.items()} | self.waiting
            since, soon = self.now, max(self.now, min(events.values())) * AT_ONCE
            begun = self.end_all([item for item in sorted(events.items(), key=lambda item: item[1]) if item[1] <= soon])
            for lane in self.left:
                self.left[lane] -= rates[lane] * (self.now - since)
            for lane in begun:
                self.flow(lane)
            self.start_all()

    def end_all(self, events):
        """End chunks and latencies at their times, and return the lanes with latencies that are over."""
        begun = []
        for lane, time in events:
            self.now = max(self.now, time)
            if lane in self.waiting:
                del self.waiting[lane]
                begun.append(lane)
            else:
                del self.left[lane]
                self.end(lane)
        return begun

    def start_all(self):
        """Start what is ready, until nothing more is."""
        ready = [lane for lane in range(len(self.task)) if self.is_ready(lane)]
        while ready:
            for lane in ready:
                self.starts[lane, self.ended[lane]] = self.now
                if self.alpha_s[lane] > 0:
                    self.waiting[lane] = self.now + self.alpha_s[lane]
                else:
                    self.flow(lane)
            ready = [lane for lane in range(len(self.task)) if self.is_ready(lane)]

    def is_ready(self, lane):
        """Tell whether a lane is idle and has what its next chunk needs."""
        if lane in self.waiting or lane in self.left or self.ended[lane] == self.starts.shape[1]:
            return False
        rows = range(self.need_start[self.task[lane]], self.need_start[self.task[lane] + 1])
        return all(self.num_done(self.need_task[row]) >= self.need_counts[row][self.ended[lane]] for row in rows)

    def num_done(self, task):
        return min((self.ended[lane] for lane in range(len(self.task)) if self.task[lane] == task), default=0)

    def flow(self, lane):
        """Let a chunk begin to flow; of nothing, or over nothing, it has arrived."""
        if self.used[lane] and self.nbytes[lane] > 0:
            self.left[lane] = 1.0
        else:
            self.end(lane)

    def end(self, lane):
        self.stops[lane, self.ended[lane]] = self.now
        self.ended[lane] += 1


def run_pipeline(**lanes):
    Clock(lanes).run()
