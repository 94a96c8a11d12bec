"""What a look at this machine finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from treefold.errors.words import counted


@dataclass(frozen=True, slots=True)
class Problem:
    """What is slow, wrong or missing, in a sentence, and what to do: a command, or a sentence."""

    what: str
    mend: str


@dataclass(slots=True)
class Findings:
    """What is here, by name; what is to be mended; which extras are not installed."""

    facts: dict[str, str] = field(default_factory=dict)
    to_mend: list[Problem] = field(default_factory=list)
    not_installed: list[Problem] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """Return in a line whether all is well."""
        if self.to_mend:
            return f"{counted(len(self.to_mend), 'thing')} to mend"
        extras = counted(len(self.not_installed), "extra")
        but = f", but for {extras} not installed" if self.not_installed else ""
        return f"Everything that this machine can use is in place{but}"

    def to_plain(self) -> dict[str, Any]:
        """Return all of it, ready for ``json.dumps``."""
        return {"ok": not self.to_mend, "summary": self.summary, **asdict(self)}
