"""``treefold.Mean`` and ``treefold.Sum``: values that arrive one after the other."""

import decimal
import hashlib
import pickle
import re
import threading
from fractions import Fraction

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

import treefold
from treefold import IndexedSlices, Mean, Sum
from treefold.errors import ArgumentError, DtypeError, MismatchError
from treefold.partials import leaves, partial_sum

FRAMEWORKS = {"NumPy": np.asarray, "PyTorch": torch.tensor, "JAX": jnp.asarray, "TensorFlow": tf.constant}


def clients(count, seed=0):
    """Return updates of clients, and how many samples each has seen."""
    random = np.random.default_rng(seed)
    updates = [
        {
            "dense": {"kernel": random.normal(size=(7, 30)).astype(np.float32), "bias": random.normal(size=30)},
            "half": [random.normal(size=50).astype(np.float16), random.normal(size=3).astype(ml_dtypes.bfloat16)],
        }
        for _ in range(count)
    ]
    return updates, random.integers(1, 5000, count).tolist()


def sha(tree):
    found, _ = treefold.values.flatten(tree)
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in found)).hexdigest()


class TestMean:
    def test_has_one_sha_in_a_thousand_orders_of_arrival_and_any_tree_of_merges(self):
        updates, samples = clients(6)
        expected = sha(treefold.average(updates, weights=samples))
        random = np.random.default_rng(1)
        found = set()
        for _ in range(1000):
            means = [Mean() for _ in range(random.integers(1, 4))]
            for client in random.permutation(6):
                means[random.integers(len(means))].add(updates[client], weight=samples[client])
            while len(means) > 1:
                last = means.pop()
                means[random.integers(len(means))].merge(last)
            found.add(sha(means[0].result()))
        assert found == {expected}

    def test_is_what_all_reduce_makes_of_all_at_once(self):
        updates, samples = clients(5)
        mean = Mean()
        for update, weight in zip(updates, samples, strict=True):
            mean.add(update, weight=weight)
        assert sha(mean.result()) == sha(treefold.all_reduce(updates, "mean", weights=samples)[0])
        assert (mean.count, mean.weight) == (5, sum(samples))

    def test_can_be_asked_and_goes_on(self):
        mean = Mean()
        mean.add(1.0)
        assert mean.result() == 1.0
        mean.add(2.0, weight=3)
        assert mean.result() == 1.75

    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_returns_what_was_added(self, framework):
        make = FRAMEWORKS[framework]
        value = {"a": make(np.float32([[1, 2]])), "b": (make(np.float16(3)), make(np.complex64(1 + 2j)))}
        mean = Mean()
        for _ in range(2):
            mean.add(value)
        result = mean.result()
        assert type(result["a"]) is type(value["a"])
        assert np.asarray(result["a"]).tolist() == [[1, 2]]
        assert [np.asarray(part).dtype for part in result["b"]] == [np.float16, np.complex64]
        assert np.asarray(result["b"][1]) == 1 + 2j

    def test_keeps_integers_flags_and_text_as_average_does(self):
        values = [
            {"step": step, "seen": np.int32([step, 7]), "on": np.bool_([True]), "name": "a", "no": None}
            for step in (1, 2)
        ]
        mean = Mean()
        for value in values:
            mean.add(value)
        result = mean.result()
        expected = treefold.average(values)
        assert (result["step"], result["name"], result["no"]) == (expected["step"], "a", None)
        assert type(result["step"]) is int
        assert result["seen"].tolist() == expected["seen"].tolist() == [2, 7]
        assert result["seen"].dtype == np.int32
        assert result["on"].tolist() == [True]

    def test_takes_any_layout_and_values_that_change_afterwards(self):
        value = np.arange(12, dtype=np.float32).reshape(3, 4)
        mean = Mean()
        for given in (value.T, value.copy().T, np.asfortranarray(value.T), torch.tensor(value).T, value.T[::-1][::-1]):
            mean.add(given)
        value[:] = 0
        assert mean.result().tolist() == np.arange(12).reshape(3, 4).T.tolist()

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "i4", "u8"])
    def test_takes_numbers_in_the_other_byte_order_as_they_are(self, dtype):
        value = np.arange(1, 4).astype(np.dtype(dtype).newbyteorder())
        for mean in (added(value), added(value.astype(dtype))):
            mean.add(value)
            assert mean.result().tolist() == [1, 2, 3]
            assert mean.result().dtype == dtype

    def test_takes_arrays_that_are_not_aligned(self):
        value = np.frombuffer(b"-" + np.float32([1, 2, 3]).tobytes(), np.uint8)[1:].view(np.float32)
        mean = added(value)
        mean.add(value)
        assert mean.result().tolist() == [1, 2, 3]

    def test_is_called_as_it_stands_by_the_compiler_of_torch(self):
        mean = added(torch.ones(3))

        @torch.compile(backend="eager")
        def step(value):
            mean.add(2 * value)
            return mean.result()

        assert step(torch.ones(3)).tolist() == [1.5] * 3

    def test_takes_parameters_of_a_model_and_refuses_what_autograd_records(self):
        model = torch.nn.Linear(2, 2)
        mean = Mean()
        for _ in range(2):
            mean.add(dict(model.named_parameters()))
        assert torch.equal(mean.result()["weight"], model.weight.detach())
        with pytest.raises(ArgumentError, match="detach"):
            mean.add({"weight": model.weight * 2, "bias": model.bias})
        assert mean.count == 2

    def test_reads_a_tensor_whose_storage_was_freed_no_further(self):
        mean, tensor = Mean(), torch.ones(5)
        mean.add(torch.ones(5))
        tensor.untyped_storage().resize_(0)
        with pytest.raises(ArgumentError, match="memory"):
            mean.add(tensor)

    @pytest.mark.parametrize("weight", [1, 5000, 2**63, 2.5, np.int64(7), np.float32(0.1), 2.0**-64, torch.tensor(3)])
    def test_takes_weights_as_the_numbers_that_they_are(self, weight):
        mean = Mean()
        mean.add(np.float64(1), weight=weight)
        mean.add(np.float64(3), weight=1)
        exact = Fraction(*np.asarray(weight).item().as_integer_ratio())
        assert mean.weight == exact + 1
        assert mean.result() == float((exact + 3) / (exact + 1))

    @pytest.mark.parametrize(
        "weight", [-1, 2**64, 2.0**-65, float("nan"), float("inf"), "3", None, [1], Fraction(1, 2), decimal.Decimal(1)]
    )
    def test_refuses_other_weights_with_what_to_do(self, weight):
        mean = Mean()
        with pytest.raises(ArgumentError, match=re.escape("Multiply all weights by the same number")):
            mean.add(1.0, weight=weight)
        assert mean.count == 0

    def test_leaves_a_value_of_weight_0_out_with_its_nan(self):
        mean = Mean()
        mean.add(np.float32([np.nan]), weight=0)
        mean.add(np.float32([2]))
        assert mean.result().tolist() == [2]
        assert mean.not_finite() == []

    @pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
    def test_begins_again_in_the_same_memory(self, kind):
        mean, hostile = Mean(), [1e-30, 3e30, -3e30, 1.0] if kind is not np.int32 else [1, 2, 3, 4]
        for value in hostile:
            mean.add({"w": np.full(300, value, kind)}, weight=3)
        mean.clear()
        assert (mean.count, mean.weight) == (0, 0)
        mean.add({"w": np.full(300, -0.0, kind)})
        result = mean.result()["w"]
        assert result.tobytes() == np.full(300, -0.0, kind).tobytes()
        assert mean.nbytes < 5 * result.nbytes

    def test_says_which_leaves_are_not_finite(self):
        mean = Mean()
        mean.add({"a": np.float32([1, 2]), "b": [np.float32([np.nan, 1])], "c": np.float32([3])})
        mean.add({"a": np.float32([1, 2]), "b": [np.float32([1, 1])], "c": np.float32([-np.inf])})
        assert mean.not_finite() == ["['b'][0]", "['c']"]
        result = mean.result()
        assert np.isnan(result["b"][0]).tolist() == [True, False]
        assert result["c"].tolist() == [-np.inf]

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ({"a": np.zeros(3, np.float32)}, "no leaf at \\['b'\\]"),
            ({"a": np.zeros(3, np.float32), "b": 1.0, "c": 1.0}, "a leaf at \\['c'\\]"),
            ({"a": np.zeros(4, np.float32), "b": 1.0}, "float32 \\(4,\\) at \\['a'\\]"),
            ({"a": np.zeros(3, np.float64), "b": 1.0}, "float64 \\(3,\\) at \\['a'\\]"),
        ],
    )
    def test_refuses_a_value_of_another_form_and_changes_nothing(self, other, words):
        mean = Mean()
        mean.add({"a": np.ones(3, np.float32), "b": 2.0})
        before = pickle.dumps(mean.state_dict())
        with pytest.raises(MismatchError, match=words):
            mean.add(other)
        assert pickle.dumps(mean.state_dict()) == before
        with pytest.raises(MismatchError):
            mean.merge(added(other))

    @pytest.mark.parametrize(
        ("first", "other", "words"),
        [
            ([1.0, 2.0], (1.0, 2.0), r"is tuple, and those before are list\."),
            (
                {"a": [1.0, {"b": [2.0]}]},
                {"a": [1.0, {"b": (2.0,)}]},
                r"is tuple at \['a'\]\[1\]\['b'\], and .* list\.",
            ),
            ([1.0], [1.0, []], r"is list of other contents, and those before are list\."),
        ],
    )
    def test_refuses_other_containers_of_the_same_leaves(self, first, other, words):
        mean = added(first)
        with pytest.raises(MismatchError, match=f"^This value {words} Bring the same containers every time"):
            mean.add(other)
        assert mean.count == 1

    def test_refuses_what_cannot_be_added(self):
        mean = Mean()
        for value, words in (
            (object(), "cannot be added"),
            (torch.nn.Linear(1, 1), "cannot be added"),
            ({"a": IndexedSlices(np.ones((1, 2)), np.int64([0]), (3, 2))}, "values and indices as two arrays"),
            (np.asarray(["a"]), "cannot be reduced"),
        ):
            with pytest.raises((ArgumentError, DtypeError), match=words):
                mean.add(value)
        mean.add({"on": True})
        with pytest.raises(ArgumentError, match="do not agree on \\['on'\\]"):
            mean.add({"on": False})
        with pytest.raises(ArgumentError, match="do not agree on their value, which has no mean"):
            added("a").add("b")

    def test_without_a_value_says_what_to_do(self):
        with pytest.raises(ArgumentError, match="Call add first"):
            Mean().result()
        mean = Mean()
        mean.add(1.0, weight=0)
        with pytest.raises(ArgumentError, match="weight above 0"):
            mean.result()
        with pytest.raises(ArgumentError, match=r"takes a treefold\.Mean"):
            mean.merge(Sum())

    def test_is_safe_in_several_threads(self):
        updates, samples = clients(8)
        mean, other = Mean(), Mean()
        pairs = list(zip(updates, samples, strict=True)) * 10

        def add(thread):
            for update, weight in pairs[thread::4]:
                (mean, other)[thread % 2].add(update, weight=weight)

        threads = [threading.Thread(target=add, args=[thread]) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        mean.merge(other)
        assert mean.count == 80
        assert sha(mean.result()) == sha(treefold.average(updates, weights=samples))

    def test_that_was_interrupted_says_so(self, monkeypatch):
        mean = added(np.float32([1]))

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(partial_sum.PartialSum, "add", interrupt)
            with pytest.raises(KeyboardInterrupt):
                mean.add(np.float32([2]))
        with pytest.raises(ArgumentError, match="interrupted"):
            mean.result()

    def test_works_without_the_core(self, monkeypatch):
        updates, samples = clients(4)
        monkeypatch.setattr(partial_sum, "HAS_NATIVE", False)
        monkeypatch.setattr(leaves, "HAS_NATIVE", False)
        mean = Mean()
        for update, weight in zip(updates, samples, strict=True):
            mean.add(update, weight=weight)
        assert sha(mean.result()) == sha(treefold.average(updates, weights=samples))

    def test_memory_does_not_grow_with_the_number_of_values(self):
        value, mean = np.ones(100_000, np.float32), Mean()
        sizes = set()
        for _ in range(50):
            mean.add(value)
            sizes.add(mean.nbytes)
        assert len(sizes) == 1
        assert sizes.pop() <= 2.1 * value.nbytes


class TestState:
    def test_survives_a_restart(self, tmp_path):
        """A server that adds, saves, ends, loads and goes on has the bits of one that did not end."""
        updates, samples = clients(6)
        first, whole = Mean(), Mean()
        for number, (update, weight) in enumerate(zip(updates, samples, strict=True)):
            whole.add(update, weight=weight)
            first.add(update, weight=weight)
            if number == 3:
                np.savez(tmp_path / "state.npz", **first.state_dict())
                first = Mean()
                with np.load(tmp_path / "state.npz") as state:
                    first.load_state_dict(state)
        assert first.count == 6
        assert sha(first.result()) == sha(whole.result())

    def test_takes_its_structure_from_the_next_value(self):
        mean = Mean()
        mean.load_state_dict(added({"a": torch.ones(2), "n": 3}).state_dict())
        with pytest.raises(ArgumentError, match="weight=0"):
            mean.result()
        with pytest.raises(MismatchError):
            mean.add({"a": torch.ones(3), "n": 3})
        mean.add({"a": torch.zeros(2), "n": 0}, weight=0)
        assert mean.result()["a"].tolist() == [1, 1]
        assert mean.result()["n"] == 3

    def test_is_pickled_whole(self):
        mean = pickle.loads(pickle.dumps(added({"a": torch.ones(2), "b": [np.int8([3])], "c": "x"})))  # noqa: S301
        assert mean.result()["a"].tolist() == [1, 1]
        mean.add({"a": torch.zeros(2), "b": [np.int8([5])], "c": "x"})
        assert mean.result()["b"][0].tolist() == [4]

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("header", lambda _: None),
            ("header", lambda array: array[:-1]),
            ("header", lambda array: changed(array, b"treefold.Mean", b"treefold.Sum")),
            ("header", lambda array: changed(array, b'"version": 1', b'"version": 2')),
            ("header", lambda array: changed(array, b'"float"', b'"other"')),
            ("header", lambda array: changed(array, b"[3]", b"[-3]")),
            ("header", lambda array: changed(array, b"[3]", b"[999999999999999999]")),
            ("header", lambda array: changed(array, b'"weight": "0x', b'"weight": "-0x')),
            ("header", lambda array: changed(array, b'"weight": "0x', b'"weight": "0x' + b"f" * 999)),
            ("header", lambda array: changed(array, b'"int64"', b'"float9"')),
            ("header", lambda _: np.full(10**5, ord("["), np.uint8)),
            ("float32.modes", lambda array: array + np.uint8(9)),
            ("float32.sums", lambda array: array[:, :5]),
            ("integers", lambda array: array[:, :5]),
            ("integers", lambda array: array + np.uint8(1)),
            ("integers", lambda _: None),
        ],
    )
    def test_that_was_changed_is_refused_and_nothing_is_loaded(self, name, change):
        mean = added({"a": np.ones(3, np.float32), "n": 3})
        state = mean.state_dict()
        state[name] = change(state[name])
        with pytest.raises(ArgumentError, match="Nothing was loaded"):
            mean.load_state_dict(state)
        assert mean.result()["a"].tolist() == [1, 1, 1]


class TestSum:
    def test_is_exact_in_any_order(self):
        total = Sum()
        for number in (1e30, 1.0, -1e30):
            total.add({"a": np.float32([number])})
        assert total.result()["a"].tolist() == [1]

    def test_of_integers_wraps_as_in_all_reduce(self):
        total = Sum()
        for values in ([100, -100], [100, -100], [100, 3]):
            total.add(np.int8(values))
        assert total.result().tolist() == [300 - 256, -197 + 256]
        assert total.result().dtype == np.int8

    def test_of_flags_is_refused(self):
        for flags in (np.bool_([True]), True):
            with pytest.raises(DtypeError, match="SUM of bool"):
                Sum().add(flags)


def added(value):
    mean = Mean()
    mean.add(value)
    return mean


def changed(header, before, after):
    assert before in header.tobytes()
    return np.frombuffer(header.tobytes().replace(before, after), np.uint8)
