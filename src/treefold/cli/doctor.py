"""The command ``treefold doctor``: what is installed, what is slow or missing, and what to do about it.

Each look adds the facts that it finds, and the problems to mend. No framework is imported.
"""

from __future__ import annotations

import difflib
import importlib
import json as json_text
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from treefold import __version__
from treefold.cli.console import echo
from treefold.cli.gpus import find_gpus, torch_build
from treefold.cli.needs import EXTRAS, has_module
from treefold.cli.tables import Table
from treefold.errors import ArgumentError
from treefold.errors.words import bytes_in_words, counted, printable
from treefold.execution import gpus, native
from treefold.execution.host import describe_machine
from treefold.files import readable_text

_BUILD = "pip install --force-reinstall --no-deps --no-cache-dir treefold (in a checkout: . instead of treefold)"
_GET_TORCH = "pip install --upgrade torch, or what pytorch.org/get-started/locally says for this system"
#: Variables that a user may set. Names that begin with one of ``_INTERNAL`` are for tests and benchmarks.
_THREADS, _LEVEL = "TREEFOLD_NUM_THREADS", "TREEFOLD_VECTOR_LEVEL"
_CERTIFICATE = "TREEFOLD_CERTIFICATE"
_VARIABLES = (_THREADS, _LEVEL, "TREEFOLD_HOST_CACHE_BYTES", _CERTIFICATE, gpus.VARIABLE, "TREEFOLD_PROFILE")
_PROOFS = {"native-flag": "the processor's flag", "native-integers": "exponents", "native-none": "nothing"}
_INTERNAL = ("TREEFOLD_CASE", "TREEFOLD_BENCH_")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
#: By their modules: names, and the packages that bring them.
_FRAMEWORKS = {
    "numpy": ("NumPy", ("numpy",)),
    "torch": ("PyTorch", ("torch",)),
    "tensorflow": ("TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos")),
    "jax": ("JAX", ("jax",)),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something slow, wrong or missing, in a sentence, and what to do: a command, or a sentence."""

    what: str
    mend: str


@dataclass(slots=True)
class Findings:
    """The facts by name, the problems to mend, and the extras that are not installed."""

    facts: dict[str, str] = field(default_factory=dict)
    to_mend: list[Problem] = field(default_factory=list)
    not_installed: list[Problem] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The answer in one line: whether all is well."""
        if self.to_mend:
            return f"{counted(len(self.to_mend), 'thing')} to mend"
        extras = counted(len(self.not_installed), "extra")
        but = f", but for {extras} not installed" if self.not_installed else ""
        return f"Everything that this machine can use is in place{but}"

    def mend(self, what: str, mend: str) -> None:
        """Add a problem, and what to do about it."""
        self.to_mend.append(Problem(what, mend))

    def to_plain(self) -> dict[str, Any]:
        """Return everything in plain types, ready for ``json.dumps``."""
        return {"ok": not self.to_mend, "summary": self.summary, **asdict(self)}


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
            echo("", f"{title}:", *(f"- {problem.what}\n  {problem.mend}" for problem in problems))


def examine() -> Findings:
    """Run all looks. A look that fails is a problem, too."""
    findings = Findings()
    for look in _LOOKS:
        try:
            look(findings)
        except ArgumentError:  # of a variable, which is reported
            continue
        except Exception as error:  # noqa: BLE001 - whatever is broken is reported, and the other looks go on
            subject = look.__name__.removeprefix("_").replace("_", " ")
            findings.facts[subject] = "cannot be told"
            reason = f"{type(error).__name__}: {error}"
            findings.mend(f"Looking at {subject} failed with {reason}.", "report it, with this output")
    return findings


def _versions(findings: Findings) -> None:
    findings.facts |= {
        "treefold": __version__,
        "Python": f"{platform.python_version()} {platform.python_implementation()}",
    }


def _environment(findings: Findings) -> None:
    """Look at the environment variables, before all other looks, which depend on them."""
    for name in sorted(name for name in os.environ if name.startswith("TREEFOLD_") and not name.startswith(_INTERNAL)):
        findings.facts[name] = printable(os.environ[name])
        if name not in _VARIABLES:
            nearest = difflib.get_close_matches(name, _VARIABLES, 1)
            meant = f"; {nearest[0]} may be meant" if nearest else ""
            findings.mend(f"treefold knows no variable {name}{meant}.", _unset(name))
    for setting, names in ((native.num_threads, _VARIABLES[:4]), (gpus.gpu_executor, _VARIABLES[4:])):
        try:
            setting()
        except ArgumentError as error:
            wrong = next(name for name in names if name in str(error))
            findings.mend(str(error), _unset(wrong))


def _machine(findings: Findings) -> None:
    try:
        facts = describe_machine()
    except ArgumentError:  # a variable, which is reported
        facts = {"system": f"{platform.system()} {platform.machine()}"}
    words = facts.pop("memory", "").split()
    if words:
        facts["memory"] = bytes_in_words(1024 * int(words[0]))
    findings.facts |= {name: fact for name, fact in facts.items() if name != "vector level"}


def _native_core(findings: Findings) -> None:
    if native.HAS_NATIVE:
        findings.facts["native core"] = "in place"
        return
    reason = "not installed"
    try:
        importlib.import_module("treefold._native")
    except ModuleNotFoundError:
        pass
    except ImportError as error:
        reason = f"not loaded ({error})"
    findings.facts["native core"] = reason
    findings.mend(
        f"The native core is {reason}: results are the same, but slower, and nothing can be simulated. Building it "
        "takes a C++17 compiler and Python's headers.",
        _BUILD,
    )


