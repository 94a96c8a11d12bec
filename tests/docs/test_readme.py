import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def code_of(paper):
    """Return the blocks of a paper that run as they stand; others are marked as another language, such as py."""
    return re.findall(r"```python\n(.*?)```", (ROOT / paper).read_text(encoding="utf-8"), re.DOTALL)


def run(code, paper, names):
    """Run a block, with the names that blocks before it have left."""
    exec(compile(code, paper, "exec"), names)  # noqa: S102 - our own text
    return names


class TestReadme:
    def test_code_runs_and_gives_the_mean(self):
        """What the README shows first is what a newcomer types first."""
        names = run(code_of("README.md")[0], "README.md", {})
        assert all(np.array_equal(part["kernel"], np.full((2, 3), np.float32(7 / 3))) for part in names["mean"])
        assert [float(mean) for mean in names["means"]] == [7 / 3] * 3

    @pytest.mark.parametrize("paper", ["README.md", "docs/migrating.md"])
    def test_other_code_runs(self, paper):
        """Block by block, in the order in which one reads."""
        names = {}
        blocks = code_of(paper)
        for code in blocks:
            run(code, paper, names)
        assert len(blocks) > 1

    def test_links_lead_somewhere(self):
        """Every file that the papers at the top name is there."""
        for paper in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
            links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / paper).read_text(encoding="utf-8"))
            assert [link for link in links if not (ROOT / link).exists()] == []

    def test_code_map_names_what_there_is(self):
        """Every room and file in ARCHITECTURE.md's code map exists, and every room of the house is in it."""
        text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
        house = ROOT / "src" / "treefold"
        rooms = {path.name for path in house.iterdir() if path.is_dir() and path.name != "__pycache__"}
        files = {path.name for path in house.glob("*.py") if path.name != "__init__.py"}
        assert named - {"native"} == rooms | files
