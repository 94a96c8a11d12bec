import re

import pytest
from papers import PAPERS, ROOT


class TestReadme:
    TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

    def test_begins_with_what_it_does_and_a_link_to_the_exceptions(self):
        first = " ".join(self.TEXT.split("\n\n")[1].split())
        sentence, *rest = first.split("**", 2)[1:]
        assert sentence == (
            "treefold adds gradients, checkpoints and client updates exactly: "
            "the same bits on 1, 2, 3 or 8 ranks, in any order."
        )
        assert rest[0].startswith(
            " A backend for `torch.distributed`, a command for checkpoints, and a library for NumPy, JAX and "
            "TensorFlow. CPUs; several processes on Linux."
        )
        for part in ("PRODUCT", "`per_plan`", "several GPUs", "(docs/how/numbers.md#what-is-not-promised)"):
            assert part in first

    def test_shows_one_sha_of_treefold_and_as_many_of_gloo_as_rows(self):
        rows = re.findall(r"^\| (\d+) +\| `(\w{8}…)` \| `(\w{8}…)` ", self.TEXT, re.MULTILINE)
        ranks, exact, gloo = zip(*rows, strict=True)
        assert ranks == ("1", "2", "3", "8")
        assert (len(set(exact)), len(set(gloo))) == (1, 4)
        table = re.search(r"^\| ranks (?:.*\n\|)+.*$", self.TEXT, re.MULTILINE)[0]
        assert table in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    def test_has_its_sections_in_order(self):
        sections = re.findall(r"^## (.*)$", self.TEXT, re.MULTILINE)
        assert sections == ["Who needs it", "Three programs", "Limits", "Try it"]

    def test_is_short(self):
        assert self.TEXT.count("\n") <= 90
        assert max(len(line) for line in self.TEXT.splitlines() if not line.startswith("|")) <= 120


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
