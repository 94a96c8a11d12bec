"""The planning commands on files without their NVLinks, and on files with names that would affect the terminal."""

import json
import re

import pytest

SLOT = (
    '<pci busid="0000:{0}0:00.0" class="0x030200" vendor="0x10de" device="0x2330" '
    'link_speed="32 GT/s" link_width="16"/>'
)
FILE = (
    f'<system version="1"><cpu numaid="0" arch="x86_64">{"".join(SLOT.format(n) for n in range(1, 9))}</cpu></system>'
)
MISSING = "NVLinks are missing from this file: its GPUs are H100 SXM"


@pytest.fixture
def h100(tmp_path):
    path = tmp_path / "cloud.xml"
    path.write_text(FILE)
    return path


class TestPlan:
    def test_says_so_in_the_headline(self, treefold, h100):
        out = treefold("plan", "-t", h100, "-s", "1M").out
        headline = next(line for line in out.splitlines() if line.startswith("cloud"))
        assert re.fullmatch(
            rf"cloud, 8 GPUs, 1 MiB per GPU: [\d.]+ µs; NCCL-like rings: [\d.]+ µs\. {MISSING}\.", headline
        )
        assert "gap 0, for the links that the file has\n" in out
        assert "proved optimal" not in out
        assert "note: --nvlinks adds a known machine's NVLinks: dgx_h100.\n" in out

    def test_says_so_in_json(self, treefold, h100):
        assert json.loads(treefold("plan", "-t", h100, "-s", "1M", "--json").out)["missing"] == MISSING
        assert json.loads(treefold("plan", "-t", "ring:3", "-s", "1M", "--json").out)["missing"] is None

    @pytest.mark.parametrize("kind", ["html", "svg"])
    def test_says_so_in_pictures(self, treefold, h100, tmp_path, kind):
        treefold("plan", "-t", h100, "-s", "1M", "--draw", tmp_path / f"p.{kind}")
        text = (tmp_path / f"p.{kind}").read_text()
        assert f"GB/s all-reduce over the links in this file; {MISSING}" in text
        assert "the most that plain values can reach" not in text
        assert "exceeds it<" not in text
        assert "proved optimal" not in text

    def test_adds_the_nvlinks_of_a_known_machine(self, treefold, h100):
        plain = json.loads(treefold("plan", "-t", h100, "-s", "1M", "--json", "--nvlinks", "dgx_h100").out)
        assert plain["missing"] is None
        assert plain["bound_gb_per_s"] > 8 * 370.8 / 14
        words = treefold("plan", "-t", h100, "-s", "1M", "--nvlinks", "dgx_h100").out
        assert MISSING not in words
        assert "gap 0, proved optimal" in words

    def test_adds_them_before_it_leaves_devices_out(self, treefold, h100):
        words = treefold("plan", "-t", h100, "-s", "1M", "--nvlinks", "dgx_h100", "--devices", "0-5").out
        assert "each of 6 GPUs against the others" in words

    def test_refuses_nvlinks_of_other_gpus(self, treefold, h100):
        outcome = treefold("plan", "-t", h100, "--nvlinks", "dgx_a100")
        assert outcome.code == 2
        assert outcome.err.startswith("treefold: The GPUs of this topology are H100 SXM, which do not have the NVLinks")


class TestSimulate:
    def test_says_so_in_the_headline(self, treefold, h100, tmp_path):
        assert f"GB/s; {MISSING})\n" in treefold("simulate", "-t", h100, "-s", "1M").out
        assert json.loads(treefold("simulate", "-t", h100, "-s", "1M", "--json").out)["missing"] == MISSING
        treefold("simulate", "-t", h100, "-s", "1M,2M", "--plot", tmp_path / "s.svg")
        assert MISSING in (tmp_path / "s.svg").read_text()

    def test_adds_the_nvlinks_of_a_known_machine(self, treefold, h100):
        assert MISSING not in treefold("simulate", "-t", h100, "-s", "1M", "--nvlinks", "dgx_h100").out


class TestTopology:
    def test_says_so_in_words_and_drawn(self, treefold, h100, tmp_path):
        assert treefold("topology", h100).out.startswith(f"cloud: 8 devices, 1 host. {MISSING}.\n")
        verdict = treefold("topology", "--verify-file", h100).out.splitlines()
        assert verdict[:2] == [
            f"incomplete: {MISSING}",
            "cloud: 8 devices, 16 directed links, equal in both directions",
        ]
        treefold("topology", h100, "--draw", tmp_path / "m.html")
        assert f"<h1>cloud: 8 devices. {MISSING}.</h1>" in (tmp_path / "m.html").read_text()

    def test_writes_a_file_that_is_complete(self, treefold, h100, tmp_path):
        (tmp_path / "m.json").write_text(treefold("topology", h100, "--nvlinks", "dgx_h100", "--json").out)
        assert treefold("topology", "--verify-file", tmp_path / "m.json").out.startswith("ok: cloud: 8 devices, ")


class TestTerminals:
    def test_are_not_reached_by_names_in_a_file(self, treefold, tmp_path):
        plain = {"name": "a\x1b[2Jb", "devices": ["gpu:0", "gpu:1"], "notes": ["c\x1b]0;d\x07\ne"]}
        plain["links"] = [{"between": ["gpu:0", "gpu:1"], "gb_per_s": 1}]
        path = tmp_path / "m.json"
        path.write_text(json.dumps(plain))
        for command in (["topology", path], ["plan", "-s", "1M", "-t", path], ["simulate", "-s", "1M", "-t", path]):
            out = treefold(*command).out
            assert "a\\x1b[2Jb" in out
            assert out.replace("\n", "").isprintable()
        pictures = [tmp_path / "p.svg", tmp_path / "p.html", tmp_path / "m.dot"]
        treefold("plan", "-s", "1M", "-t", path, "--draw", pictures[0], "--dot", pictures[2])
        treefold("topology", path, "--draw", pictures[1])
        assert all(text.read_text().replace("\n", "").isprintable() for text in pictures)

    def test_are_not_reached_by_the_name_of_a_file(self, treefold, tmp_path):
        path = tmp_path / "a\x1b[2Jb.xml"
        path.write_text(FILE)
        assert treefold("topology", path).out.startswith("a\\x1b[2Jb: 8 devices")

    @pytest.mark.parametrize(
        "text",
        [
            '{"devices": ["gpu:0"], "switches": ["a\\u001b[2Jb"]}',
            '{"devices": ["gpu:0\\u001b[2J"]}',
            '{"devices": ["gpu:0"], "a\\u001b[2Jb": 1}',
            FILE.replace("</cpu>", '<nic><net name="a&#x9b;2Jb" speed="1000"/></nic></cpu>'),
            "\tGPU0\tGPU1\n\x1b]0;GPU0\tX\tPIX\nGPU\u202e1\tPIX\n",
            "LINK TYPE TABLE:\na\u202e b\nb\u202e SELF XGMI\n",
            "\x1b]0;title of nothing",
        ],
        ids=["switch", "device", "key", "NIC", "row", "AMD row", "nothing"],
    )
    def test_are_not_reached_by_errors(self, treefold, tmp_path, text):
        path = tmp_path / "m"
        path.write_text(text)
        outcome = treefold("topology", path)
        assert outcome.code == 2
        assert outcome.err.replace("\n", "").isprintable()
