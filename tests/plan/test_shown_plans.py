"""The display of plans in an interpreter and a notebook: one line, and a drawing."""

import xml.etree.ElementTree as ET

import pytest

import treefold.topology  # noqa: F401 - draws plans, once it is loaded
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.plan import Movement
from treefold.testing import owned


@pytest.fixture
def plan():
    value = PerReplica([owned(r, (8,)) for r in range(3)])
    return HierarchicalCopyAllReduce().plan(value, value, walked=True)


class TestPlan:
    def test_is_one_line(self, plan):
        assert repr(plan) == (
            "<Plan: all_reduce by HierarchicalCopyAllReduce(num_packs=1): 1 array per replica, 3 replicas, 1 pack, on "
            "cpu:0, cpu:1, cpu:2; 6 steps, per_plan>"
        )
        assert len(str(plan).splitlines()) == 3 + 6

    def test_of_many_devices_is_one_line(self):
        value = PerReplica([owned(r, (8,)) for r in range(40)])
        assert repr(HierarchicalCopyAllReduce(num_packs=7).plan(value, value)) == (
            "<Plan: all_reduce by HierarchicalCopyAllReduce(num_packs=7): 1 array per replica, 40 replicas, on cpu:0, "
            "cpu:1, cpu:2, cpu:3, cpu:4, cpu:5 … and 34 more; one pass, exact>"
        )

    def test_is_drawn_in_a_notebook(self, plan):
        drawn = ET.fromstring(plan._repr_html_())  # noqa: S314 - our own text
        title = drawn.find("{http://www.w3.org/2000/svg}title")
        assert title.text == "all_reduce by HierarchicalCopyAllReduce(num_packs=1) on 3 devices"


class TestMovement:
    def test_is_one_line_and_drawn(self, plan):
        movement = Movement(leaves=plan.leaves, buffers=plan.buffers, steps=plan.steps)
        assert repr(movement) == str(movement) == "<Movement: 1 array, 3 devices, 6 steps>"
        assert "a movement on 3 devices" in movement._repr_html_()

    def test_is_text_where_nothing_draws(self, plan, monkeypatch):
        """Notebooks fall back to the text of what has no drawing."""
        monkeypatch.setattr("treefold.plan.movement._DRAWINGS", {})
        assert plan._repr_html_() is None
