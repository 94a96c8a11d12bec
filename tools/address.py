"""Copy the checkout with the repository's address in it, as it is to be published.

Run ``python tools/address.py https://example.org/owner/treefold build/addressed``.

A package index shows the README without the files to which it links, and the links of ``[project.urls]``. The address
is not in the checkout, because forks have others: whichever one publishes gives its own. In the copy, the README's
links are absolute, to the tag of this version, and ``pyproject.toml`` has its URLs.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ADDRESS = re.compile(r"https://[\w.:-]+(/[\w.-]+)+")
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def main() -> None:
    """Copy to the second argument, a folder that is emptied first, with the first argument as the address."""
    if len(sys.argv) != 3 or not _ADDRESS.fullmatch(sys.argv[1]):  # noqa: PLR2004 - two arguments and the name
        sys.exit(
            f"Got {sys.argv[1:]}: give the repository's address, such as https://example.org/owner/name, and a folder."
        )
    address, folder = sys.argv[1].removesuffix("/").removesuffix(".git"), Path(sys.argv[2])
    copy_checkout(folder)
    project, readme = folder / "pyproject.toml", folder / "README.md"
    settings = project.read_text(encoding="utf-8")
    tag = f"v{tomllib.loads(settings)['project']['version']}"
    project.write_text(with_urls(settings, address, tag), encoding="utf-8")
    readme.write_text(with_absolute_links(readme.read_text(encoding="utf-8"), address, tag), encoding="utf-8")


def copy_checkout(folder: Path) -> None:
    """Copy every file that git tracks or would add."""
    git = shutil.which("git") or sys.exit("git is not on PATH: it says which files belong to the checkout")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603 - ours
    shutil.rmtree(folder, ignore_errors=True)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def with_urls(settings: str, address: str, tag: str) -> str:
    """Return ``pyproject.toml`` with the URLs that a package index shows beside the package."""
    urls = {
        "Homepage": address,
        "Documentation": f"{address}/blob/{tag}/docs/index.md",
        "Source": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return settings.replace("[project.scripts]\n", f"[project.urls]\n{lines}\n[project.scripts]\n", 1)


def with_absolute_links(paper: str, address: str, tag: str) -> str:
    """Return a page of the checkout's root with links that lead to the repository; blocks of code stay as they are."""

    def lead(link: re.Match[str]) -> str:
        path = link["path"].removesuffix("/")
        if not (ROOT / path).exists():
            sys.exit(f"README.md links to {path}, which is not there")
        kind = "tree" if (ROOT / path).is_dir() else "raw" if link["before"].startswith("!") else "blob"
        return f"{link['before']}{address}/{kind}/{tag}/{path}{link['anchor'] or ''})"

    parts = _BLOCK.split(paper)
    return "".join(part if number % 2 else _LINK.sub(lead, part) for number, part in enumerate(parts))


if __name__ == "__main__":
    main()
