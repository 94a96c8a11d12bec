"""The strategy for Flower: by Flower where it is installed, and always by what stands for it here."""

import itertools
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import treefold

STRATEGY = Path(__file__).parents[2] / "examples" / "callbacks" / "flower_mean.py"
CLIENTS = [
    (np.random.default_rng(client).normal(size=100).astype(np.float32), 100 + 37 * client) for client in range(4)
]


class PretendedArray:
    """An array as Flower sends it."""

    def __init__(self, array):
        self._array = np.array(array)

    def numpy(self):
        return self._array


class PretendedFedAvg:
    """The part of Flower's own strategy that is used: settings that are attributes."""

    weighted_by_key = "num-examples"

    def train_metrics_aggr_fn(self, contents, key):
        return {"loss": sum(next(iter(one.metric_records.values()))[key] for one in contents)}


def pretended(monkeypatch):
    """Put modules in the place of Flower's; return what makes a client's reply, or a failure of one."""
    names = {"Array": PretendedArray, "ArrayRecord": dict, "Message": object, "MetricRecord": dict}
    for name, members in {
        "flwr": {},
        "flwr.app": names,
        "flwr.serverapp": {},
        "flwr.serverapp.strategy": {"FedAvg": PretendedFedAvg},
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    def reply(array, metrics):
        records = {"array_records": {"arrays": {"w": PretendedArray(array)}}, "metric_records": {"metrics": metrics}}
        return SimpleNamespace(has_content=lambda: True, content=SimpleNamespace(**records))

    return reply, SimpleNamespace(has_content=lambda: False)


def real(_):
    """Return what makes a client's reply by Flower, and a failure of one."""
    app = pytest.importorskip(
        "flwr.app", reason="Flower is not installed: its dependencies exclude others of this suite"
    )
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity  # who asks, as in a run of Flower's
    identity.run_id = identity.node_id = identity.task_id = 1
    asked = app.Message(app.RecordDict(), dst_node_id=1, message_type="train")

    def reply(array, metrics):
        records = {"arrays": app.ArrayRecord({"w": app.Array(array)}), "metrics": app.MetricRecord(metrics)}
        return app.Message(app.RecordDict(records), reply_to=asked)

    return reply, app.Message(app.Error(code=0, reason="it failed"), reply_to=asked)


@pytest.mark.parametrize("flower", [pretended, real])
class TestExactFedAvg:
    def test_makes_the_exact_mean_of_replies_in_any_order(self, flower, monkeypatch):
        reply, failure = flower(monkeypatch)
        strategy = runpy.run_path(str(STRATEGY))["ExactFedAvg"]()
        replies = [reply(array, {"num-examples": samples, "loss": 1.0}) for array, samples in CLIENTS]
        models, samples = zip(*CLIENTS, strict=True)
        expected = treefold.average(models, weights=samples).tobytes()
        for order in itertools.permutations(replies):
            arrays, metrics = strategy.aggregate_train(1, iter([order[0], failure, *order[1:]]))
            assert arrays["w"].numpy().tobytes() == expected
            assert set(metrics) == {"loss"}

    def test_makes_no_model_if_all_have_failed(self, flower, monkeypatch):
        _, failure = flower(monkeypatch)
        strategy = runpy.run_path(str(STRATEGY))["ExactFedAvg"]()
        assert strategy.aggregate_train(1, [failure]) == (None, None)
