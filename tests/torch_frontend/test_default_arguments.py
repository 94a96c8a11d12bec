"""Calls of a process group's methods with the arguments that PyTorch's own leave out, between real processes."""

import functools

import pytest
from torch_ranks import defaults, run


@functools.cache
def answers(backend):
    return run(defaults.called, 2, backend=backend)


class TestMethods:
    @pytest.mark.parametrize("call", defaults.CALLS)
    def test_do_what_gloos_do(self, call):
        assert [rank[call] for rank in answers("treefold")] == [rank[call] for rank in answers("gloo")]
        assert [rank[call][0] for rank in answers("gloo")] == [True] * 2

    def test_refuse_what_has_no_place(self):
        for options, root, total in run(defaults.misplaced, 2):
            assert options == "After its tensors allreduce_coalesced got a RedOpType. It takes opts there."
            assert root == "After its tensors allreduce got root. It takes opts, op, timeout there."
            assert total == 3

    def test_hold_to_a_timeout_beside_the_op(self):
        """The rank that waited names the one that was late."""
        assert run(defaults.late, 2)[0].kind == "DeadlineError"


class TestDistributedDataParallel:
    @pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"])
    def test_learns_by_pytorchs_hooks_what_gloo_learns(self, hook):
        learnt = run(defaults.train_by_pytorchs_hook, 2, hook)
        assert learnt == run(defaults.train_by_pytorchs_hook, 2, hook, backend="gloo")
        assert learnt[0] == learnt[1]

    def test_learns_from_uneven_inputs_what_gloo_learns(self):
        """A rank that runs out of batches goes on with the others, and takes their parameters at the end."""
        learnt = run(defaults.train_on_uneven_inputs, 2)
        assert learnt == run(defaults.train_on_uneven_inputs, 2, backend="gloo")
