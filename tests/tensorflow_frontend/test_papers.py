"""The papers' lines for TensorFlow run as they stand; here, because a process names TensorFlow's devices once."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]


class TestPapers:
    @pytest.mark.parametrize(("paper", "count"), [("README.md", 1), ("docs/migrating.md", 2)])
    def test_lines_for_tensorflow_run(self, paper, count):
        """Each block by itself."""
        blocks = re.findall(r"```py\n(.*?)```", (ROOT / paper).read_text(encoding="utf-8"), re.DOTALL)
        blocks = [block for block in blocks if "import tensorflow" in block]
        for block in blocks:
            names = {}
            exec(compile(block, paper, "exec"), names)  # noqa: S102 - our own text
            assert "strategy" in names or [float(mean["kernel"][1, 2]) for mean in names["means"]] == [0.5, 0.5]
        assert len(blocks) == count

    def test_links_of_the_choice_lead_somewhere(self):
        """The page names its neighbours."""
        text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
        assert links
        assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
