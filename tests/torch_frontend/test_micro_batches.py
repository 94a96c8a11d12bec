"""``MicroBatches``: one training, one SHA, on any number of ranks, plain, DDP, FSDP2 and HSDP."""

import pathlib
import random
import re
import tempfile
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch_ranks import Raised, micro_batches, run

from treefold import errors
from treefold.torch import MicroBatches

LAYOUTS = [("plain", 2), ("plain", 3), ("plain", 8), ("ddp", 2), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4), ("row", 2)]


@pytest.fixture(scope="module")
def alone():
    """What one process trains, by network, optimizer, and whether in bfloat16."""
    known = {}

    def train(*key):
        if key not in known:
            network, optimizer, dtype = key
            torch.set_num_threads(1)
            known[key] = micro_batches.trained(0, 1, "plain", network, optimizer, is_autocast=dtype == "bfloat16")
        return known[key]

    return train


def runs(layout, *arguments, **options):
    kind, size = layout
    return run(micro_batches.trained_with, size, kind, arguments, options, backend="gloo")


class TestOneSha:
    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}-{layout[1]}")
    @pytest.mark.parametrize("network", ["transformer", "convolutions"])
    def test_of_parameters_optimizer_losses_and_norms(self, layout, network, alone):
        expected = alone(network, "adamw", "float32")
        assert runs(layout, network) == [expected] * layout[1]

    @pytest.mark.parametrize("layout", [("plain", 2), ("fsdp", 3), ("hsdp", 4)], ids=lambda layout: layout[0])
    def test_with_momentum(self, layout, alone):
        assert runs(layout, "convolutions", "momentum") == [alone("convolutions", "momentum", "float32")] * layout[1]

    @pytest.mark.parametrize("layout", [("plain", 3), ("fsdp", 2)], ids=lambda layout: layout[0])
    def test_in_bfloat16_by_autocast(self, layout, alone):
        expected = alone("transformer", "adamw", "bfloat16")
        assert runs(layout, "transformer", "adamw", is_autocast=True) == [expected] * layout[1]

    def test_after_stops_on_other_numbers_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            whole, parts = pathlib.Path(folder, "whole"), pathlib.Path(folder, "parts")
            torch.set_num_threads(1)
            expected = micro_batches.stopped(0, 1, "plain", "convolutions", whole, 6)
            for size, steps in ((3, 2), (2, 3), (1, 1)):
                shas = run(micro_batches.stopped, size, "plain", "convolutions", parts, steps, backend="gloo")
            assert shas == [expected]


class TestFaults:
    """What is done wrong shows in the SHA, and is named."""

    @pytest.mark.parametrize(
        ("layout", "fault", "first"),
        [
            (("plain", 2), "dropout", "logged loss"),
            (("fsdp", 2), "norm", "gradient "),
        ],
    )
    def test_is_seen_and_named(self, layout, fault, first):
        torch.set_num_threads(1)
        known = micro_batches.train(0, 1, "plain", "transformer", fault=fault)
        [found, *_] = run(micro_batches.with_digests, layout[1], layout[0], fault, backend="gloo")
        assert found[0] != known[0]
        error = next(
            error
            for one, other in zip(known[3], found[3], strict=True)
            if (error := errors.NotReproducibleError.between("x", one, other))
        )
        assert str(error).startswith(f"x, in {first}")

    def test_a_sum_by_floats_is_seen(self, monkeypatch):
        """Gradients that are added in float32, in the order in which they come."""
        torch.set_num_threads(1)
        shas = {
            micro_batches.added_in_floats(monkeypatch, order)
            for order in (range(7), reversed(range(7)), (3, 5, 1, 0, 2, 6, 4))
        }
        assert len(shas) == 3


