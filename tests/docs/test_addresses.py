import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest
from papers import ROOT

ADDRESS = "https://example.org/owner/treefold"
TOOL = ROOT / "tools" / "address.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("address", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tag():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"v{project['version']}"


class TestReadmeOfAPackageIndex:
    def test_has_absolute_links_only(self, tool, tag):
        paper = (ROOT / "README.md").read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)]+)\)", tool.with_absolute_links(paper, ADDRESS, tag))
        assert len(links) == len(re.findall(r"\]\([^)]+\)", paper))
        assert [link for link in links if not link.startswith("https://")] == []
        assert f"{ADDRESS}/tree/{tag}/docs/adr" in links
        assert f"{ADDRESS}/blob/{tag}/docs/start/index.md#without-make" in links

    def test_shows_pictures_as_files(self, tool, tag):
        made = tool.with_absolute_links("![a](docs/pictures/demo.svg)", ADDRESS, tag)
        assert made == f"![a]({ADDRESS}/raw/{tag}/docs/pictures/demo.svg)"

    def test_keeps_code_and_links_that_lead_elsewhere(self, tool, tag):
        paper = "```python\nf[0](README.md)\n```\n[a](https://example.com) [b](#below)\n"
        assert tool.with_absolute_links(paper, ADDRESS, tag) == paper

    def test_leads_to_no_file_that_is_missing(self, tool, tag):
        with pytest.raises(SystemExit, match=r"^README\.md links to docs/nowhere\.md, which is not there$"):
            tool.with_absolute_links("[a](docs/nowhere.md)", ADDRESS, tag)


class TestUrlsOfThePackage:
    def test_are_added_to_what_is_published(self, tool, tag):
        before = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        after = tomllib.loads(tool.with_urls(before, ADDRESS, tag))
        assert after["project"].pop("urls") == {
            "Homepage": ADDRESS,
            "Documentation": f"{ADDRESS}/blob/{tag}/docs/index.md",
            "Source": ADDRESS,
            "Issues": f"{ADDRESS}/issues",
            "Changelog": f"{ADDRESS}/blob/{tag}/CHANGELOG.md",
        }
        assert after == tomllib.loads(before)


class TestAddress:
    @pytest.mark.parametrize(
        "address", ["owner/treefold", "http://example.org/owner/treefold", "https://example.org", ""]
    )
    def test_is_an_address_or_refused(self, address, tmp_path):
        folder = tmp_path / "copy"
        command = [sys.executable, str(TOOL), address, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
        assert done.returncode == 1
        assert "give the repository's address" in done.stderr
        assert not folder.exists()

    def test_is_given_by_the_workflow_that_publishes(self):
        workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
        assert "REPOSITORY: ${{ github.server_url }}/${{ github.repository }}" in workflow
        assert "\nREPOSITORY ?=\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
