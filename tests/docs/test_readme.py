import re

import numpy as np
import pytest
from papers import PAPERS, ROOT, blocks_of


class TestReadme:
    def test_code_gives_the_mean(self):
        """What the README shows first is what a newcomer types first."""
        names = {}
        code = next(block.text for block in blocks_of("README.md") if block.language == "python")
        exec(code, names)  # noqa: S102 - our own text
        assert all(np.array_equal(part["kernel"], np.full((2, 3), np.float32(7 / 3))) for part in names["mean"])
        assert [float(mean) for mean in names["means"]] == [7 / 3] * 3

    def test_says_in_forty_words_what_treefold_is(self):
        """Who reads no further knows what it does, for whom, and what is better."""
        words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[2].split()[:40])
        for part in ("All-reduce for the devices of one process", "`tf.distribute`", "3, 5 and 7", "the same bits"):
            assert part in words
        for framework in ("NumPy", "PyTorch", "JAX", "TensorFlow"):
            assert framework in words

    def test_is_short(self):
        """The rest is on the pages that it leads to."""
        assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 90


class TestPapers:
    @pytest.mark.parametrize("paper", PAPERS)
    def test_links_lead_somewhere(self, paper):
        """Every file that a paper names is there; `/name` is made when the site is built."""
        links = re.findall(r"\]\((?!https?:|/)([^)#]+)", (ROOT / paper).read_text(encoding="utf-8"))
        assert [link for link in links if not (ROOT / paper).parent.joinpath(link).exists()] == []

    def test_code_map_names_what_there_is(self):
        """Every room and file in ARCHITECTURE.md's code map exists, and every room of the house is in it."""
        text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
        house = ROOT / "src" / "treefold"
        rooms = {path.name for path in house.iterdir() if path.is_dir() and path.name != "__pycache__"}
        files = {path.name for path in house.glob("*.py") if path.name != "__init__.py"}
        assert named - {"native"} == rooms | files
