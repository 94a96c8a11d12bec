"""Movements, which are proved lists of what moves where, and plans, which add how a movement runs here.

>>> import treefold
>>> from treefold.plan import from_json
>>> plan = treefold.ReductionToOneDevice().plan(treefold.PerReplica([1.0, 2.0]), "cpu:0", walked=True)
>>> from_json(plan.to_json()) == plan  # what is read is proved again
True
"""

from treefold.plan.movement import Movement
from treefold.plan.plan import ExecutorTraits, Plan, from_json

__all__ = ["ExecutorTraits", "Movement", "Plan", "from_json"]
