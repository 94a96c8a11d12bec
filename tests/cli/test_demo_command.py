import re
from html.parser import HTMLParser

import pytest


class TestDemo:
    """``treefold demo`` trains, shows, checks, and ends with 0 only if its checks hold."""

    @pytest.mark.parametrize("devices", [1, 3, 8])
    def test_holds_its_checks_on_any_number_of_devices(self, treefold, devices):
        """Ten epochs pass all four checks on one device, on an odd number and on eight."""
        outcome = treefold("demo", "--devices", devices, "--epochs", 10)
        assert re.findall(r"^(ok|failed) ", outcome.out, re.MULTILINE) == ["ok"] * 4
        assert outcome.code == 0

    @pytest.mark.parametrize("ops", ["hierarchical", "one-device", "all-reduce", "nccl"])
    def test_takes_every_ops(self, treefold, ops):
        """The plan in words names the ops that --ops chose."""
        names = {
            "hierarchical": "HierarchicalCopyAllReduce",
            "one-device": "ReductionToOneDevice",
            "all-reduce": "AllReduceCrossDeviceOps",
            "nccl": "NcclAllReduce",
        }
        assert f"all_reduce by {names[ops]}(" in treefold("demo", "--ops", ops, "--devices", 3, "--steps", 2).out

    def test_passes_on_the_number_of_packs(self, treefold):
        """--num-packs reaches the ops and so the plan."""
        assert "(num_packs=4)" in treefold("demo", "--num-packs", 4, "--devices", 3, "--steps", 2).out

    def test_shows_what_was_asked_of_it(self, treefold):
        """Accuracy, the training without treefold, the time reducing and the plan are on stdout."""
        out = treefold("demo", "--devices", 3, "--steps", 2).out
        for said in ("2 steps of 128", "test accuracy", "without treefold", "reducing: ", "guarantee: replica_order"):
            assert said in out

    def test_shows_progress_on_stderr(self, treefold):
        """The progress bar leaves stdout to the result."""
        outcome = treefold("demo", "--devices", 3, "--steps", 2)
        assert "3 devices" in outcome.err
        assert "━" not in outcome.out

    def test_fails_when_a_check_fails(self, treefold):
        """Two steps cannot reach the accuracy: that check fails and the exit code is 1."""
        outcome = treefold("demo", "--devices", 3, "--steps", 2)
        assert re.findall(r"^(ok|failed) ", outcome.out, re.MULTILINE) == ["failed", "ok", "ok", "ok"]
        assert outcome.code == 1


class TestDemoRefusals:
    """What cannot be done is refused in one sentence, with exit code 2, before anything is trained."""

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--devices", 0], "--devices got 0. It takes 1 to 128: each device needs at least one of the 128 "),
            (["--devices", -3], "--devices got -3. It takes 1 to 128"),
            (["--devices", 129], "--devices got 129. It takes 1 to 128"),
            (["--epochs", 0], "--epochs got 0. It takes a number of at least 1."),
            (["--steps", 0], "--steps got 0. It takes a number of at least 1."),
            (["--steps", 3, "--epochs", 3], "--epochs and --steps both say how long to train; give one of them."),
            (["--seed", -1], "--seed got -1. It takes 0 or a positive number."),
            (["--ops", "one-device", "--num-packs", 2], "--num-packs means nothing to --ops one-device"),
            (["--num-packs", -1], "HierarchicalCopyAllReduce got num_packs=-1."),
        ],
    )
    def test_refuses_what_it_cannot_do(self, treefold, arguments, sentence):
        """The sentence says what was got and what is allowed."""
        outcome = treefold("demo", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"treefold: {sentence}")
        assert outcome.err.count("\n") == 1

    def test_refuses_unknown_ops(self, treefold):
        """An unknown name of ops is an error of usage, never another algorithm."""
        assert treefold("demo", "--ops", "ring").code == 2


class TestDemoReport:
    @pytest.fixture
    def page(self, treefold, tmp_path):
        """Return the report of a short run."""
        path = tmp_path / "report.html"
        treefold("demo", "--devices", 3, "--steps", 2, "--report", path)
        return path.read_text(encoding="utf-8")

    def test_loads_nothing(self, page):
        """The page has no script, no link and no address to load from, so that it works offline."""
        tags = _TagCollector()
        tags.feed(page)
        assert not {"script", "link", "img", "iframe", "object"} & tags.names
        assert not {"src", "href", "xlink:href", "srcset"} & tags.attributes
        assert not re.findall(r"url\(|@import", page)
        assert set(re.findall(r"https?://[^\"\s]+", page)) == {"http://www.w3.org/2000/svg"}

    def test_closes_what_it_opens(self, page):
        """Every element is closed, in order."""
        tags = _TagCollector()
        tags.feed(page)
        assert tags.open == []

    def test_shows_curves_plan_and_checks(self, page):
        """The loss of both trainings, a lifeline for each device, the plan in words, the verdicts."""
        assert page.count('class="tf-curve ') == 2
        assert page.count('class="tf-lifeline"') == 3
        assert "executor:  host" in page
        assert page.count('<li class="ok">') == 3
        assert page.count('<li class="failed">') == 1

    def test_is_refused_before_training_where_it_cannot_be_written(self, treefold, tmp_path):
        """A missing folder is found out first, not after the work."""
        outcome = treefold("demo", "--report", tmp_path / "missing" / "report.html")
        path = str(tmp_path / "missing" / "report.html")
        assert outcome.err == f"treefold: --report cannot write {path!r}: no such file or directory.\n"
        assert (outcome.code, outcome.out) == (2, "")

    def test_is_refused_where_a_directory_stands(self, treefold, tmp_path):
        """A directory is not overwritten."""
        assert treefold("demo", "--report", tmp_path).err.endswith("it is a directory.\n")


class _TagCollector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.names, self.attributes, self.open = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
