"""Plans: what moves where, as data that is proved before it runs."""

from treefold.plan.check import finish
from treefold.plan.ir import Plan, PlanDraft
from treefold.plan.serialize import from_json

__all__ = ["Plan", "PlanDraft", "finish", "from_json"]
