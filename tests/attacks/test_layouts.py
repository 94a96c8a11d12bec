"""Damaged indexes, nested files and distributed checkpoints: a right average or one of our errors. No code is run."""

import contextlib
import resource
import sys

import pytest
import torch
from attack import MOST_BYTES, cases, drawing, in_shards, replayable
from averages import array_of, average, mean_of, rebuilt
from layouts import INDEX, KINDS, NESTED, TRAP, damaged_layout, read_layout, whole
from safetensors.torch import load_file

from treefold.testing import assert_same_bits

FULL = 100_000
KEYS = {"index": (None,), "nested": ("ema", "model", "ema", "model", None, "nothing"), "distributed": ("model", None)}


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of a process are Linux's")
class TestDamagedLayouts:
    @in_shards
    def test_are_averaged_or_refused(self, shard, tmp_path, request):
        for kind in KINDS:
            whole(kind, 0), whole(kind, 1)
        request.getfixturevalue("little_memory")  # what the libraries take is not what is bounded
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = []
        for number in cases(FULL, shard):
            with replayable(number):
                found.append(strike(number, tmp_path))
        assert not TRAP.exists()
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MOST_BYTES
        request.node.user_properties.append(("outcomes", {what: found.count(what) for what in sorted(set(found))}))

    @pytest.mark.parametrize("kind", KINDS)
    def test_were_whole(self, kind, tmp_path):
        paths = [place(whole(kind, replica), kind, tmp_path / str(replica)) for replica in range(2)]
        key = KEYS[kind][0]
        assert average(paths, tmp_path / "mean.safetensors", key)
        assert (load_file(tmp_path / "mean.safetensors")["weight"] == 1.5).all()
        assert check([whole(kind, replica) for replica in range(2)], kind, key, tmp_path / "mean.safetensors")


def strike(number, folder):
    """Average one damaged checkpoint, alone or as the second of two, and say what became of it."""
    random = drawing(number)
    kind = KINDS[number % len(KINDS)]
    made = [damaged_layout(kind, random)]
    if random.random() < 0.4:
        made.insert(0, whole(kind, 0))
    key = random.choice(KEYS[kind])
    paths = [place(files, kind, folder / str(position)) for position, files in enumerate(made)]
    if kind == "index" and random.random() < 0.5:
        paths = [path / INDEX for path in paths]
    output = folder / "mean.safetensors"
    is_averaged = average(paths, output, key)
    left = {path.name for path in folder.iterdir()} - {"0", "1"}
    assert left == ({output.name} if is_averaged else set())
    if not is_averaged:
        return f"{kind}: refused"
    is_checked = check(made, kind, key, output)
    output.unlink()
    return f"{kind}: {'averaged' if is_checked else 'averaged, and not read by its library'}"


def place(files, kind, folder):
    """Write the files of a checkpoint, in place of those that were there, and return what the command is given."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, contents in files.items():
        (folder / name).write_bytes(contents)
    return folder / NESTED if kind == "nested" else folder


def check(made, kind, key, output):
    """Fail unless the output is the mean of what the libraries read; return False if they do not read it."""
    mean = load_file(output)
    read = []
    for files in made:
        with contextlib.suppress(Exception):  # of the libraries, which are not what is tested
            clean = {NESTED: rebuilt(files[NESTED]).getvalue()} if kind == "nested" else files
            read.append(read_layout(kind, clean, key))
    if len(read) < len(made):
        return False
    for name, value in mean.items():
        parts = [array_of(part[name]) if isinstance(part[name], torch.Tensor) else part[name] for part in read]
        assert_same_bits(array_of(value), mean_of(parts))
    return True
