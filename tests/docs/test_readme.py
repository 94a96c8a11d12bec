import pathlib
import re

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]


class TestReadme:
    def test_code_runs_and_gives_the_mean(self):
        """What the README shows first is what a newcomer types first."""
        [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        names = {}
        exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own text
        assert all(np.array_equal(part["kernel"], np.full((2, 3), np.float32(7 / 3))) for part in names["mean"])
        assert [float(mean) for mean in names["means"]] == [7 / 3] * 3

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