class TestCheck:
    @pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp"])
    def test_leaves_everything_as_it_was(self, kind):
        assert run(micro_batches.checked, 2, kind, None, backend="gloo") == [(True, True)] * 2

    @pytest.mark.parametrize("kind", ["plain", "fsdp"])
    def test_names_rank_and_parameter(self, kind):
        for answer in run(micro_batches.checked, 2, kind, "dropout", backend="gloo"):
            assert answer.kind == "NotReproducibleError"
            assert re.search(
                r"Micro-batch 1 differs on rank 1 from rank 0, in gradient \S+ and \d+ more\.", answer.text
            )

    def test_names_a_generator_that_is_not_seeded(self):
        [answer] = run(micro_batches.checked, 1, "plain", "generator", backend="gloo")
        assert "Micro-batch 0 differs in two runs on rank 0, in gradient words.weight and " in answer.text
        assert "a generator that is not seeded" in answer.text


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("group", "MicroBatches got 1 rank, and DistributedDataParallel has 2. Pass group="),
            ("reduce_dtype", "the model has MixedPrecisionPolicy(reduce_dtype=torch.bfloat16), which would round"),
            ("divide", "the model has set_gradient_divide_factor(2). MicroBatches makes the mean"),
            ("twice", "layers.1 ran backward twice in one micro-batch"),
            ("sync", "set_requires_gradient_sync(False), so its gradients of this micro-batch would be lost"),
            ("fused", "AdamW(fused=True) rounds elements differently by their place in a slice"),
            ("failed", "A micro-batch of step 0 has failed on rank 1. Begin the step anew with mine(0), on all ranks."),
        ],
    )
    def test_of_ranks(self, kind, text):
        for answer in run(micro_batches.refused, 2, kind, backend="gloo"):
            assert isinstance(answer, Raised)
            assert answer.kind == "ArgumentError"
            assert text in answer.text

    @pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)])
    def test_of_layers_that_keep_state(self, layer):
        trained = MicroBatches(nn.Sequential(nn.Linear(3, 3), layer), per_step=1)
        trained.mine(0)
        kept = rf"^1 is a {type(layer).__name__} in training mode, which keeps statistics .* Use GroupNorm or LayerNorm"
        with pytest.raises(errors.ArgumentError, match=kept), trained.micro_batch(0, 0):
            pass
        layer.eval()
        with trained.micro_batch(0, 0):
            pass

    def test_of_sparse_gradients(self):
        model = nn.Embedding(5, 2, sparse=True)
        trained = MicroBatches(model, per_step=1)
        trained.mine(0)
        with pytest.raises(errors.ArgumentError, match=r"^The gradient of weight is sparse, .* sparse=False"):  # noqa: SIM117
            with trained.micro_batch(0, 0):
                model(torch.tensor([1])).sum().backward()

    def test_of_static_graphs(self):
        [answer] = run(micro_batches.static_graph, 1, backend="gloo")
        assert answer.text.startswith("DistributedDataParallel(static_graph=True) cannot leave out its own reduction")

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"per_step": 0}, r"^MicroBatches got per_step=0\. It takes a whole number of 1 or more\.$"),
            ({"per_step": 1, "seed": "a"}, r"^MicroBatches got seed='a'\. It takes a whole number\.$"),
            ({"per_step": 1, "group": 3}, r"^MicroBatches got group=3\. It takes what treefold\.connect\(\) returns"),
        ],
    )
    def test_of_arguments(self, options, text):
        with pytest.raises(errors.ArgumentError, match=text):
            MicroBatches(nn.Linear(1, 1), **options)


