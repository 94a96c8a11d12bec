from collections import OrderedDict

import pytest
import torch

from treefold.errors import ArgumentError, MismatchError
from treefold.torch import average_models


def model(replica):
    """Return a small model with all kinds of entries, of which replica r holds 2**r."""
    made = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    made[0].half()
    made.register_buffer("mask", torch.tensor([True, False]))
    with torch.no_grad():
        for entry in made.state_dict().values():
            if entry.dtype is not torch.bool:
                entry.fill_(2**replica)
    return made


class TestAverageModels:
    def test_gives_a_model_for_models(self):
        models = [model(r) for r in range(3)]
        mean = average_models(models)
        assert type(mean) is torch.nn.Sequential
        wanted = {torch.float32: torch.tensor(7 / 3), torch.float16: torch.tensor(7 / 3).half()}
        for name, entry in mean.state_dict().items():
            if entry.dtype in wanted:
                assert (entry == wanted[entry.dtype]).all(), name
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in mean.parameters())
        for r, old in enumerate(models):
            assert (old[1].weight == 2**r).all()

    def test_gives_a_state_dict_for_state_dicts(self):
        states = [model(r).state_dict() for r in range(2)]
        mean = average_models(states)
        assert type(mean) is OrderedDict
        assert list(mean) == list(states[0])
        assert mean._metadata == states[0]._metadata
        fresh = model(5)
        fresh.load_state_dict(mean)
        assert (fresh[1].bias == 1.5).all()
        assert (states[0]["1.bias"] == 1).all()

    @pytest.mark.parametrize("of", [lambda made: made, lambda made: made.state_dict()], ids=["models", "states"])
    def test_takes_what_comes_one_after_the_other(self, of):
        made = [of(model(r)) for r in range(3)]
        first, second = average_models(one for one in made), average_models(made)
        pairs = [one if isinstance(one, dict) else one.state_dict() for one in (first, second)]
        assert all(torch.equal(entry, pairs[1][name]) for name, entry in pairs[0].items())

    def test_weighs(self):
        mean = average_models([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}], weights=[100, 50])
        assert mean["w"].item() == 2
        with pytest.raises(ArgumentError, match=r"^weights has 1 number for 2 replicas"):
            average_models([{"w": torch.ones(1)}, {"w": torch.ones(1)}], weights=[1])

    def test_does_not_mind_the_order_of_entries(self):
        one, two = torch.tensor([1.0]), torch.tensor([2.0])
        mean = average_models([{"a": one, "b": two}, {"b": one, "a": two}])
        assert {name: entry.item() for name, entry in mean.items()} == {"a": 1.5, "b": 1.5}
        assert list(mean) == ["a", "b"]

    @pytest.mark.parametrize(
        ("numbers", "mean"),
        [
            ((5, 5, 5), 5),
            ((1, 2, 4), 2),
            ((1, 2), 2),  # 1.5 goes to the even neighbour
            ((2, 3), 2),
            ((-1, -2, -2), -2),
            ((2**62 + 1, 2**62 + 1), 2**62 + 1),  # which float64 does not hold
            ((2**63 - 1, 2**63 - 1), 2**63 - 1),
        ],
    )
    def test_keeps_whole_numbers_whole(self, numbers, mean):
        average = average_models([{"n": torch.tensor(number)} for number in numbers])["n"]
        assert average.dtype is torch.int64
        assert average.shape == ()
        assert average.item() == mean

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint64])
    def test_keeps_every_integer_dtype(self, dtype):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        states = [{"n": torch.tensor([low, high, 3], dtype=dtype)}, {"n": torch.tensor([low, high, 5], dtype=dtype)}]
        average = average_models(states)["n"]
        assert average.dtype is dtype
        assert average.tolist() == [low, high, 4]

    def test_weighs_whole_numbers_too(self):
        states = [{"n": torch.tensor(10)}, {"n": torch.tensor(20)}]
        assert average_models(states, weights=[3, 1])["n"].item() == 12  # 12.5

    def test_keeps_flags_that_agree(self):
        assert average_models([model(r) for r in range(2)]).mask.tolist() == [True, False]
        sentence = (
            r"^The models do not agree on \['mask'\], which has no mean: it is no number\. "
            r"Make it equal in all models, or leave it out\.$"
        )
        with pytest.raises(ArgumentError, match=sentence):
            average_models([{"mask": torch.tensor([True])}, {"mask": torch.tensor([False])}])

    @pytest.mark.parametrize(
        ("other", "sentence"),
        [
            ({"b": torch.ones(2)}, r"^Replica 1 has nothing at \['a'\] where replica 0 has a value"),
            ({"a": torch.ones(3)}, r"^Replica 1 has float32 \(3,\) at \['a'\] where replica 0 has float32 \(2,\)"),
            ({"a": torch.ones(2).int()}, r"^Replica 1 has int32 \(2,\) at \['a'\] where replica 0 has float32 \(2,\)"),
        ],
    )
    def test_names_the_entry_that_differs(self, other, sentence):
        with pytest.raises(MismatchError, match=sentence):
            average_models([{"a": torch.ones(2)}, other])

    @pytest.mark.parametrize(
        "models",
        [
            [],
            iter([]),
            torch.nn.Sequential(torch.nn.ReLU()),
            {"a": torch.ones(1)},
            [torch.nn.Linear(1, 1), 3],
            [[torch.ones(1)]],
        ],
    )
    def test_takes_models_or_state_dicts(self, models):
        sentence = (
            r"^average_models got .*\. It takes a list of torch\.nn\.Module, or a list of their state_dict\(\)s\.$"
        )
        with pytest.raises(ArgumentError, match=sentence):
            average_models(models)

    def test_without_entries_changes_nothing(self):
        for _ in range(2):
            assert isinstance(average_models([torch.nn.ReLU(), torch.nn.ReLU()]), torch.nn.ReLU)
