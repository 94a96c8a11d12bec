import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lab as laboratory
from lab import LabError, launch, racks, rails, star

PYTHON = (sys.executable, "-IS")  # quick to start
ON_HOSTS = str(Path(__file__).with_name("on_hosts.py"))
MIB = 1 << 20
PATIENCE_S = 60


class Transfer:
    """One connection between two hosts of a lab: connected at once, used on ``begin``."""

    def __init__(self, lab, source, target, *, nbytes, nic=0):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        address = lab.address(target, nic)
        self.receiver = lab.hosts[target].popen([*PYTHON, ON_HOSTS, "receive", address], **pipes)
        assert self.receiver.stdout.readline() == b"ready\n"
        self.sender = lab.hosts[source].popen([*PYTHON, ON_HOSTS, "send", address, str(nbytes)], **pipes)
        assert self.sender.stdout.readline() == b"connected\n"

    def begin(self):
        """Let the sender send."""
        self.sender.stdin.write(b"\n")
        self.sender.stdin.flush()

    def finish(self):
        """Return how many bytes have arrived, and the seconds they took."""
        seconds, arrived = (end.communicate(timeout=PATIENCE_S)[0] for end in (self.sender, self.receiver))
        return int(arrived), float(seconds)


def received(lab, host, nic=0):
    """Return the bytes that a NIC has received."""
    return lab.transferred()[host, nic][1]


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
    @pytest.mark.parametrize("network", [star(100, 100, 100), racks(100, (100, 100), (100,))], ids=lambda n: n.name)
    def test_all_hosts_reach_each_other_by_name(self, build, network):
        """Over one switch as over a trunk."""
        lab = build(network)
        with launch.start(lab, [*PYTHON, ON_HOSTS, "meet"], (0, 1, 2), stdout=subprocess.PIPE) as job:
            heard = [process.communicate(timeout=PATIENCE_S)[0].decode() for process in job.processes]
        assert heard == [f"host{host} heard [0, 1, 2]\n" for host in range(3)]

    def test_hosts_are_apart(self, build):
        """A host has its own name, boot, shared memory and processes; its temporary files are in memory of its own."""
        lab = build(star(100, 100))
        seen = [host.run(*PYTHON, ON_HOSTS, "look").strip().rpartition(" ") for host in lab.hosts]
        assert [words for words, _, _ in seen] == [f"host{host} [] 2 /dev/shm" for host in range(2)]
        assert len({Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *(boot for *_, boot in seen)}) == 3

    def test_bytes_are_counted_per_nic(self, build):
        """What crosses the second rail is seen there, at both ends, and nowhere else; headers are a few percent."""
        lab = build(rails(100, hosts=2, nics=2))
        before = lab.transferred()
        transfer = Transfer(lab, 0, 1, nbytes=MIB, nic=1)
        transfer.begin()
        assert transfer.finish()[0] == MIB
        sent, arrived = (lab.transferred()[host, 1][way] - before[host, 1][way] for host, way in ((0, 0), (1, 1)))
        assert MIB < sent < 1.2 * MIB
        assert MIB < arrived < 1.2 * MIB
        assert all(sum(lab.transferred()[host, 0]) - sum(before[host, 0]) < 1000 for host in range(2))

    def test_a_rate_is_kept(self, build):
        """All bytes arrive, whatever the rate; the times are printed, for people."""
        lab = build(star(1000, 20))
        for rate in (20, 5):
            lab.set_rate(rate, host=1)
            transfer = Transfer(lab, 0, 1, nbytes=MIB)
            transfer.begin()
            arrived, seconds = transfer.finish()
            print(f"{rate} Mbit/s: 1 MiB in {seconds:.3f} s, {arrived * 8e-6 / seconds:.2f} Mbit/s")
            assert arrived == MIB
            assert f"rate {rate}Mbit" in lab.hosts[1].configure("tc", "qdisc", "show", "dev", "eth0")
            assert f"rate {rate}Mbit" in lab.switches.configure("tc", "qdisc", "show", "dev", "port1n0")

    def test_a_network_changes_its_rates(self, build):
        """All cables and trunks at once; a network of other cables is refused."""
        lab = build(racks(50, (100,), (100,)))
        lab.set_network(racks(10, (30,), (20,)))
        rates = lab.switches.configure("tc", "qdisc")
        assert [rates.count(f"rate {rate}Mbit") for rate in (30, 20, 10)] == [1, 1, 2]
        sentence = r"^A lab of 'racks 30 \+ 20, trunk 10' cannot become 'star 1 1': its cables lead elsewhere\.$"
        with pytest.raises(LabError, match=sentence):
            lab.set_network(star(1, 1))

    def test_a_cut_link_carries_nothing_and_a_mended_one_the_rest(self, build):
        """The connection survives: what was sent meanwhile arrives later."""
        lab = build(star(100, 100))
        transfer = Transfer(lab, 0, 1, nbytes=MIB)
        lab.cut(1)
        before = received(lab, 1)
        transfer.begin()
        assert wait_until(lambda: lab.transferred()[0, 0][0] > 10_000)  # host 0 sends, and sends again
        assert received(lab, 1) == before
        lab.mend(1)
        assert transfer.finish()[0] == MIB

    def test_two_labs_at_once(self, build):
        """The same names and addresses in both, and no way from one to the other."""
        labs = [build(star(100, 100)) for _ in range(2)]
        for lab in labs:
            transfer = Transfer(lab, 0, 1, nbytes=MIB)
            transfer.begin()
            assert transfer.finish()[0] == MIB
        assert all(received(lab, 1) < 1.2 * MIB for lab in labs)

    def test_nothing_is_left(self, build):
        """Neither processes on the hosts, nor their networks."""
        lab = build(star(100, 100))
        ours = {Path(f"/proc/{host.process_id}/ns/net").readlink() for host in [*lab.hosts, lab.switches]}
        assert ours < namespaces()
        sleeper = lab.hosts[0].popen(["sh", "-c", "echo up; sleep 1000"], stdout=subprocess.PIPE)
        assert sleeper.stdout.readline() == b"up\n"
        lab.close()
        assert sleeper.poll() is not None
        assert not ours & namespaces()

    def test_nothing_is_left_by_a_killed_process(self, build):
        """Whoever has made the lab is killed, and so are its hosts, with what runs on them."""
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
        """The error says on which host, and what it has printed."""
        lab = build(star(100))
        with pytest.raises(LabError, match=r"^host0: `sh -c echo no >&2; exit 3` ended with 3: no$"):
            lab.hosts[0].run("sh", "-c", "echo no >&2; exit 3")


