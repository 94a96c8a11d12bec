"""Measures scenes: every baseline of a row in turn, round by round."""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hosts_bench.baselines import BASELINES, NEEDS
from hosts_bench.scenes import Row, Scene, optimum
from hosts_bench.team import Team
from lab import Lab, launch

_WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Measured:
    """The measurement of one row.

    Attributes:
        missing: The reason why a baseline is missing, in this row and those that follow, by its name.
        seconds: Seconds of one call, by baseline.
        wrong: The number of wrong elements, by baseline.

    """

    scene: Scene
    row: Row
    best_bytes_per_s: float
    missing: dict[str, str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)

    def figures(self, baseline: str) -> tuple[float, float] | None:
        """Return median and best: of the ratio to the optimum or, in a row of latencies, of the seconds."""
        if baseline not in self.seconds:
            return None
        seconds = self.seconds[baseline]
        median, best = statistics.median(seconds), min(seconds)
        if self.row.is_latency:
            return median, best
        scale = self.row.nbytes / self.best_bytes_per_s
        return scale / median, scale / best


def measure(scene: Scene, baselines: Sequence[str], rounds: int, begin: Callable[[str], None]) -> list[Measured]:
    """Build the scene's lab, start its jobs, and measure its rows one after the other."""
    missing = {name: f"{need} is not installed" for name in baselines if (need := _lacks(name))}
    launchers = {BASELINES[name].launcher for name in baselines if name not in missing}
    found = []
    with Lab(scene.rows[0].network) as lab, _teams(lab, scene, launchers) as teams:
        for row in scene.rows:
            begin(f"{scene.name}: {row.network.name}, {row.nbytes} bytes")
            lab.set_network(row.network)
            result = Measured(scene, row, optimum(row.network), missing)
            for _ in range(rounds):
                for name in (name for name in baselines if name not in missing and _suits(name, scene, row)):
                    _turn(teams[BASELINES[name].launcher], name, result)
            found.append(result)
    return found


def _suits(name: str, scene: Scene, row: Row) -> bool:
    baseline = BASELINES[name]
    ranks = min(map(scene.placement.count, scene.placement))
    has_use = row.network.nics >= baseline.least_nics and ranks >= baseline.least_ranks
    return has_use and not (row.is_latency and baseline.is_limit)


def _lacks(name: str) -> str | None:
    need = NEEDS[BASELINES[name].launcher]
    return need if importlib.util.find_spec(need) is None else None


def _turn(team: Team, name: str, result: Measured) -> None:
    """Let one baseline reduce once for the check, then as often as the row says for the time."""
    row = result.row
    prepared = team.ask(do="prepare", baseline=name, nbytes=row.nbytes, shares=row.shares, rates=row.rates)
    if refusals := [answer["skipped"] for answer in prepared if "skipped" in answer]:
        result.missing[name] = refusals[0]
        return
    result.wrong[name] = result.wrong.get(name, 0) + sum(answer["wrong"] for answer in prepared)
    times = team.ask(do="run", calls=row.calls)
    seconds = max(answer["end"] for answer in times) - min(answer["begin"] for answer in times)
    result.seconds.setdefault(name, []).append(seconds / row.calls)


@contextlib.contextmanager
def _teams(lab: Lab, scene: Scene, launchers: set[str]) -> Iterator[Mapping[str, Team]]:
    hosts, nics = range(lab.network.hosts), range(lab.network.nics)
    addresses = [[lab.address(host, nic) for nic in nics] for host in hosts]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
        teams = {launcher: Team(folder / f"{launcher}.ranks") for launcher in sorted(launchers)}
        for launcher, team in teams.items():
            stack.enter_context(_job(lab, scene, launcher, team))
        for team in teams.values():
            stack.callback(team.close)
            team.meet(scene.placement, addresses)
        yield teams


@contextlib.contextmanager
def _job(lab: Lab, scene: Scene, launcher: str, team: Team) -> Iterator[None]:
    command = [sys.executable, str(_WORKER), str(team.path), launcher]
    with contextlib.ExitStack() as stack:
        if launcher == "mpiexec":
            # UCX, which carries MPICH's messages, sends those of medium size over one NIC unless this allows more.
            variables = {"UCX_MAX_EAGER_LANES": str(lab.network.nics)}
            stack.enter_context(launch.mpiexec(lab, command, scene.placement, environment=variables))
        else:
            stack.enter_context(launch.outside_store(lab))
            # PyTorch's users get one NIC by default. A baseline that uses both names both.
            variables = {"GLOO_SOCKET_IFNAME": "eth0"}
            stack.enter_context(launch.start(lab, command, scene.placement, environment=variables, store_outside=True))
        yield
