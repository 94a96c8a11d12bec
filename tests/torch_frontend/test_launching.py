"""How ranks of PyTorch's backend "treefold" find each other, and what the others see when one ends."""

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch_ranks import PATIENCE_S, Died, collectives, launching, mixed, on_hosts, run

#: In its first life rank 1 fails when the group has formed; the keys of that life are still in torchrun's store.
RESTARTED = """
import os, sys
import numpy as np, treefold
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with treefold.connect() as first, treefold.connect() as second:
    total = first.all_reduce(np.float32(2**first.rank)) + second.all_reduce(np.float32(10))
    if life == 0:
        sys.exit(3 * first.rank)
    print(f"life {life} rank {first.rank} has {total}")
"""


class TestRendezvous:
    def test_by_a_file(self):
        assert run(launching.late, 2, 0.0) == [3, 3]

    def test_by_a_tcp_store(self, unused_port):
        assert run(launching.late, 2, 0.0, method=f"tcp://127.0.0.1:{unused_port}") == [3, 3]

    def test_a_rank_comes_late(self):
        assert run(launching.late, 3, 1.5) == [7, 7, 7]

    def test_a_rank_does_not_come(self):
        answers = run(launching.never, 3)
        assert [answer.kind for answer in answers[:2]] == ["ConnectError"] * 2
        assert "Rank 2 did not connect within 4" in answers[0].text

    @pytest.mark.parametrize("bound", ["call", "group"])
    def test_a_rank_does_not_come_to_the_first_collective(self, bound):
        """The others wait as long as the call or ``set_timeout`` says, and not as long as the group was given."""
        answers = run(launching.never_calls, 3, bound)
        assert [answer.kind for answer in answers[:2]] == ["DeadlineError"] * 2
        assert answers[0].text.startswith("Rank 2 had not come by the deadline")

    def test_a_rank_fails_when_all_have_come(self):
        assert run(launching.fails_when_all_have_come, 3) == ["RuntimeError", *["ConnectError"] * 2]

    def test_ranks_that_are_started_again(self):
        assert run(launching.restarted, 3) == [7] * 3


class TestStarts:
    def test_by_spawn(self):
        """All others here are forked from a server."""
        assert run(collectives.broadcast, 2, 1, context=multiprocessing.get_context("spawn")) == [[2, 2, 2]] * 2

    def test_by_torchrun_that_starts_all_ranks_again(self, tmp_path):
        """The remains of the first ranks in torchrun's store mislead no rank."""
        script = tmp_path / "script.py"
        script.write_text(RESTARTED)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(  # noqa: S603 - our own program
            [*command, "--max-restarts", "1", "--monitor-interval", "0.1", script],
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=PATIENCE_S,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(r"life \d rank \d has [\d.]+\d", done.stdout)) == [
            f"life 1 rank {rank} has 23.0" for rank in range(2)
        ]

    @pytest.mark.parametrize("backend", ["cpu:treefold,cuda:gloo", "cuda:gloo,cpu:treefold"])
    def test_beside_cuda(self, backend):
        """In a mixed string it is this group that gets the tensors, whatever the order."""
        assert run(collectives.broadcast, 2, 1, backend=backend) == [[2, 2, 2]] * 2


class TestEnds:
    @pytest.mark.parametrize("elements", [4, 1 << 20])
    def test_a_rank_is_killed(self, elements):
        *answers, last = run(launching.killed, 3, elements)
        assert last == Died(-9)
        assert len({answer[:3] for answer in answers}) == 1
        kind, sentence, was_kept, _ = answers[0]
        assert (kind, was_kept) == ("PeerLostError", True)
        assert sentence.startswith("Rank 2 has exited, so this call did not happen: outputs are as they were.")
        assert max(answer[3] for answer in answers) < 10

    @pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 0, 1), (0, 1, 2)], ids=str)
    @pytest.mark.parametrize("end", ["killed", "left"])
    def test_a_rank_ends_before_the_first_collective_of_a_group(self, end, hosts):
        *answers, last = run(launching.ends, 3, end, environment=on_hosts(*hosts))
        assert last == (Died(-9) if end == "killed" else None)
        assert answers == [("PeerLostError", True, True)] * 2

    def test_a_rank_is_killed_in_training(self):
        *answers, last = run(launching.killed_in_training, 3)
        assert last == Died(-9)
        assert all(re.search("Rank 2 has exited, so this call did not happen", answer.text) for answer in answers)

    def test_a_forked_child_is_no_rank(self):
        said = run(launching.forked, 2)
        assert [words.split(" Only")[0] for words in said] == [
            f"This process was forked from rank {rank} and is no rank itself." for rank in range(2)
        ]

    def test_memory_is_given_back(self):
        assert run(launching.kept_memory, 2) == [(True, True)] * 2

    def test_nothing_is_left_behind(self, tmp_path):
        run(collectives.broadcast, 2, 0, environment={"TMPDIR": str(tmp_path)})
        assert list(Path(tmp_path).iterdir()) == []


class TestWithoutProcessGroups:
    def test_the_rest_still_works(self, programs, tmp_path):
        (tmp_path / "script.py").write_text(
            "import torch\n"
            "from torch import distributed\n"
            "distributed.is_available = lambda: False\n"
            "import treefold.torch\n"
            "assert 'mean_hook' not in treefold.torch.__all__\n"
            "print(treefold.torch.all_reduce_([torch.ones(1), torch.ones(1)])[0].item())\n"
        )
        done = programs.run([tmp_path / "script.py"])
        assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


class TestMixedStrings:
    def test_tensors_on_another_device_go_to_their_backend(self):
        asked = ["allreduce", "broadcast", "allgather", "reduce_scatter", "send", "recv", "allreduce"]
        assert (
            run(mixed.both, 2, backend="cpu:treefold,meta:recorder")
            == [([6, 6], [(name, "meta") for name in asked])] * 2
        )

    def test_tensors_on_a_device_that_the_string_does_not_name_are_refused(self):
        answers = run(mixed.nowhere, 2, backend="cpu:treefold")
        assert [answer.kind for answer in answers] == ["DeviceError"] * 2, answers
