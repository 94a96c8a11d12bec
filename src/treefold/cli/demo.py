"""The command ``treefold demo``: trains, checks what it claims, and shows it on stdout and in a page.

Its first part trains on different numbers of ranks (``one_sha``), its second on devices, also with TensorFlow's rule.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import treefold
from treefold.cli import console, training
from treefold.cli.needs import check_modules, check_output, has_module
from treefold.cli.tables import Table
from treefold.cli.training import BATCH_SIZE, CLASSES, PARTS, Course, Examples, Trainings, digest
from treefold.errors import CommandError
from treefold.errors.words import counted, short
from treefold.execution.host import describe_machine, describe_versions
from treefold.files import write_atomically
from treefold.plan import Plan, from_json
from treefold.topology.drawing.charts import Curve, draw_curves
from treefold.topology.drawing.page import Check, Page, Section, for_screens, render_page
from treefold.topology.drawing.plan_drawing import draw_movement
from treefold.topology.drawing.svg import LIGHT, QUIET

#: Trainings on one device and on many are the same mathematics; in float32 they add a batch's examples in another
#: order. Measured: at most 1e-6 for 2 to 10 devices, dealt by digit or at random, four seeds, up to 2,000 steps. Losing
#: one device, as a wrong reduction does, makes it 1e-3 after the first step. The bound stands far from both.
LARGEST_DIFFERENCE = 1e-5
_ORDERS = 50  # in which gradients are summed
_STEPS_OF_RANKS, _STEPS = 40, 330
_RANKS, _DEVICES = "1,2,3", 3
#: The page of a part, and what is printed of it. The page is written first, so that a closed pipe does not lose it.
Part = tuple[Page, list[console.Block]]
_DIGITS = 8  # of a SHA-256 that are shown


def demo(
    *,
    ranks: Annotated[str | None, typer.Option(help=f"Train on so many ranks, in turn; {_RANKS} if not given.")] = None,
    devices: Annotated[int | None, typer.Option(help=f"Devices to train on, 2 to {CLASSES}; 3 if not given.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Deal examples at random instead of by digit.")] = False,
    steps: Annotated[
        int | None, typer.Option(help=f"Steps to train for; {_STEPS_OF_RANKS} on ranks, {_STEPS} on devices.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first parameters and of the batches.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page here.")] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Train as one of a launcher's processes instead.")] = False,
) -> None:
    """Train on 1, 2 and 3 ranks and compare the bits; then on 3 devices, with treefold and with TensorFlow's rule.

    The first part needs PyTorch: with treefold a training has one SHA-256 on any number of ranks, beside DDP on gloo.
    The option --ranks runs it alone; --devices or --shuffle run the second part alone. TensorFlow's rule is written in
    NumPy, so that TensorFlow is not needed. Exit code 0 means that all checks hold, 1 that one does not.
    """
    of_devices = {"--devices": devices, "--shuffle": shuffle or None}
    given = [name for name, value in {**of_devices, "--report": report}.items() if value is not None]
    if connect and ranks is not None:
        raise CommandError("--ranks starts processes and --connect joins those of a launcher; give one of them.")
    for option in given:
        if (connect and option != "--shuffle") or (ranks is not None and option != "--report"):
            mode = "--connect" if connect else "--ranks"
            raise CommandError(f"{option} is for devices of one process and means nothing to {mode}; leave it out.")
    _check_numbers(_DEVICES if devices is None else devices, steps=steps, seed=seed)
    if report is not None:
        check_output("--report", report)
    train, test = training.load_split_digits()
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra

    # BLAS gets one thread: for matrices this small, more threads wait for each other longer than they work. On two busy
    # cores training alone took 0.2 s with one thread, and 0.2 s to 7 s with two.
    course, parts = Course(train, devices or _DEVICES, steps or _STEPS, seed, shuffle), list[Part]()
    with threadpool_limits(1, user_api="blas"):
        if connect:
            raise typer.Exit(0 if train_connected(course) else 1)
        if ranks is not None or (not set(given) & of_devices.keys() and _can_train_ranks()):
            parts.append(train_on_ranks(_RANKS if ranks is None else ranks, train, steps or _STEPS_OF_RANKS, seed))
        if ranks is None:
            parts.append(train_on_devices(course, test))
    if report is not None:
        write_atomically(report, render_page(_join([page for page, _ in parts], seed)))
    console.echo(*(block for _, blocks in parts for block in blocks))
    if report is not None:
        console.echo(f"The report is in {report}.")
    raise typer.Exit(0 if all(check.holds for page, _ in parts for check in page.checks) else 1)


def _check_numbers(devices: int, *, steps: int | None, seed: int) -> None:
    if not 2 <= devices <= CLASSES:  # noqa: PLR2004 - one device has nothing to reduce
        raise CommandError(
            f"--devices got {devices}. It takes 2 to {CLASSES}: each device holds at least one of the {CLASSES} digits."
        )
    if steps is not None and steps < 1:
        raise CommandError(f"--steps got {steps}. It takes a number of at least 1.")
    if seed < 0:
        raise CommandError.seed(seed)


def _can_train_ranks() -> bool:
    if sys.platform == "linux" and has_module("torch"):
        return True
    console.echo('The first part, on several ranks, needs Linux and PyTorch: pip install "treefold[torch]".', "")
    return False


def _join(pages: Sequence[Page], seed: int) -> Page:
    """Return one page of the parts: the title of the second stands above its first section."""
    first, *others = pages
    sections = [*first.sections]
    for page in others:
        top, *rest = page.sections
        sections += [dataclasses.replace(top, heading=page.title, sentence=f"{page.summary} {top.sentence}"), *rest]
    return dataclasses.replace(
        first,
        checks=tuple(check for page in pages for check in page.checks),
        sections=tuple(sections),
        facts=(("seed", str(seed)), *describe_versions(["scikit-learn", "torch"]).items(), *describe_machine().items()),
        is_picture_first=True,
    )


def train_connected(course: Course) -> bool:
    """Train as one of a launcher's processes; rank 0 compares with as many devices of one process, and prints.

    Raises:
        CommandError: there are too few processes, or too many.

    """
    with treefold.connect() as group:
        if not 2 <= group.size <= CLASSES:  # noqa: PLR2004 - one process has nothing to reduce
            raise CommandError(
                f"--connect found {counted(group.size, 'process', 'processes')}. The demo takes 2 to {CLASSES}: each "
                f"holds at least one of the {CLASSES} digits."
            )
        course = dataclasses.replace(course, devices=group.size)
        own = training.train_rank(course, group)
        bits = digest(own.parameters[0])
        everyone = group.all_gather(np.frombuffer(bytes.fromhex(bits), np.uint8)[None])
        gradients = course.gradients()
        mine: Any = treefold.PerReplica(gradients[group.rank :: group.size])
        total = digest(group.all_reduce(mine))
    if group.rank:
        return True
    alone = training.train_all(course, treefold.HierarchicalCopyAllReduce()).treefold
    is_equal = digest(alone.parameters[0]) == bits and alone.losses == own.losses
    is_sum = total == digest(treefold.all_reduce(gradients)[0])
    where = counted(len(group.hosts), "host")
    print(
        f"{counted(course.steps, 'step')} on {where}: loss {own.losses[0]:.4f} at first, {own.losses[-1]:.4f} at last"
    )
    checks = (
        Check(f"All {group.size} processes end with the same bits", len({*map(bytes, everyone)}) == 1, f"{bits[:16]}…"),
        Check(f"These, and all losses, are those of {group.size} devices of one process", is_equal, ""),
        Check(f"{PARTS} gradients have the sum that they have in one process", is_sum, f"{total[:16]}…"),
    )
    console.echo(*map(_line, checks))
    return all(check.holds for check in checks)


def train_on_ranks(text: str, train: Examples, steps: int, seed: int) -> Part:
    """Train on each number of ranks, exactly and as usual."""
    check_modules(["torch"])
    from treefold.cli import one_sha  # noqa: PLC0415 - PyTorch, which the second part does not need

    counts, found = _read_ranks(text, one_sha.PER_STEP), {}
    with console.steps(len(counts)) as begin:
        for count in counts:
            begin(f"training on {counted(count, 'rank')}")
            found[count] = one_sha.train_on(count, train, steps, seed)
    exact = [one for each, _ in found.values() for one in each]
    usual = [each[0].losses for _, each in found.values()]
    apart = [np.abs(np.subtract(one, usual[0])) for one in usual]
    shown = [[_shown(each) for each in both] for both in found.values()]
    rows = [[str(count), *shas, f"{one.max():.1g}"] for count, shas, one in zip(counts, shown, apart, strict=True)]
    table = Table(["ranks", "treefold", "DDP on gloo", "its losses differ by"], rows, words=(0, 1, 2))
    on, first = f"{', '.join(map(str, counts))} {'rank' if counts == [1] else 'ranks'}", counted(counts[0], "rank")
    claim = f"On {on} treefold's parameters, optimizer state and losses have the same bits"
    check = Check(claim, all(one == exact[0] for one in exact), f"SHA-256 {_shown(exact)}")
    names = [f"treefold on {on}", *(f"gloo on {counted(count, 'rank')}" for count in counts)]
    differences = [np.abs(np.subtract([one.losses for one in exact], exact[0].losses)).max(axis=0), *apart]
    ours, theirs = (len({shas[kind] for shas in shown}) for kind in (0, 1))
    page = Page(
        title=f"One training on {on}: {counted(ours, 'SHA')} with treefold, {theirs} with DDP on gloo",
        summary=f"A network with dropout learns handwritten digits in {counted(steps, 'step')} of {one_sha.PER_STEP} "
        f"micro-batches, on {on}: with treefold, and as usual, where .grad accumulates and gloo sums over ranks. "
        "The two differ in how sums are rounded, and in nothing else.",
        checks=(check,),
        sections=(
            Section("Loss of each step", _OF_RANKS, _draw_losses(names, [exact[0].losses, *usual]), table=table),
            Section(f"Differences from {first}", _OF_APART, _draw_losses(names, differences)),
        ),
    )
    return page, [page.summary, "", table, "", _line(check), ""]


_OF_RANKS = "The mean cross-entropy of all micro-batches of the step. The curves lie on each other; the bits do not."
_OF_APART = "How far each loss is from that of the same step there. Differences of 0 lie on the lower end of the axis."


def _read_ranks(text: str, most: int) -> list[int]:
    counts = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= count <= most for count in counts):
        raise CommandError(f"--ranks got {short(text)}. It takes numbers from 1 to {most}, such as {_RANKS}.")
    return list(dict.fromkeys(counts))


def _shown(trained: Sequence[Any]) -> str:
    """Return the beginnings of the digests that ranks have, one if all agree."""
    return ", ".join(sorted({f"{one.sha256[:_DIGITS]}…" for one in trained}))


def train_on_devices(course: Course, test: Examples) -> Part:
    """Train on devices of this process; what it proved comes last."""
    ops = treefold.HierarchicalCopyAllReduce()
    with console.steps(course.steps) as begin:
        trainings = training.train_all(course, ops, lambda: begin("three trainings"))
    value = treefold.PerReplica(trainings.treefold.parameters)
    plan, tree = ops.plan(value, value), ops.plan(value, value, walked=True)
    summary, table = describe(course, trainings), tabulate(course, trainings, test)
    checks = tuple(check_all(course, trainings, tree))
    blocks: list[console.Block] = [summary, "", table, "", str(plan), "", *map(_line, checks), ""]
    other = (
        f"TensorFlow's rule loses device {course.devices - 1}" if course.devices % 2 else "so does TensorFlow's rule"
    )
    curves = _draw_losses(_names(course), [one.losses for one in trainings])
    page = Page(
        title=f"On {course.devices} devices treefold trains the weights of one device; {other}",
        summary=summary,
        checks=checks,
        sections=(
            Section("Loss of each step", _OF_LOSSES, curves, table=table),
            Section("The plan", _OF_PLAN, draw_movement(tree, title=tree.algorithm), verbatim=str(plan)),
        ),
    )
    return page, blocks


_OF_LOSSES = "The mean cross-entropy of all examples of the step, and what the trainings have come to in the end."
_OF_PLAN = "What goes where in one step of training: as drawn between devices of their own, and as it ran in words."


def _draw_losses(names: Sequence[str], losses: Sequence[Sequence[float]]) -> str:
    tones = (QUIET, *(tone for tone in range(len(LIGHT)) if tone != QUIET))
    curves = [Curve(name, tuple(one), tone) for name, one, tone in zip(names, losses, tones, strict=False)]
    return for_screens(functools.partial(draw_curves, curves, title="Loss of each step"), wide=960.0)


def _line(check: Check) -> str:
    words = ": ".join(filter(None, [check.claim, check.found]))
    return f"{'ok    ' if check.holds else 'failed'}  {words}"


def describe(course: Course, trainings: Trainings) -> str:
    """Return what was trained, and which device held which examples."""
    weights = sum(array.size for array in trainings.alone.parameters[0].values())
    held = ", ".join(f"device {number} holds {_in_runs(digits)}" for number, digits in enumerate(course.held))
    dealing = f"Of the digits, {held}." if held else "Every device gets its part of each step's examples at random."
    return (
        f"A network of {weights:,} weights learns handwritten digits, {course.steps:,} steps of {BATCH_SIZE} examples:"
        f" on one device, and on {course.devices} that sum their gradients. {dealing}"
    )


def _in_runs(digits: Sequence[int]) -> str:
    return f"{digits[0]}–{digits[-1]}" if len(digits) > 1 else str(digits[0])


def tabulate(course: Course, trainings: Trainings, test: Examples) -> Table:
    """Return the three trainings side by side."""
    tests = {"test accuracy": test}
    if course.held:
        tests[f"… of {_in_runs(course.held[-1])}, on the last device"] = test.of(course.held[-1])
    rows = [[name, *(f"{one.accuracy(part):.1%}" for one in trainings)] for name, part in tests.items()]
    rows.append(["loss of the last step", *(f"{one.losses[-1]:.4f}" for one in trainings)])
    apart = [f"{one.distance(trainings.alone):.2g}" for one in trainings[1:]]
    return Table(["", *_names(course)], [*rows, ["largest difference of a weight", "–", *apart]])


def _names(course: Course) -> list[str]:
    return ["one device", f"{course.devices} devices, treefold", f"{course.devices} devices, TensorFlow's rule"]


def check_all(course: Course, trainings: Trainings, tree: Plan) -> Iterator[Check]:
    """Yield the demo's claims, each held against the end of the run, so that any number of steps will do."""
    count, alone, loses_one = course.devices, trainings.alone, course.devices % 2 == 1
    read = from_json(tree.to_json())  # which proves what it reads
    found = f"proved again on {len(read.steps)} steps read back from JSON"
    yield Check("The plan gives every device every gradient exactly once", holds=True, found=found)
    digests = [digest(parameters) for parameters in trainings.treefold.parameters]
    same = digests.count(digests[0])
    found = f"SHA-256 of the weights is {digests[0][:16]}… on {same} of {count}"
    yield Check(f"All {count} devices end with the same bits", same == count, found)
    parts, rng = course.gradients(), np.random.default_rng(0)
    orders = [[parts[index] for index in rng.permutation(PARTS)] for _ in range(_ORDERS)]
    sums = {digest(treefold.all_reduce(order)[0]) for order in orders}
    loops = {digest(training.add(*order)) for order in orders}
    found = (
        f"SHA-256 {min(sums)[:16]}…; {_ORDERS} orders give {len(sums)} with treefold, {len(loops)} with a NumPy loop"
    )
    yield Check(f"The sum of {PARTS} gradients has the same bits in any order", len(sums) == 1, found)
    claim = f"With treefold, {count} devices train the weights of one device"
    distance = trainings.treefold.distance(alone)
    yield Check(claim, distance <= LARGEST_DIFFERENCE, _in_words(distance))
    claim = f"TensorFlow's rule trains them, too, as {count} is an even number; of 3, 5 or 7 devices it loses one"
    if loses_one:
        claim = f"With TensorFlow's rule they do not: it never reads device {count - 1}, and raises no error"
    distance = trainings.tensorflow.distance(alone)
    yield Check(claim, (distance > LARGEST_DIFFERENCE) == loses_one, _in_words(distance))


def _in_words(distance: float) -> str:
    if not distance:
        return "the same bits"
    return f"{distance:.2g} apart" + (" at most, which is rounding" if distance <= LARGEST_DIFFERENCE else "")
