"""The command ``treefold doctor``: whether all is well, what is here, and what to mend, each with its command."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from treefold.cli.console import echo
from treefold.cli.doctor.findings import Problem
from treefold.cli.doctor.looks import examine
from treefold.cli.tables import Table


def doctor(*, json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False) -> None:
    """Say what is here, what is slow or missing, and what to do about it.

    Frameworks are found, not imported. The exit code is 0 whatever is found: --json says whether all is well.
    """
    findings = examine()
    if json:
        typer.echo(json_text.dumps(findings.to_plain(), indent=2, ensure_ascii=False))
        return
    echo(f"{findings.summary}.", "", Table(["what", "found"], list(findings.facts.items()), words=(0, 1)))
    for title, problems in (("To mend", findings.to_mend), ("Not installed", findings.not_installed)):
        if problems:
            echo("", f"{title}:", *(line for problem in problems for line in _lines(problem)))


def _lines(problem: Problem) -> tuple[str, str]:
    return f"- {problem.what}", f"  {problem.mend}"
