"""Movements, which say what moves where and are proved, and plans, which say how a movement runs here."""

from treefold.plan.movement import Movement
from treefold.plan.plan import Plan, from_json

__all__ = ["Movement", "Plan", "from_json"]
