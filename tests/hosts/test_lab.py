import subprocess
import sys
import time
from pathlib import Path

import pytest

import lab as laboratory
from lab import LabError, racks, star

PYTHON = (sys.executable, "-IS")  # quick to start
PATIENCE_S = 60
#: Prints what sets a host apart: its name, what others left in its shared memory, its number of processes, its boot.
LOOK = """
import os, pathlib, socket
memory, others = pathlib.Path("/dev/shm"), sorted(path.name for path in pathlib.Path("/dev/shm").glob("of-*"))
(memory / f"of-{socket.gethostname()}").touch()
processes = [path for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
print(socket.gethostname(), others, len(processes), os.environ["TMPDIR"], boot)
"""


def wait_until(condition):
    """Wait for a condition, and return whether it has come."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def namespaces():
    """Return the network namespaces in which processes are."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(path.readlink())
        except OSError:  # it has ended meanwhile
            continue
    return found


class TestLab:
    def test_hosts_are_apart(self, build):
        lab = build(star(100, 100))
        seen = [host.run(*PYTHON, "-c", LOOK).strip().rpartition(" ") for host in lab.hosts]
        assert [words for words, _, _ in seen] == [f"host{host} [] 2 /dev/shm" for host in range(2)]
        assert len({Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *(boot for *_, boot in seen)}) == 3

    def test_a_network_changes_its_rates(self, build):
        lab = build(racks(50, (100,), (100,)))
        lab.set_network(racks(10, (30,), (20,)))
        rates = lab.switches.configure("tc", "qdisc")
        assert [rates.count(f"rate {rate}Mbit") for rate in (30, 20, 10)] == [1, 1, 2]
        sentence = r"^A lab of 'racks 30 \+ 20, trunk 10' cannot become 'star 1 1': its cables lead elsewhere\.$"
        with pytest.raises(LabError, match=sentence):
            lab.set_network(star(1, 1))

    def test_nothing_is_left(self, build):
        lab = build(star(100, 100))
        ours = {Path(f"/proc/{host.process_id}/ns/net").readlink() for host in [*lab.hosts, lab.switches]}
        assert ours < namespaces()
        sleeper = lab.hosts[0].popen(["sh", "-c", "echo up; sleep 1000"], stdout=subprocess.PIPE)
        assert sleeper.stdout.readline() == b"up\n"
        lab.close()
        assert sleeper.poll() is not None
        assert not ours & namespaces()

    def test_nothing_is_left_by_a_killed_process(self, build):
        build(star(100))  # or the test is skipped
        body = (
            "import sys, time; sys.path.insert(0, sys.argv[1]); import lab; made = lab.Lab(lab.star(100, 100))\n"
            "made.hosts[0].popen(['sleep', '1000'])\n"
            "print(*(host.process_id for host in [*made.hosts, made.switches]), flush=True); time.sleep(1000)"
        )
        folder = str(Path(laboratory.__file__).parent.parent)
        maker = subprocess.Popen([*PYTHON, "-c", body, folder], stdout=subprocess.PIPE)
        with maker:
            pids = maker.stdout.readline().split()
            ours = {Path(f"/proc/{int(pid)}/ns/net").readlink() for pid in pids}
            assert len(ours & namespaces()) == 3
            maker.kill()
        assert wait_until(lambda: not ours & namespaces())

    def test_a_command_that_fails(self, build):
        lab = build(star(100))
        with pytest.raises(LabError, match=r"^host0: `sh -c echo no >&2; exit 3` ended with 3: no$"):
            lab.hosts[0].run("sh", "-c", "echo no >&2; exit 3")


class TestMissing:
    def test_says_which_tools(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        sentence = laboratory.missing.__wrapped__()
        assert sentence == "A lab needs unshare, nsenter, ip, tc (of util-linux and iproute2) on the PATH."


class TestCommandLine:
    def test_runs_on_every_host(self, build):
        build(star(100))
        root = Path(laboratory.__file__).parents[2]
        line = [sys.executable, "-m", "tools.lab", "star", "100", "100", "--", "sh", "-c", "hostname; exit $RANK"]
        done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert (sorted(done.stdout.split()), done.returncode) == (["host0", "host1"], 1)
