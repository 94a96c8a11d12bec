"""Plans printed in the papers are those that the commands print today."""

import pathlib
import re

import pytest

from treefold.cli import main

ROOT = pathlib.Path(__file__).parents[2]
PLANNING = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("planning.md", "how/plans.md"))
BESIDE_NCCL = re.findall(
    r"^\| `(\w+)`(?:, (\d) GPUs)? \| (\d+ of .*?) \| (.*?) \| (.*?) \| ([\d.]+) \|$", PLANNING, re.MULTILINE
)


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    """Return the page of the demo's second part."""
    path = tmp_path_factory.mktemp("demo") / "demo.html"
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--devices", "3", "--report", str(path)])
    assert not ended.value.code
    return path.read_text(encoding="utf-8")


def words(svg):
    return re.findall(r">([^<>]+)<", svg)


class TestPlanningPaper:
    def test_has_a_table_beside_nccl(self):
        assert len(BESIDE_NCCL) == 7

    @pytest.mark.parametrize(("machine", "some", "rings", "theirs", "best", "factor"), BESIDE_NCCL)
    def test_compares_with_rings_as_plan_does(self, treefold, machine, some, rings, theirs, best, factor):
        devices = ["--devices", f"0-{int(some) - 1}"] if some else []
        out = treefold("plan", "-t", machine, "-s", "256M", *devices).out
        row = next(line for line in out.splitlines() if line.startswith("256 MiB"))
        seconds, _, method = best.partition(", ")
        found = rf"256 MiB +{seconds} +{method} +{theirs.partition(';')[0]} \({factor}×\) "
        assert re.match(found, row), row
        assert f"rings:       {rings}, as NCCL" in out
        measured = re.search(r"measured at ([\d.]+ ms)", theirs)
        assert measured is None or f"{measured[1]} for 256 MiB" in out

    def test_says_how_long_the_machine_between_sockets_takes(self, treefold):
        row = treefold("plan", "-t", "a100_pcie_8gpu", "-s", "256M").out
        sentence = re.search(
            r"Predicted for 256 MiB: ([\d.]+ ms), with a ring ([\d.]+ ms), "
            r"with TensorFlow's two-level tree ([\d.]+ ms), with `ReductionToOneDevice` (\d+ ms)\.",
            " ".join(PLANNING.split()),
        )
        best, ring, two_level, star = sentence.groups()
        assert re.search(rf"256 MiB +{best} +trees +{ring} \(.*?\) +{star} \(.*?\) +{two_level} \(", row)

    @pytest.mark.parametrize(
        ("picture", "command"),
        [
            ("square", ("plan", "-t", "ring:4", "--packs", "4", "-s", "16M", "--draw")),
            ("dgx1_v100", ("plan", "-t", "dgx1_v100", "--devices", "0-6", "-s", "256M", "--draw")),
            ("dgx1_v100_sizes", ("simulate", "-t", "dgx1_v100", "--plot")),
            ("a100_pcie_8gpu", ("topology", "a100_pcie_8gpu", "--draw")),
        ],
    )
    def test_has_pictures_as_they_are_drawn(self, treefold, tmp_path, picture, command):
        assert treefold(*command, tmp_path / "now.svg").code == 0
        kept = (ROOT / "docs" / "pictures" / f"{picture}.svg").read_text(encoding="utf-8")
        assert words(kept) == words((tmp_path / "now.svg").read_text(encoding="utf-8"))


class TestDemoPaper:
    def test_has_the_curves_as_they_are_drawn(self, demo_page):
        kept = (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
        drawn = re.search(r'<div class="wide">(<svg.*?</svg>)', demo_page, re.DOTALL)[1]
        said = [[word for word in words(svg) if not word.startswith("330 steps.")] for svg in (kept, drawn)]
        assert said[0] == said[1]
