"""A strategy for Flower: FedAvg with the exact mean as its model, so that replies in any order give the same bits."""

from collections.abc import Iterable

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

import treefold


class ExactFedAvg(FedAvg):
    """FedAvg that adds each reply's arrays to a ``treefold.Mean``, with the number of examples as the weight."""

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 - FedAvg's signature
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the exact mean of the arrays; metrics are aggregated as in FedAvg."""
        mean, contents = treefold.Mean(), []
        for reply in replies:
            if reply.has_content():  # else the client has failed
                (arrays,) = reply.content.array_records.values()
                (metrics,) = reply.content.metric_records.values()
                model = {name: array.numpy() for name, array in arrays.items()}
                mean.add(model, weight=metrics[self.weighted_by_key])
                contents.append(reply.content)
        if not contents:
            return None, None
        averaged = {name: Array(array) for name, array in mean.result().items()}
        return ArrayRecord(averaged), self.train_metrics_aggr_fn(contents, self.weighted_by_key)
