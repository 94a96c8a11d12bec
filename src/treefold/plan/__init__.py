"""Movements, which are proved lists of what moves where, and plans, which add how a movement runs here."""

from treefold.plan.movement import Movement
from treefold.plan.plan import ExecutorTraits, Plan, from_json

__all__ = ["ExecutorTraits", "Movement", "Plan", "from_json"]
