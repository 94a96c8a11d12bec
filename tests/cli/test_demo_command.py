import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest


@pytest.fixture(scope="module")
def run_of_ranks(tmp_path_factory):
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("ranks") / "report.html"
    command = [
        sys.executable,
        "-m",
        "treefold.cli",
        "demo",
        "--ranks",
        "3,1,2",
        "--steps",
        "3",
        "--report",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    assert done.returncode == 0, done.stderr
    return done.stdout, path.read_text(encoding="utf-8")


class TestDemo:
    """``treefold demo`` trains, shows, checks, and ends with 0 only if its checks hold."""

    @pytest.mark.parametrize(
        "arguments", [("--devices", 3), ("--devices", 8), ("--shuffle",), ("--devices", 5, "--steps", 1)]
    )
    def test_holds_its_checks(self, treefold, arguments):
        outcome = treefold("demo", *(arguments if "--steps" in arguments else (*arguments, "--steps", 60)))
        assert re.findall(r"^(ok|failed) ", outcome.out, re.MULTILINE) == ["ok"] * 5
        assert outcome.code == 0

    def test_ends_with_what_it_proved(self, treefold):
        right, wrong = treefold("demo", "--devices", 3, "--steps", 60).out.splitlines()[-3:-1]
        number = r"[\d.e-]+"
        assert re.fullmatch(
            rf"ok +With treefold, 3 devices train the weights of one device: {number} apart at most, which is rounding",
            right,
        )
        assert re.fullmatch(
            rf"ok +With TensorFlow's rule they do not: it never reads device 2, and raises no error: {number} apart",
            wrong,
        )

    def test_says_who_held_what(self, treefold):
        out = treefold("demo", "--devices", 3, "--steps", 60).out
        assert "Of the digits, device 0 holds 0–3, device 1 holds 4–6, device 2 holds 7–9." in out
        assert re.search(r"^… of 7–9, on the last device +\d+\.\d% +\d+\.\d% +0\.0%$", out, re.MULTILINE)

    def test_shows_progress_in_a_terminal(self, in_terminal):
        shown = in_terminal("demo", "--devices", "3", "--steps", "2")
        assert 0 <= shown.index("three trainings") < shown.index("A network of")

    def test_fails_when_a_check_fails(self, treefold, monkeypatch):
        monkeypatch.setattr("treefold.cli.demo.LARGEST_DIFFERENCE", 0.0)
        outcome = treefold("demo", "--devices", 3, "--steps", 2)
        assert re.findall(r"^(ok|failed) ", outcome.out, re.MULTILINE) == ["ok", "ok", "ok", "failed", "ok"]
        assert outcome.code == 1


class TestDemoOfRanks:
    """``treefold demo --ranks`` trains on each number of ranks, and finds one SHA-256 with treefold."""

    def test_shows_one_sha_with_treefold_and_others_without(self, run_of_ranks):
        rows = re.findall(r"^(\d) +([0-9a-f]{8})… +([0-9a-f]{8})… +([\de.-]+)$", run_of_ranks[0], re.MULTILINE)
        ranks, exact, usual, differences = zip(*rows, strict=True)
        assert ranks == ("3", "1", "2")
        assert len({*exact}) == 1
        assert len({*usual}) > 1
        assert [float(one) < 1e-5 for one in differences] == [True] * 3
        claim = "On 3, 1, 2 ranks treefold's parameters, optimizer state and losses have the same bits"
        assert f"\nok      {claim}: SHA-256 {exact[0]}…\n" in run_of_ranks[0]

    def test_draws_losses_and_their_differences(self, run_of_ranks):
        title = r"<h1>One training on 3, 1, 2 ranks: 1 SHA with treefold, [23] with DDP on gloo</h1>"
        assert re.search(title, run_of_ranks[1])
        assert run_of_ranks[1].count('class="tf-curve ') == 2 * (4 + 4)
        assert "<title>treefold on 3, 1, 2 ranks</title>" in run_of_ranks[1]
        assert run_of_ranks[1].count('<li class="ok">') == 1

    def test_fails_when_one_rank_has_other_bits(self, treefold, trained):
        trained({(2, 1): "other"})
        outcome = treefold("demo", "--ranks", "1,2")
        assert outcome.code == 1
        assert re.search(r"^2 +other…, same… +usual… +0$", outcome.out, re.MULTILINE)
        assert "\nfailed  On 1, 2 ranks treefold's" in outcome.out

    def test_comes_first_and_then_the_devices(self, treefold, trained, tmp_path):
        trained({})
        outcome = treefold("demo", "--steps", 2, "--report", tmp_path / "both.html")
        assert re.findall(r"^(ok|failed) ", outcome.out, re.MULTILINE) == ["ok"] * 6
        page = (tmp_path / "both.html").read_text(encoding="utf-8")
        headings = re.findall(r"<h\d>(.*?)</h\d>", page)
        assert headings == [
            "One training on 1, 2, 3 ranks: 1 SHA with treefold, 1 with DDP on gloo",
            "Loss of each step",
            "Checks",
            "Differences from 1 rank",
            "On 3 devices treefold trains the weights of one device; TensorFlow&#x27;s rule loses device 2",
            "The plan",
        ]

    def test_is_left_out_in_a_sentence_without_pytorch(self, treefold, monkeypatch):
        monkeypatch.setattr("treefold.cli.demo.has_module", lambda _: False)
        outcome = treefold("demo", "--steps", 2)
        assert outcome.code == 0
        sentence = 'The first part, on several ranks, needs Linux and PyTorch: pip install "treefold[torch]".'
        assert outcome.out.startswith(f"{sentence}\n\nA network of ")

    def test_asked_for_alone_needs_pytorch(self, treefold, monkeypatch):
        monkeypatch.setattr("treefold.cli.needs.has_module", lambda name: name != "torch")
        outcome = treefold("demo", "--ranks", 2)
        assert (outcome.code, outcome.out) == (2, "")
        sentence = 'This command needs torch, which is not installed. Run pip install "treefold[torch]".'
        assert outcome.err == f"treefold: {sentence}\n"

    @pytest.fixture
    def trained(self, monkeypatch):
        """Let ranks have trained, so that (how many there are, which) ends with a digest of its own."""
        one_sha = pytest.importorskip("treefold.cli.one_sha", exc_type=ImportError)

        def train(digests):
            def train_on(ranks, _train, steps, _seed):
                losses = [1.0] * steps
                exact = [one_sha.Trained(losses, digests.get((ranks, rank), "same")) for rank in range(ranks)]
                return exact, [one_sha.Trained(losses, "usual")] * ranks

            monkeypatch.setattr(one_sha, "train_on", train_on)

        return train


class TestDemoRefusals:
    """Impossible requests are refused in one sentence, with exit code 2, before anything is trained."""

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--devices", 1], "--devices got 1. It takes 2 to 10: each device holds at least one of the 10 digits."),
            (["--devices", -3], "--devices got -3. It takes 2 to 10"),
            (["--devices", 11], "--devices got 11. It takes 2 to 10"),
            (["--steps", 0], "--steps got 0. It takes a number of at least 1."),
            (["--seed", -1], "--seed got -1. It takes 0 or a positive number."),
            (["--connect", "--ranks", 2], "--ranks starts processes and --connect joins those of a launcher; give one"),
            *(
                (
                    [*mode, *option],
                    f"{option[0]} is for devices of one process and means nothing to {mode[0]}; leave",
                )
                for mode, last in ((["--connect"], ["--report", "page.html"]), (["--ranks", 2], ["--shuffle"]))
                for option in (["--devices", 3], last)
            ),
            *(
                (["--ranks", text], f"--ranks got '{text}'. It takes numbers from 1 to 24, such as 1,2,3.")
                for text in ("0", "3,25", "two", "")
            ),
        ],
    )
    def test_refuses_what_it_cannot_do(self, treefold, arguments, sentence):
        outcome = treefold("demo", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith(f"treefold: {sentence}")
        assert outcome.err.count("\n") == 1


class TestDemoReport:
    @pytest.fixture
    def page(self, treefold, tmp_path):
        path = tmp_path / "report.html"
        treefold("demo", "--devices", 3, "--steps", 2, "--report", path)
        return path.read_text(encoding="utf-8")

    def test_closes_what_it_opens(self, page):
        tags = _TagCollector()
        tags.feed(page)
        assert tags.open == []

    def test_says_first_what_was_proved(self, page):
        assert (
            "<h1>On 3 devices treefold trains the weights of one device; TensorFlow&#x27;s rule loses device 2</h1>"
        ) in page

    def test_shows_curves_plan_and_checks(self, page):
        assert page.count('class="tf-curve ') == 2 * 3
        assert "<td>3 devices, TensorFlow" in page.replace('<th scope="col">', "<td>")
        assert page.count('class="tf-lifeline"') == 3
        assert "executor:  host" in page
        assert page.count('<li class="ok">') == 5

    def test_is_refused_before_training_where_it_cannot_be_written(self, treefold, tmp_path):
        outcome = treefold("demo", "--report", tmp_path / "missing" / "report.html")
        path = str(tmp_path / "missing" / "report.html")
        assert outcome.err == f"treefold: --report cannot write {path!r}: no such file or directory.\n"
        assert (outcome.code, outcome.out) == (2, "")


class _TagCollector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002 - as HTMLParser has it
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
