"""The page of a plan, as text and in a browser."""

import dataclasses
import html
import re
import shutil
import subprocess

import pytest

from treefold.cli.tables import Table
from treefold.topology.drawing.page import Check
from treefold.topology.drawing.plan_page import PlanStory, render_plan_page
from treefold.topology.drawing.timeline_drawing import shown_links

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OFFLINE = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def page(planned):
    one = planned("dgx1_v100")
    return render_plan_page(story(one))


def story(one, **changed):
    """Return what the page tells of a planned machine."""
    told = PlanStory(
        title="1 MiB per GPU: 1 ms",
        topology=one.topology,
        packing=one.packing,
        movement=one.movement,
        timeline=one.timeline,
        times={"treefold": [(4096.0, 1e-6), (2.0**20, 1e-4)]},
        tables=(Table(("size", "treefold"), (("4 KiB", "1 µs"),)), Table(("pack",), (("0",),))),
        words=("published", "</script>"),
        method="trees",
        checks=(Check("It holds", holds=True, found="yes"),),
        facts=(),
    )
    return dataclasses.replace(told, **changed)


@pytest.fixture
def browse(tmp_path):
    """Return a function that runs a script in the page, in a real browser, and returns the page as it is then."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")

    def run(page, script):
        path = tmp_path / "page.html"
        path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", *OFFLINE, profile, "--virtual-time-budget=4000"]
        done = subprocess.run(  # noqa: S603 - our own page
            [CHROMIUM, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, check=True, timeout=120
        )
        return done.stdout

    return run


class TestRenderPlanPage:
    def test_loads_nothing(self, page):
        assert not re.findall(r"<link|<img|@import|https?://(?!www\.w3\.org)", page)
        assert not re.findall(r"\bsrc=", page)

    def test_lets_no_text_end_its_script(self, page):
        assert page.count("</script>") == 2
        assert "&lt;/script&gt;" in page

    def test_shows_the_machine_before_the_checks(self, page):
        assert page.index("The plan at work") < page.index("<h2>Checks</h2>") < page.index("<h2>Predicted</h2>")

    def test_begins_with_what_the_plan_takes(self, page):
        body = page.partition("<body>")[2]
        assert (
            body.index("<h1>1 MiB per GPU: 1 ms</h1>") < body.index("GB/s all-reduce") < body.index("The plan at work")
        )

    def test_draws_bars_of_one_size(self, planned):
        one = story(planned("dgx1_v100"), times={"treefold": [(4096.0, 1e-6)], "rings": [(4096.0, 2e-6)]})
        page = render_plan_page(one)
        assert "Seconds of each method." in page
        assert page.count('class="tf-bar ') == 2 * 2

    @pytest.mark.parametrize("name", ["dgx1_v100", "dgx2", "2x8_h100", "a100_pcie_8gpu"])
    def test_cuts_nothing_on_a_screen_of_1280(self, planned, name):
        """Every drawing fits between the frames of the page, 1048 pixels apart."""
        page = render_plan_page(story(planned(name)))
        assert max(int(least) for least in re.findall(r"min-width:(\d+)px", page)) <= 1048

    @pytest.mark.parametrize("name", ["dgx1_v100", "dgx2", "8x8_h100"])
    def test_shows_the_whole_machine_on_a_phone(self, planned, browse, name):
        """390 pixels: no part of it has to be scrolled, devices have their numbers in letters of 7.5 pixels or more."""
        one = planned(name)
        page = html.escape(render_plan_page(story(one)))
        script = (
            "const frame = document.querySelector('iframe'); frame.onload = () => {"
            "const inner = frame.contentDocument, stage = inner.querySelector('.stage svg');"
            "const names = [...inner.querySelectorAll('.tf-device-node text')];"
            "const style = frame.contentWindow.getComputedStyle(names[0]);"
            "const letters = parseFloat(style.fontSize) * stage.getScreenCTM().a;"
            "document.body.dataset.found = [inner.documentElement.scrollWidth, stage.getBoundingClientRect().right,"
            "letters, names.length].join(' '); };"
        )
        dom = browse(f'<body><iframe width="390" height="844" srcdoc="{page}"></iframe></body>', script)
        whole, right, letters, count = map(float, re.search(r'data-found="([^"]+)"', dom)[1].split())
        assert whole <= 390
        assert right <= 390
        assert letters >= 7.5
        assert count == len(one.topology.devices)

    @pytest.mark.parametrize(("packs", "opened"), [(8, " open"), (24, "")])
    def test_folds_many_packs_away(self, planned, packs, opened):
        page = render_plan_page(story(planned("dgx1_v100", packs=packs)))
        assert f'<details{opened}><summary>{packs} packs<span class="shown"></span></summary>' in page
        assert "<details><summary>The packs</summary><div class=" in page

    def test_explains_its_words(self, page):
        terms = re.search(r'<dl class="terms">(.*)</dl>', page)[1]
        assert re.findall(r"<dt>(\w+)</dt><dd>[^<]{20,80}</dd>", terms) == ["Pack", "Root", "Bound"]


class TestPlayer:
    @pytest.fixture
    def still(self):
        """Return a script that stops the player in the middle, all packs shown."""
        return (
            "document.querySelector('.play').click(); document.querySelector('button[data-pack=\"-1\"]').click();"
            "const slider = document.querySelector('input'); slider.value = '300';"
            "slider.dispatchEvent(new Event('input'));"
        )

    def test_opens_on_one_tree_playing(self, page, browse):
        dom = browse(page, "")
        first = re.search(r'"first":(\d+)', page)[1]
        assert f'data-only="{first}"' in dom
        assert f'4 packs<span class="shown">: pack {first} is shown</span>' in dom
        assert re.search(rf'data-pack="{first}" title="[^"]+" aria-pressed="true"', dom)
        assert 'class="play">Pause</button>' in dom
        dots = re.findall(r'<circle class="tf-(?:up|down) tf-tone-(\d+)"([^>]*)>', dom)
        assert {tone for tone, more in dots if "none" not in more} <= {first}

    def test_shows_chunks_on_their_way(self, page, browse, still):
        dom = browse(page, still)
        assert len(re.findall(r'<circle class="tf-(?:up|down) tf-tone-\d"', dom)) > 10
        assert len(re.findall(r"<span>\d+ %</span>", dom)) == page.count("<i><b></b></i>") > 0

    def test_folds_links_of_one_load_the_busiest_first(self, planned):
        one = planned("mi300x", packs=8)
        page = render_plan_page(story(one))
        rows = [row.split(",") for row in re.findall(r'data-links="([\d,]+)"', page)]
        assert sorted(int(number) for row in rows for number in row) == list(range(len(one.timeline.links)))
        assert len(rows) == 1
        assert "gpu:0 → gpu:1 and 55 more" in page
        assert "gpu:7 → gpu:6" in page

    def test_puts_the_busiest_links_first(self, planned):
        one = planned("dgx1_v100")
        page = render_plan_page(story(one))
        links = list(dict.fromkeys([*shown_links(one.timeline), *one.timeline.links]))
        rows = [int(row.partition(",")[0]) for row in re.findall(r'data-links="([\d,]+)"', page)]
        loads = [one.timeline.links[links[n]].nbytes / float(one.topology.capacity(*links[n])) for n in rows]
        assert len(rows) > 1
        assert loads == sorted(loads, reverse=True)

    def test_moves_with_the_keys(self, page, browse, still):
        press = still + "const p = document.querySelector('.tf-player');"
        press += "const key = (k) => p.dispatchEvent(new KeyboardEvent('keydown', {key: k}));"
        output = r"<output>([\d.]+) of ([\d.]+) "
        start = re.search(output, browse(page, press + "key('Home');"))
        assert float(start[1]) == 0
        end = re.search(output, browse(page, press + "key('End');"))
        assert end[1] == end[2]
        later = re.search(output, browse(page, press + "key('Home'); key('ArrowRight'); key('ArrowRight');"))
        assert float(later[1]) == pytest.approx(float(later[2]) / 50, abs=0.011)

    def test_plays(self, page, browse, still):
        """Time goes on from where it was, at the speed asked for, to the end, and the button says what it would do.

        The browser's own frames come when the machine has time for them; the script hands these out itself.
        """
        frames = still + "const frames = []; window.requestAnimationFrame = (frame) => frames.push(frame);"
        frames += "performance.now = () => 1000; document.querySelector('select').value = '4';"
        play = "document.querySelector('.play').click();"
        output = r'class="play">(\w+)</button>.*<output>([\d.]+) of ([\d.]+) '
        begun = re.search(output, browse(page, frames + play), re.DOTALL)
        assert begun[1] == "Pause"
        for clock, share, word in ((1000, 0, "Pause"), (1350, 0.1, "Pause"), (9000, 1, "Play")):
            found = re.search(output, browse(page, f"{frames}{play} frames.shift()({clock});"), re.DOTALL)
            assert found[1] == word
            expected = min(float(begun[2]) + share * float(begun[3]), float(begun[3]))
            assert float(found[2]) == pytest.approx(expected, abs=0.011)
        paused = re.search(
            output, browse(page, f"{frames}{play} frames.shift()(1350); {play} frames.shift()(1700);"), re.DOTALL
        )
        assert paused[1] == "Play"
        assert float(paused[2]) == pytest.approx(float(begun[2]) + 0.1 * float(begun[3]), abs=0.011)

    def test_shows_one_pack_alone(self, page, browse, still):
        dom = browse(page, still + "document.querySelector('button[data-pack=\"1\"]').click();")
        assert 'data-only="1"' in dom
        dots = re.findall(r'<circle class="tf-(?:up|down) tf-tone-(\d)"([^>]*)>', dom)
        assert {tone for tone, more in dots if "none" not in more} == {"1"}
        assert re.search(r'class="tf-lit tf-tone-1"', dom)
        assert re.search(r'data-pack="1" title="[^"]+" aria-pressed="true"', dom)
