"""``assert_same_training``: what passes, and how differences, errors and deaths are named."""

import pytest
from torch_ranks import same_trainings

from treefold import errors
from treefold.testing import assert_same_training


class TestAssertSameTraining:
    def test_passes_what_is_the_same(self):
        assert_same_training(same_trainings.train, ranks=(1, 2))

    @pytest.mark.parametrize(
        ("train", "ranks", "text"),
        [
            (
                "seeded_by_rank",
                (1, 2),
                r"^2 ranks differ from 1 at step 1, in logged loss and \d+ more\. Usual causes: ",
            ),
            ("raises", (2,), r"(?s)^Rank 1 of 2 raised:\n.*ZeroDivisionError"),
            ("dies", (2,), r"^Rank 1 of 2 raised:\nit died without an error$"),
            ("ends", (1, 2), r"^2 ranks differ from 1: 2 steps in place of 3\. Yield once after every step\.$"),
        ],
    )
    def test_names_what_differs(self, train, ranks, text):
        with pytest.raises(errors.NotReproducibleError, match=text) as caught:
            assert_same_training(getattr(same_trainings, train), ranks=ranks)
        assert isinstance(caught.value, AssertionError)

    def test_does_not_wait_forever(self):
        with pytest.raises(errors.NotReproducibleError, match=r"^Rank . of 2 has not ended in 12 s\. Give it longer"):
            assert_same_training(same_trainings.waits, ranks=(2,), timeout_seconds=12)

    @pytest.mark.parametrize("ranks", [(), (0,), (1.5,)])
    def test_refuses_numbers_of_ranks(self, ranks):
        with pytest.raises(errors.ArgumentError, match=r"^assert_same_training got ranks="):
            assert_same_training(same_trainings.train, ranks=ranks)
