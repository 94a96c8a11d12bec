"""Measures all-reduces between the emulated hosts of a lab, relative to what their network allows; prints a table.

Run ``python benchmarks/hosts.py``; ``--help`` lists its options. Peers without an installed engine are named below the
table (the extra `bench` has all engines). The exit code is 0 after a measurement, 1 if a result was wrong, and 2 if
there can be no lab.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import result_pages
from hosts_bench.baselines import BASELINES
from hosts_bench.measure import measure
from hosts_bench.page import make_page
from hosts_bench.scenes import SCENES
from lab import missing


def main(words: Sequence[str] | None = None) -> int:
    """Measure the scenes that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description="Measure all-reduces between emulated hosts.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which every baseline has its turn (5)")
    parser.add_argument("--scenes", nargs="+", choices=[scene.name for scene in SCENES], help="these only")
    parser.add_argument(
        "--peers", dest="baselines", nargs="+", choices=list(BASELINES), default=list(BASELINES), help="these only"
    )
    parser.add_argument("--save", action="store_true", help="write results/hosts-<date>.md, too")
    asked = parser.parse_args(words)
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    machine = result_pages.describe(["torch", "mpi4py", "mpich"])
    chosen = [scene for scene in SCENES if asked.scenes is None or scene.name in asked.scenes]
    results = [result for scene in chosen for result in measure(scene, asked.baselines, asked.rounds, _say)]
    page = make_page(results, asked.baselines)
    print(page)
    if asked.save:
        _say(f"written: {result_pages.save('hosts', 'Between emulated hosts', [machine, page])}")
    return 1 if any(any(result.wrong.values()) for result in results) else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
