"""The claims that the demo checks about its own run; its exit code is 0 only if all hold."""

from __future__ import annotations

from treefold.cli.demo.network import digest, find_largest_difference
from treefold.cli.demo.train import DemoResult
from treefold.errors import PlanError
from treefold.plan import from_json
from treefold.report.page import Check

LEAST_ACCURACY = 0.95
#: Both trainings are the same mathematics; in float32 they add a batch's examples in another order. Measured: at most
#: 5e-7 (four times the spacing of float32 at 1) for 2, 3, 8, 16 and 128 devices, four seeds, up to 2,000 steps. Losing
#: one replica, as a wrong reduction does, makes it 5e-2 for 8 devices and never less than 1e-3 (one of 128, after two
#: steps), while the accuracy hardly shows it. The bound stands far from both.
LARGEST_DIFFERENCE = 1e-5


def check_result(result: DemoResult) -> tuple[Check, ...]:
    """Return the demo's claims, each held against the run."""
    return (_check_accuracy(result), _check_same_bits(result), _check_difference(result), _check_plan(result))


def _check_accuracy(result: DemoResult) -> Check:
    many, one = result.replicas.accuracy, result.alone.accuracy
    return Check(
        f"Test accuracy is at least {LEAST_ACCURACY:.2f}, data-parallel and alone",
        min(many, one) >= LEAST_ACCURACY,
        f"{many:.4f} and {one:.4f}",
    )


def _check_same_bits(result: DemoResult) -> Check:
    digests = [digest(parameters) for parameters in result.replicas.parameters]
    same = digests.count(digests[0])
    return Check(
        "All replicas hold the same bits",
        same == len(digests),
        f"SHA-256 of the parameters is {digests[0][:16]}… on {same} of {len(digests)}",
    )


def _check_difference(result: DemoResult) -> Check:
    difference = measure_difference(result)
    return Check(
        f"No parameter differs by more than {LARGEST_DIFFERENCE:g} from training alone",
        difference <= LARGEST_DIFFERENCE,
        f"{difference:.1e} at most; float32 sums in another order" if difference else "all are the same bits",
    )


def _check_plan(result: DemoResult) -> Check:
    claim = "The plan gives every destination every contribution exactly once"
    try:
        from_json(result.tree.to_json())  # which proves what it reads
    except PlanError as error:
        return Check(claim, holds=False, found=str(error))
    return Check(claim, holds=True, found=f"proved again on {len(result.tree.steps)} steps read back from JSON")


def measure_difference(result: DemoResult) -> float:
    """Return the largest absolute difference between a parameter of any replica and the one trained alone."""
    alone = result.alone.parameters[0]
    return max(find_largest_difference(parameters, alone) for parameters in result.replicas.parameters)