def _vector_level(findings: Findings) -> None:
    levels = native.vector_levels()
    if not levels:
        return
    level = levels[native.level()]
    findings.facts["vector level"] = f"{level} of {', '.join(levels)}"
    if level != levels[0]:
        findings.mend(f"{_LEVEL} keeps the native core at {level}; this machine can run {levels[0]}.", _unset(_LEVEL))


def _certificate(findings: Findings) -> None:
    """Look at the method by which the core proves that sums are exact."""
    proof = _PROOFS.get(native.kernel())
    if proof is None:
        return
    findings.facts["sums proved exact"] = f"by {proof}"
    if proof != _PROOFS["native-flag"]:
        flag = "The processor's flag for inexact results is not used, so sums are slower, and the same."
        mend = _unset(_CERTIFICATE) if _CERTIFICATE in os.environ else "nothing to do: the flag does not work here"
        findings.mend(flag, mend)


def _threads(findings: Findings, *, quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> None:
    threads = native.num_threads()
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = min(processors, _processors_of(quota) or processors)
    findings.facts["threads"] = f"{threads} on {counted(processors, 'processor')}"
    if native.HAS_NATIVE and threads != allowed:
        limit = f"the time of {allowed} of {processors}" if allowed < processors else str(allowed)
        what = f"A reduction uses {counted(threads, 'thread')}, and this process may use {limit} processors."
        findings.mend(what, _set(_THREADS, allowed) if allowed < processors else _unset(_THREADS))


def _shared_memory(findings: Findings, *, setting: Path = HUGE_PAGES) -> None:
    """Look at the size of pages in shared memory. It is a fact, not a problem: not every user may change it."""
    found = re.search(r"\[(\w+)\]", readable_text(setting))
    if found is None:
        return
    has_small = found[1] in ("never", "deny")
    change = f"pages of 4 KiB; for huge ones: echo advise | sudo tee {setting}"
    findings.facts["shared memory"] = change if has_small else "huge pages"


def _processors_of(quota: Path) -> int | None:
    """Return how many processors' time a container may use, or None without a limit."""
    words = readable_text(quota).split()
    return max(1, int(words[0]) // int(words[1])) if len(words) > 1 and words[0].isdecimal() else None


def _frameworks(findings: Findings) -> None:
    least = _least_versions()
    for module, (name, packages) in _FRAMEWORKS.items():
        if not has_module(module):
            findings.facts[name] = "not installed"
            continue
        package, version = next(((one, found) for one in packages if (found := _version(one))), (packages[0], ""))
        findings.facts[name] = version or "found"
        if package in least and version and _numbers(version) < _numbers(least[package]):
            what = f"{name} {version} is older than {least[package]}, the oldest that treefold works with."
            findings.mend(what, f'pip install --upgrade "{package}>={least[package]}"')


def _extras(findings: Findings) -> None:
    for extra, (serves, packages) in EXTRAS.items():
        missing = [package for module, package in packages.items() if not has_module(module)]
        for module, package in packages.items():
            if module not in _FRAMEWORKS and package not in missing:
                findings.facts[package] = _version(package) or "found"
        if missing and extra != "nvml":  # which is for machines with GPUs alone
            what = f"For {serves}: {' and '.join(missing)}."
            findings.not_installed.append(Problem(what, f'pip install "treefold[{extra}]"'))


def _graphics_processors(findings: Findings) -> None:
    found = find_gpus()
    if found is None:
        findings.facts["GPUs"] = "none that a driver reports"
        return
    models = ", ".join(f"{count} × {model}" for model, count in Counter(found.models).items())
    findings.facts["GPUs"] = " ".join(
        filter(None, [models or f"{found.vendor}, which nvidia-smi lists", found.driver and f"(driver {found.driver})"])
    )
    if found.vendor == "NVIDIA" and not has_module("pynvml"):
        findings.mend("treefold topology sees these GPUs with nvidia-ml-py only.", 'pip install "treefold[nvml]"')
    build = torch_build()
    if build:
        findings.facts["PyTorch built for"] = build
        if build.split()[0] != {"NVIDIA": "CUDA", "AMD": "ROCm"}[found.vendor]:
            findings.mend(f"PyTorch is built for {build}, and cannot use these GPUs.", _GET_TORCH)


def _set(variable: str, value: int) -> str:
    return f"{'set' if os.name == 'nt' else 'export'} {variable}={value}"


def _unset(variable: str) -> str:
    return f"set {variable}=" if os.name == "nt" else f"unset {variable}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _least_versions() -> Mapping[str, str]:
    """Return the oldest versions that treefold's metadata allows, by package."""
    try:
        wanted = metadata.requires("treefold") or []
    except metadata.PackageNotFoundError:
        return {}
    return {found[1]: found[2] for text in wanted if (found := re.match(r"([\w.-]+?)\s*>=\s*([\d.]+)", text))}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


_LOOKS: tuple[Callable[[Findings], None], ...] = (
    _versions,
    _environment,
    _machine,
    _native_core,
    _vector_level,
    _certificate,
    _threads,
    _shared_memory,
    _frameworks,
    _extras,
    _graphics_processors,
)