class TestStep:
    """What a step counts, and what it refuses."""

    def made(self, per_step=3):
        model = nn.Linear(2, 1, bias=False)
        return model, MicroBatches(model, per_step=per_step, seed=4)

    def test_is_the_exact_weighted_mean_of_gradients_and_logged_values(self):
        model, trained = self.made()
        gradients, weights = [(1e30, 3.0), (1.0, 2.0**-149), (-1e30, 1.0)], [5, 7, 5]
        for index in trained.mine(0):
            with trained.micro_batch(0, index, weight=weights[index]):
                (model.weight * torch.tensor(gradients[index])).sum().backward()
                trained.log(loss=gradients[index][1])
        trained.reduce()
        columns = zip(*gradients, strict=True)
        sums = [
            sum(Fraction(float(np.float32(one))) * w for one, w in zip(each, weights, strict=True)) for each in columns
        ]
        assert model.weight.grad.tolist() == [[float(np.float32(float(one / 17))) for one in sums]]
        assert trained.logged == {"loss": float(sums[1] / 17)}

    def test_logs_infinities_and_nan(self):
        _, trained = self.made()
        for value, weights, expected in (
            (np.inf, (1, 2, 1), np.inf),
            (np.nan, (1, 1, 1), np.nan),
            (np.nan, (1, 0, 1), 2.0),
        ):
            for index in trained.mine(0):
                with trained.micro_batch(0, index, weight=weights[index]):
                    trained.log(loss=value if index == 1 else 2.0)
            trained.reduce()
            assert np.array_equal(trained.logged["loss"], expected, equal_nan=True)

    def test_refuses_other_names_in_the_log(self):
        _, trained = self.made()
        trained.mine(0)
        with trained.micro_batch(0, 0):
            trained.log(loss=1.0)
        text = r"^Micro-batch 1 of step 0 has logged \['lost'\], and those before it \['loss'\]\. Log the same names"
        with pytest.raises(errors.ArgumentError, match=text), trained.micro_batch(0, 1):
            trained.log(lost=1.0)

    def test_without_a_norm_returns_none_and_clips_nothing(self):
        model, trained = self.made(per_step=1)
        trained.mine(0)
        with trained.micro_batch(0, 0):
            (model.weight * 100).sum().backward()
        assert trained.reduce() is None
        assert model.weight.grad.tolist() == [[100, 100]]

    def test_seeds_and_restores_generators(self):
        def drawn():
            return float(torch.rand(())), random.random(), np.random.rand()  # noqa: NPY002, S311

        def seed_all():
            torch.manual_seed(1)
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002

        _, trained = self.made()
        seed_all()
        expected, seen = drawn(), []
        seed_all()
        for indices in ((0, 1), (1, 2)):
            trained.mine(0)
            for index in indices:
                with trained.micro_batch(0, index):
                    seen.append(drawn())
        assert drawn() == expected
        assert seen[1] == seen[2]
        assert len({number for numbers in seen for number in numbers}) == 9

    def test_refuses_one_twice_a_missing_one_and_another_step(self):
        _, trained = self.made()
        with pytest.raises(errors.ArgumentError, match=r"^No step has begun\. Call mine\(step\)"):
            trained.reduce()
        trained.mine(2)
        with trained.micro_batch(2, 1):
            pass
        for place, text in (
            ((2, 1), r"^Micro-batch 1 of step 2 was added before\."),
            ((2, 3), r"^micro_batch got index 3\. It takes what mine\(\) returns, from 0 to 2\.$"),
            ((3, 0), r"^micro_batch got step 3, and step 2 has begun\. Call mine\(3\) first\.$"),
        ):
            with pytest.raises(errors.ArgumentError, match=text), trained.micro_batch(*place):
                pass
        with pytest.raises(errors.ArgumentError, match=r"^Micro-batch 0 of step 2 is missing\."):
            trained.reduce()
        with pytest.raises(errors.ArgumentError, match=r"^Step 2 has begun, and its sums are not saved\."):
            trained.state_dict()

    def test_begins_anew_after_a_failure(self):
        model, trained = self.made(per_step=1)
        trained.mine(0)
        with pytest.raises(ZeroDivisionError), trained.micro_batch(0, 0):  # noqa: PT012
            model.weight.sum().backward()
            raise ZeroDivisionError
        with (
            pytest.raises(errors.ArgumentError, match=r"^A micro-batch of step 0 has failed"),
            trained.micro_batch(0, 0),
        ):
            pass
        trained.mine(0)
        with trained.micro_batch(0, 0):
            model.weight.sum().backward()
        trained.reduce()
        assert model.weight.grad.tolist() == [[1, 1]]

    def test_all_weights_0(self):
        _, trained = self.made(per_step=1)
        trained.mine(0)
        with trained.micro_batch(0, 0, weight=0):
            pass
        with pytest.raises(errors.ArgumentError, match=r"^All micro-batches of step 0 have weight 0\."):
            trained.reduce()

    def test_a_state_of_another_run(self):
        _, trained = self.made()
        assert trained.state_dict() == {"seed": 4, "per_step": 3, "next_step": 0}
        with pytest.raises(errors.ArgumentError, match=r"^MicroBatches got a state of "):
            trained.load_state_dict({"seed": 5, "per_step": 3, "next_step": 0})

    def test_takes_about_two_trees_of_memory(self):
        model = nn.Linear(1000, 100)
        trained = MicroBatches(model, per_step=4)
        for index in trained.mine(0):
            with trained.micro_batch(0, index):
                model(torch.randn(3, 1000)).square().sum().backward()
        assert trained.nbytes < 2.1 * sum(4 * one.numel() for one in model.parameters())
