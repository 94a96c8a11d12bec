"""``clip_grad_norm_``: torch's signature and result, by an exact norm; one process, several, DTensors."""

import inspect
import math

import pytest
import torch
from pretended import PretendedGpus, pretended_gpus
from torch_ranks import clipping, run

from treefold import errors
from treefold.torch import clip_grad_norm_


def parameters_of(dtype=torch.float32):
    return [clipping.parameter_of(one) for one in clipping.gradients(dtype)]


def cloned(parameters):
    return [clipping.parameter_of(one.grad.clone()) for one in parameters]


class TestOneProcess:
    def test_has_torchs_signature(self):
        own = [*inspect.signature(clip_grad_norm_).parameters.values()]
        theirs = [*inspect.signature(torch.nn.utils.clip_grad_norm_).parameters.values()]
        assert [(one.name, one.default, one.kind) for one in own[:-1]] == [
            (one.name, one.default, one.kind) for one in theirs
        ]
        assert own[-1].name == "group"

    @pytest.mark.parametrize("foreach", [None, True, False])
    @pytest.mark.parametrize("max_norm", [0.5, 1, 1e9])
    def test_gives_what_torch_gives(self, max_norm, foreach):
        own = parameters_of()
        theirs = cloned(own)
        norm, other = clip_grad_norm_(own, max_norm, foreach=foreach), torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        torch.testing.assert_close(norm, other)
        assert (norm.dtype, norm.shape) == (other.dtype, other.shape)
        for one, two in zip(own, theirs, strict=True):
            torch.testing.assert_close(one.grad, two.grad)

    def test_the_norm_is_rounded_once(self):
        own = parameters_of()
        squares = [float(one) ** 2 for each in own for one in each.grad.flatten().tolist()]
        assert clip_grad_norm_(own, 1.0) == torch.tensor(math.sqrt(math.fsum(squares)), dtype=torch.float32)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_of_other_dtypes(self, dtype):
        own = parameters_of(dtype)
        norm = clip_grad_norm_(own, 1.0)
        assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        after = clip_grad_norm_(cloned(own), 1.0)
        assert abs(float(after) - 1) < (1e-6 if dtype == torch.float64 else 0.01)
        assert all(one.grad.dtype == dtype for one in own)

    def test_of_several_dtypes_is_the_widest(self):
        own = [*parameters_of(torch.float16), *parameters_of(torch.float64)]
        assert clip_grad_norm_(own, 1.0).dtype == torch.float64

    def test_of_nothing_is_0(self):
        assert [float(clip_grad_norm_(one, 1.0)) for one in ([], iter([]), torch.zeros(1))] == [0.0] * 3

    def test_takes_one_tensor_or_an_iterator(self):
        one = clipping.parameter_of(torch.tensor([3.0, 4.0]))
        assert clip_grad_norm_(one, 10.0) == 5
        assert clip_grad_norm_((each for each in [one]), 1.0) == 5
        assert one.grad.tolist() == pytest.approx([0.6, 0.8])

    def test_what_is_not_finite_may_be_an_error(self):
        own = clipping.parameter_of(torch.tensor([1.0, math.inf]))
        with pytest.raises(errors.NotFiniteError, match="norm of the gradients is inf") as caught:
            clip_grad_norm_(own, 1.0, error_if_nonfinite=True)
        assert isinstance(caught.value, RuntimeError)
        assert own.grad.tolist() == [1.0, math.inf]
        assert clip_grad_norm_(own, 1.0) == math.inf
        assert math.isnan(own.grad[1])

    def test_of_gradients_on_a_gpu_is_refused(self, monkeypatch):
        """In a sentence, and nothing is scaled."""
        monkeypatch.setattr(PretendedGpus, "has_device", lambda *_: True)  # the CPU, too
        one = clipping.parameter_of(torch.full((3,), 5.0))
        with (
            pretended_gpus(1),
            pytest.raises(errors.DeviceError, match=r"^exact.norm adds in host memory, where .* Copy it to the CPU\.$"),
        ):
            clip_grad_norm_([one], 1.0)
        assert one.grad.tolist() == [5.0] * 3

    @pytest.mark.parametrize("norm_type", [1, math.inf, "inf"])
    def test_other_norms_are_refused(self, norm_type):
        with pytest.raises(errors.ArgumentError, match=r"got norm_type=.*\. It takes 2, the only norm"):
            clip_grad_norm_(parameters_of(), 1.0, norm_type)

    def test_other_groups_are_refused(self):
        with pytest.raises(errors.ArgumentError, match=r"got group=3\. It takes what treefold"):
            clip_grad_norm_(parameters_of(), 1.0, group=3)


class TestRanks:
    @pytest.mark.parametrize("backend", ["gloo", "treefold"])
    @pytest.mark.parametrize("kind", ["process group", "group"])
    @pytest.mark.parametrize("size", [1, 3])
    def test_with_parts_get_the_bits_of_one_process(self, size, kind, backend):
        assert run(clipping.parts, size, kind, backend=backend) == [True] * size

    def test_with_dtensors_get_the_bits_of_one_process(self):
        assert run(clipping.sharded, 4) == [(True, True)] * 4

    def test_under_fsdp_get_the_bits_of_one_process(self):
        assert run(clipping.fsdp, 2) == [(True, True)] * 2

    def test_are_all_told_of_what_one_refuses(self):
        first, second = run(clipping.refused, 2, backend="gloo")
        assert first[0][0] == "CallMismatchError"
        assert first[0][1].startswith(
            "Rank 1 could not make this call: The value has a tensor of layout torch.sparse_coo"
        )
        assert second[0][0] == "ArgumentError"
        assert first[1] == second[1] == 2.0

    def test_sums_that_are_still_to_be_made_are_refused(self):
        answers = run(clipping.partial, 2)
        assert {one.kind for one in answers} == {"ArgumentError"}
        assert "with a Partial placement" in answers[0].text
