"""Movements, which say what moves where and are proved, and plans, which say how a movement runs here."""

from treefold.plan.movement import Movement
from treefold.plan.plan import ExecutorTraits, Plan, from_json

__all__ = ["ExecutorTraits", "Movement", "Plan", "from_json"]
