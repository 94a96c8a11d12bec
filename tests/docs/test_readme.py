import re

import pytest
from papers import PAPERS, ROOT


class TestReadme:
    def test_begins_with_one_idea(self):
        words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2].split())
        first, second = words.split(". ")[:2]
        assert first == "treefold combines one value per device into one value on every device that wants it"
        for part in ("all-reduce", "NumPy", "PyTorch", "JAX", "TensorFlow", "3, 5 and 7", "the same bits"):
            assert part in second

    def test_says_what_never_ran_before_what_is_promised(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        assert (
            text.index("never run on hardware") < text.index("## What to write instead") < text.index("## What is pro")
        )

    def test_is_short(self):
        assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 90


class TestPapers:
    @pytest.mark.parametrize("paper", PAPERS)
    def test_links_lead_somewhere(self, paper):
        """Every file that a paper names is there; `/name` is made when the site is built."""
        links = re.findall(r"\]\((?!https?:|/)([^)#]+)", (ROOT / paper).read_text(encoding="utf-8"))
        assert [link for link in links if not (ROOT / paper).parent.joinpath(link).exists()] == []

    def test_code_map_names_what_there_is(self):
        text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        code_map = text[text.index("## Code map") : text.index("## Invariants")]
        house, named = ROOT / "src" / "treefold", set()
        for line in code_map.splitlines():
            folder = house
            for name in re.findall(
                r"`([\w./]+(?:\.py|\.[ch]pp|/))`", line
            ):  # the later ones of a row lie beside the first
                found = next((root / name for root in (house, ROOT, folder) if (root / name).exists()), None)
                assert found is not None, name
                folder = found.parent
                if found.is_relative_to(house):
                    named.add(found.relative_to(house).parts[0])
        rooms = {path.name for path in house.iterdir() if path.is_dir() and path.name != "__pycache__"}
        files = {path.name for path in house.glob("*.py") if path.name != "__init__.py"}
        assert named == rooms | files
