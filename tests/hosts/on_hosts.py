"""What tests run on the hosts of a lab: ``python on_hosts.py PART ARGUMENT …``, without any framework."""

import os
import socket
import sys
import time
from pathlib import Path

PORT = 4000
PATIENCE_S = 60


def meet():
    """Say hello to every host by its name, and print who has said it to this one."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with socket.create_server(("", PORT)) as server:
        for other in range(size):
            with _connected(f"host{other}") as line:
                line.sendall(bytes([rank]))
        heard = [_hello(server) for _ in range(size)]
    print(f"host{rank} heard {sorted(heard)}")


def receive(name):
    """Take one connection and print how many bytes come over it."""
    with socket.create_server((name, PORT)) as server:
        print("ready", flush=True)
        line, _ = server.accept()
    total = 0
    while part := line.recv(1 << 20):
        total += len(part)
    print(total)


def send(name, nbytes):
    """Connect, wait for a line of input, send these bytes, and print the seconds until the other side has them."""
    with _connected(name) as line:
        print("connected", flush=True)
        sys.stdin.readline()
        begun = time.monotonic()
        line.sendall(bytes(int(nbytes)))
        line.shutdown(socket.SHUT_WR)
        line.recv(1)  # nothing, once the other side is through
        print(time.monotonic() - begun)


def look():
    """Print what sets this host apart: its name, shared memory and number of processes, and what others left there."""
    memory = Path("/dev/shm")  # noqa: S108 - that of the host is the subject
    others = sorted(path.name for path in memory.glob("of-*"))
    (memory / f"of-{socket.gethostname()}").touch()
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    print(socket.gethostname(), others, len(processes), os.environ["TMPDIR"], boot)


def _connected(name):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((name, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _hello(server):
    line, _ = server.accept()
    with line:
        return line.recv(1)[0]


if __name__ == "__main__":
    {part.__name__: part for part in (meet, receive, send, look)}[sys.argv[1]](*sys.argv[2:])
