"""``treefold.keras.distribute``: the weights of one process, and the same bits on all ranks."""

import os
import subprocess
import sys

import numpy as np
import pytest
from keras_ranks import (
    accumulated,
    applied_all,
    applied_within,
    compiled_by_xla,
    saved,
    scaled,
    trained,
    trained_by_two,
    trained_embedding,
    trained_exactly,
    trained_on_one_core,
    trained_on_sums,
    trained_on_weighted_steps,
    without_callbacks,
)

IS_FULL = os.environ.get("TREEFOLD_CASES") == "full"
_WITHOUT_TREEFOLD = """
import sys
sys.modules["treefold"] = None
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
arrays = [keras.ops.convert_to_numpy(one) for one in model.weights]
np.save(sys.argv[2], np.concatenate([np.ravel(array).astype("float64") for array in arrays]))
x, y = np.load(sys.argv[3])["x"], np.load(sys.argv[3])["y"]
model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
assert int(model.optimizer.iterations) == 12
"""


def check_one_process(values, body, sizes=(2,), **arguments):
    """Assert that ranks hold the same bits, within 1e-4 of one process."""
    [(expected, *_)] = values(body, 1, **arguments)
    for size in sizes:
        ended = values(body, size, **arguments)
        assert len({digest for _, digest, *_ in ended}) == 1
        assert np.abs(ended[0][0] - expected).max() < 1e-4


class TestDistribute:
    @pytest.mark.also_on("tensorflow", "jax")
    def test_trains_as_one_process(self, values):
        # The other backends compile a step on each rank, which takes long.
        check_one_process(values, trained, (2, 3) if IS_FULL or values.backend == "torch" else (2,))

    def test_decays_and_averages_weights_as_one_process(self, values):
        options = {"weight_decay": 0.05, "use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3}
        check_one_process(values, trained, optimizer="AdamW", clipnorm=0.05, **options)

    def test_gives_the_bits_of_one_process(self, values):
        """A layer with gradients that no order of sums rounds, on 1, 2 and 3 ranks."""
        assert len({digest for size in (1, 2, 3) for digest in values(trained_exactly, size)}) == 1

    @pytest.mark.also_on("tensorflow", "jax")
    def test_trains_on_one_core(self, values):
        """Where one thread has to run the step, and to do all that the call in it waits for."""
        assert values(trained_on_one_core, 2) == [4, 4]

    @pytest.mark.also_on("tensorflow")
    def test_averages_the_rows_of_embeddings(self, values):
        check_one_process(values, trained_embedding)

    @pytest.mark.also_on("jax")
    def test_trains_models_of_several_optimizers(self, values):
        cases = [
            {"compiled": 0, "distributed": 2},
            {"compiled": 1, "distributed": 2},
            {"compiled": 1, "distributed": 1},
        ]
        ended = {digest for case in cases for size in (1, 2) for digest in values(trained_by_two, size, **case)}
        assert len(ended) == 1

    def test_refuses_sums_of_losses(self, values):
        """Their gradients would be halved on 2 ranks; the weight of the loss that the sentence names gives the sum."""
        sentence = (
            "The loss MeanSquaredError has reduction='sum', and ranks average gradients: they would be those of one "
            "process, divided by the number of ranks. Leave reduction out; for the sum, pass "
            "loss_weights=float(batch * group.size) to compile, where batch is the batch size of one rank."
        )
        assert values(trained_on_sums, 2) == [("KerasError", sentence)] * 2

    def test_weighs_samples_as_one_process(self, values):
        check_one_process(values, trained_on_weighted_steps)

    def test_averages_what_it_is_given(self, values):
        first, *others = values(applied_all, 3)
        assert others == [first, first]
        mean, without_1 = -7 / 3, -5 / 3
        close = pytest.approx
        assert first["plain"] == first["twice"] == close([mean, mean])
        assert first["none"] == close([without_1, mean])
        assert first["clipped"] == close([-(6**-0.5), -(6**-0.5)])
        assert first["overwritten"] == (
            "KerasError",
            "Keras overwrites one with its gradient, as in float8 training, and such gradients have no average. "
            "Use another dtype policy.",
        )

    @pytest.mark.also_on("jax")
    def test_reduces_accumulated_gradients_once(self, values):
        [(expected, _, _)] = values(accumulated, 1)
        ended = values(accumulated, 2)
        assert len({digest for _, digest, _ in ended}) == 1
        assert np.abs(ended[0][0] - expected).max() < 1e-4
        assert [calls for *_, calls in ended] == [4, 4]

    @pytest.mark.also_on("jax")
    @pytest.mark.parametrize("is_given", [False, True])
    def test_skips_a_step_on_all_ranks(self, values, is_given):
        """One rank's gradient is infinite in one of 4 steps, in mixed_float16: the scale is halved once."""
        first, second = values(scaled, 2, is_given=is_given)
        assert first == second
        assert first[:2] == (0.5, 3)

    def test_is_not_checked_rank_by_rank(self, values):
        """A loss scale optimizer around it is refused, where no callback has put it right."""
        sentence = (
            "Keras has put this optimizer into a LossScaleOptimizer, which looks at gradients before they are "
            "averaged. Pass callbacks=treefold.keras.callbacks(group) to fit, or distribute "
            "keras.optimizers.LossScaleOptimizer(optimizer)."
        )
        for kind, said in values(applied_within, 2):
            assert kind == "KerasError"
            assert sentence in said

    def test_needs_the_callbacks_in_fit(self, values):
        """Without them ranks may start from different weights; a loop of one's own is free."""
        sentence = (
            "This fit averages gradients, and lets ranks start from different weights. "
            "Pass callbacks=treefold.keras.callbacks(group) to it."
        )
        for kind, said in values(without_callbacks, 1)[0]:
            assert kind == "KerasError"
            assert sentence in said

    def test_saves_what_loads_without_treefold(self, values, tmp_path):
        from keras_ranks import data  # noqa: PLC0415 - beside what it is for

        model, weights, given = tmp_path / "model.keras", tmp_path / "weights.npy", tmp_path / "given.npz"
        [(expected, _), _] = values(saved, 2, path=str(model))
        x, y = data()
        np.savez(given, x=x, y=y)
        command = [sys.executable, "-c", _WITHOUT_TREEFOLD, model, weights, given]
        done = subprocess.run(  # noqa: S603 - our own script
            command, env=values.environment, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        assert np.array_equal(np.load(weights), expected)


class TestXla:
    @pytest.mark.also_on("tensorflow", "jax")
    def test_is_refused_for_tensorflow(self, values):
        if values.backend == "torch":
            pytest.skip("PyTorch's compiler takes a minute for this model")
        sentence = "XLA compiles this step, and cannot call other processes: pass jit_compile=False to compile."
        refused = ("KerasError", sentence) if values.backend == "tensorflow" else "done"
        assert values(compiled_by_xla, 1) == [refused]
