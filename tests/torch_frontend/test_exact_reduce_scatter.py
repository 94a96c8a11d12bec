"""``exact_reduce_scatter``: over gloo, the bits of one process."""

import inspect

import pytest
import torch
from torch import distributed
from torch_ranks import reduce_scatter, run

from treefold.torch import exact_reduce_scatter


class TestExactReduceScatter:
    def test_has_pytorchs_signature(self):
        own = [(one.name, one.default) for one in inspect.signature(exact_reduce_scatter).parameters.values()]
        theirs = inspect.signature(distributed.reduce_scatter_tensor).parameters.values()
        assert own == [(one.name, one.default) for one in theirs]

    @pytest.mark.parametrize("size", [1, 2, 3, 5])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_gives_each_rank_the_exact_part(self, size, is_async):
        for dtype, op in (("float32", "sum"), ("bfloat16", "mean"), ("float64", "mean"), ("float16", "sum")):
            answers = run(reduce_scatter.same, size, dtype, op, is_async, backend="gloo")
            assert answers == [(True, True)] * size, (dtype, op)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="pretends that there are GPUs")
    @pytest.mark.parametrize(("dtype", "op"), [("float32", "mean"), ("bfloat16", "sum")])
    def test_folds_where_the_tensors_are(self, dtype, op):
        assert run(reduce_scatter.on_gpus, 3, dtype, op, backend="gloo") == [(True, 1)] * 3

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("op", "It takes ReduceOp.SUM and ReduceOp.AVG."),
            ("size", "got an input of 8 elements of torch.float32 on cpu, and an output of 5 of"),
            ("stride", "exact_reduce_scatter got a tensor that is not contiguous. Pass contiguous tensors."),
        ],
    )
    def test_refuses(self, kind, text):
        for answer in run(reduce_scatter.refused, 2, kind, backend="gloo"):
            assert answer.kind == "ArgumentError"
            assert text in answer.text
