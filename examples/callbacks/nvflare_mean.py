"""NVFlare's helper of weighted means, with the exact mean: contributions in any order give the same bits."""

from typing import Any

from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

import treefold


class ExactAggregationHelper(WeightedAggregationHelper):
    """WeightedAggregationHelper that adds arrays to a ``treefold.Mean`` for each name."""

    def add(self, data: dict[str, Any], weight: float, contributor_name: str, contribution_round: int) -> None:
        """Add the arrays of one contribution; ``weight`` is its number of steps, for example."""
        with self.lock:
            for name, array in data.items():
                if self.exclude_vars is not None and self.exclude_vars.search(name):
                    self.skipped_keys.add(name)
                    continue
                self.total.setdefault(name, treefold.Mean()).add(array, weight=weight)
                self.key_contribution_counts[name] = self.key_contribution_counts.get(name, 0) + 1
            entry = {"contributor_name": contributor_name, "round": contribution_round, "weight": weight}
            self.history.append(entry)

    def get_result(self) -> dict[str, Any]:
        """Return the exact mean for each name, and begin again."""
        with self.lock:
            means = {name: mean.result() for name, mean in self.total.items()}
            self.last_aggregation_stats = self._compute_aggregation_stats()
            self.reset_stats()
        return means