class TestMissing:
    def test_says_which_tools(self, monkeypatch):
        """Without the tools there is no lab, and one sentence says what to install."""
        monkeypatch.setenv("PATH", "")
        sentence = laboratory.missing.__wrapped__()
        assert sentence == "A lab needs unshare, nsenter, ip, tc (of util-linux and iproute2) on the PATH."

    def test_says_what_the_machine_refuses(self, monkeypatch, tmp_path):
        """The kernel's own words follow what a lab needs."""
        for tool in ("unshare", "nsenter", "ip", "tc"):
            path = tmp_path / tool
            path.write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
            path.chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert laboratory.missing.__wrapped__() == (
            "A lab needs root, or `unshare --map-root-user`, and in a container CAP_SYS_ADMIN and CAP_NET_ADMIN. "
            "A host needs its own namespaces: not permitted."
        )


class TestCommandLine:
    def test_runs_on_every_host(self, build):
        """Its exit code is the first that is not 0."""
        build(star(100))
        root = Path(laboratory.__file__).parents[2]
        line = [sys.executable, "-m", "tools.lab", "star", "100", "100", "--", "sh", "-c", "hostname; exit $RANK"]
        done = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert (sorted(done.stdout.split()), done.returncode) == (["host0", "host1"], 1)

    def test_ctrl_c_ends_it(self, build):
        """Without a traceback, and with nothing left."""
        build(star(100))
        root = Path(laboratory.__file__).parents[2]
        line = [
            sys.executable,
            "-m",
            "tools.lab",
            "star",
            "100",
            "--",
            "sh",
            "-c",
            "readlink /proc/self/ns/net; sleep 1000",
        ]
        with subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
            network = Path(command.stdout.readline().decode().strip())
            assert network in namespaces()
            command.send_signal(signal.SIGINT)
            assert command.wait(PATIENCE_S) == 130
            assert command.stderr.read() == b""
        assert wait_until(lambda: network not in namespaces())
