"""``treefold.keras.callbacks`` and ``steps``: what ``fit`` does on all ranks, and how it ends."""

import numpy as np
import pytest
from training_ranks import (
    broken,
    counted,
    counted_datasets,
    decided,
    dropped,
    logged,
    normalized,
    not_distributed,
    refused,
    resumed,
    smaller,
    started,
    stopped,
    unbuilt,
    uneven,
    unlike,
    warmed_up,
)


class TestCallbacks:
    def test_start_from_rank_0(self, values):
        first, second = values(started, 2)
        assert first == second
        assert first[1] == 5 + 8

    @pytest.mark.also_on("tensorflow")
    def test_let_dropout_differ(self, values):
        masks, weights = zip(*values(dropped, 2), strict=True)
        assert len(set(weights)) == 1
        assert 0.2 < np.mean(np.equal(*masks)) < 0.8

    @pytest.mark.also_on("tensorflow")
    def test_average_logs_by_samples(self, values):
        [expected] = values(logged, 1)
        first, second = values(logged, 2)
        assert first == second
        assert [sorted(log) for log in first] == [["loss", "val_loss"]] * 2
        for ours, theirs in zip(first, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)

    def test_average_moving_statistics(self, values):
        """The means and variances of all ranks' last batches, also for the validation."""
        first, second = values(normalized, 2)
        assert first == second

    def test_follow_rank_0(self, values, tmp_path):
        first, second = values(decided, 2, path=str(tmp_path))
        assert first == second
        assert first[:3] == (4, [0.25, 0.25, 0.25, 0.125], ["0.weights.h5"])

    def test_resume_where_rank_0_does(self, values, tmp_path):
        first, second = values(resumed, 2, path=str(tmp_path))
        assert first == second
        assert first[0] == [2, 3]

    def test_warm_up(self, values):
        sentence = (
            "warm_up_epochs sets the learning rate, and this optimizer has a schedule. "
            "Leave warm_up_epochs out, and let the schedule begin low."
        )
        assert values(warmed_up, 2) == [([0.25, 0.375, 0.5, 0.5, 0.125, 0.5], ("KerasError", sentence))] * 2

    def test_need_a_distributed_optimizer(self, values):
        sentence = (
            "No optimizer of this model averages gradients over the group of the callbacks. "
            "Call model.compile(optimizer=treefold.keras.distribute(optimizer, group), ...)."
        )
        assert values(not_distributed, 1) == [("KerasError", sentence)]

    @pytest.mark.parametrize("kind", ["nan", "callback of rank 0"])
    def test_stop_all_ranks_where_one_stops(self, values, kind):
        first, second = values(stopped, 2, kind=kind)
        assert first == second
        assert first[:2] == ([0, 1], 4 + 3)

    @pytest.mark.also_on("tensorflow")
    def test_need_a_model_that_is_built(self, values):
        """Weights that a step makes would differ from rank to rank; JAX and PyTorch make them before."""
        first, second = values(unbuilt, 2)
        assert first == second
        if values.backend == "tensorflow":
            assert first[0] == "KerasError"
            assert first[1] == (
                "The model did not have sequential/dense/kernel when fit began, so ranks start from different values "
                "of it. Build the model before: give it a keras.Input, or call it once on a batch."
            )


class TestErrors:
    @pytest.mark.parametrize("kind", ["optimizer", "warm up", "callbacks", "steps"])
    def test_of_a_refusal_on_one_rank(self, values, kind):
        (others, *goes_on), (own, *does_too) = values(refused, 2, kind=kind)
        assert own[0] == "KerasError"
        words = own[1].rstrip(".")
        assert others == (
            "CallMismatchError",
            f"Rank 1 could not make this call: {words}. Nothing was done, on no rank.",
        )
        assert goes_on == does_too == [3.0]

    @pytest.mark.also_on("tensorflow", "jax")
    def test_of_a_killed_rank(self, keras_ranks):
        *others, killed = keras_ranks(broken, 3, kind="kill")
        assert killed.signal == 9
        assert {one.value[0] for one in others} == {"PeerLostError"}
        assert all(one.value[1].startswith("Rank 2 ") for one in others), others

    def test_of_a_stopped_rank(self, keras_ranks):
        first, _ = keras_ranks(broken, 2, kind="stop", timeout_seconds=2.0)
        assert first.value[0] == "DeadlineError"
        assert first.value[1].startswith("Rank 1, which is stopped, had not come by the deadline")

    @pytest.mark.also_on("tensorflow", "jax")
    def test_of_unequal_epochs(self, values):
        places = "at the end of epoch 1, after 4 steps", "in step 5 of epoch 1"
        for place, (sentence, [note], total) in zip(places, values(uneven, 2), strict=True):
            assert "all_reduce" in sentence
            assert note.startswith(f"This rank was {place}. In fit all ranks make the same steps")
            assert total == 3.0

    def test_of_unlike_models(self, values):
        for [note] in values(unlike, 2):
            assert note.startswith("This rank was at the start of fit. ")

    def test_warns_of_unequal_batches(self, values):
        [sentence], others = values(smaller, 2)
        assert not others
        assert sentence.startswith(
            "In this epoch one rank has trained on 46 samples and another on 48, in as many steps. A mean of the means "
            "of unequal batches is wrong."
        )


class TestSteps:
    def test_are_the_least(self, values):
        assert values(counted, 3, counts=[[7, 2], [5, 9], [6, 3]]) == [[5, 2]] * 3

    @pytest.mark.also_on("tensorflow")
    def test_need_equal_batches_of_a_known_number(self, values):
        [found] = values(counted_datasets, 1)
        unknown = (
            "KerasError",
            "steps got a dataset of unknown or infinite length. Pass the number of batches that this rank has in an "
            "epoch.",
        )
        partial = "The last batch of this dataset may be smaller, and a mean of the means of unequal batches is wrong. "
        assert found == {
            "whole": 3,
            "partial": ("KerasError", f"{partial}Drop it: dataset.batch(n, drop_remainder=True)."),
            "endless": unknown,
            "generator": unknown,
            "filtered": unknown,
            "loader": 3,
            "partial loader": ("KerasError", f"{partial}Drop it: DataLoader(..., drop_last=True)."),
            "whole loader": 2,
            "list": 2,
            "number of NumPy's": 4,
            "array": (
                "KerasError",
                "steps got an array of shape (10, 3), and counts batches. "
                "Pass len(x) // batch, and train on x[: batch * steps(...)].",
            ),
        }

    def test_refuse_none(self, values):
        sentence = "steps got 0. It takes a number of batches, 1 or more, or a dataset that knows how many it has."
        assert values(counted, 1, counts=[[0]]) == [[("KerasError", sentence)]]
