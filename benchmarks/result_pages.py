"""Pages of results: a title with the day, a table of the machine, and the measurements."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from treefold.cli.doctor import HUGE_PAGES
from treefold.cli.tables import Table
from treefold.execution.host import describe_machine, describe_versions


def describe(packages: Sequence[str]) -> str:
    """Return a table of this machine, the versions of packages, and the load before the measurement."""
    facts = describe_machine() | describe_versions(packages)
    if HUGE_PAGES.exists():
        facts["huge pages of shared memory"] = HUGE_PAGES.read_text(encoding="ascii").strip()
    facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    return Table(["machine", ""], [[*fact] for fact in facts.items()], words=(0, 1)).to_markdown()


def save(kind: str, title: str, parts: Sequence[str]) -> Path:
    """Write ``results/<kind>-<date>.md``, and return its path."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    output = Path(__file__).with_name("results") / f"{kind}-{today}.md"
    output.write_text("\n\n".join([f"# {title}, {today}", *parts]) + "\n", encoding="utf-8")
    return output
