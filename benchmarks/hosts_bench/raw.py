"""The bytes of an all-reduce between hosts, over plain sockets and without arithmetic: the limit of the network here.

Host i owns a slice of the value. Each host sends every other slice to its owner, and its own slice to all: 2·(H−1)/H
times the value, in each direction. All connections are used at once and evenly, the next host first, so that every port
is busy in both directions until the end. Nothing is computed, and no byte waits as it would in a reduction.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PORT = 4500
_RETRY_S = 0.02
#: What one call of the kernel moves at most, so that all connections have their turn.
_MOST_BYTES = 256 << 10
#: What one connection may have on its way: more would fill a port's queue, and what does not fit in is sent again.
_BUFFER_BYTES = 64 << 10


class Exchange:
    """One connection per NIC and pair of hosts; only the first rank of each host takes part."""

    def __init__(self, hosts: Sequence[int], addresses: Sequence[Sequence[str]], rank: int) -> None:
        self._hosts = len(addresses)
        self._host = hosts[rank]
        self._lines: list[dict[int, socket.socket]] = []
        if hosts.index(self._host) != rank:
            return
        servers = [_bounded(socket.create_server((address, _PORT))) for address in addresses[self._host]]
        for nic, server in enumerate(servers):
            lines = {other: _connected(addresses[other][nic], self._host) for other in range(self._host)}
            for _ in range(self._host + 1, self._hosts):
                line, _ = server.accept()
                lines[line.recv(1)[0]] = line
            server.close()
            self._lines.append(lines)

    def move(self, array: NDArray[np.float32], shares: Sequence[int]) -> None:
        """Send and receive as much as an all-reduce of the array with slices of these shares."""
        memory = array.data.cast("B")
        ends = [int(end) for end in np.cumsum([0, *shares]) * len(memory) // sum(shares)]
        slices = [memory[begin:end] for begin, end in itertools.pairwise(ends)]
        nics = [threading.Thread(target=self._move, args=(nic, slices)) for nic in range(len(self._lines))]
        for nic in nics:
            nic.start()
        for nic in nics:
            nic.join()

    def _move(self, nic: int, slices: list[memoryview]) -> None:
        own, scratch = self._part(slices[self._host], nic), memoryview(bytearray(_MOST_BYTES))
        around = [(self._host + step) % self._hosts for step in range(1, self._hosts)]
        lines = {other: self._lines[nic][other] for other in around}
        # Every other host gets its own slice and this host's, and sends as many bytes.
        to_send = {other: [self._part(slices[other], nic), own] for other in around}
        left = {other: sum(map(len, parts)) for other, parts in to_send.items()}
        while lines:
            senders = [line for other, line in lines.items() if to_send[other]]
            receivers = [line for other, line in lines.items() if left[other]]
            readable, writable, _ = select.select(receivers, senders, [])
            for other, line in lines.items():
                if line in writable:
                    _send_some(line, to_send[other])
                if line in readable:
                    left[other] -= _receive_some(line, scratch[: left[other]])
            lines = {other: line for other, line in lines.items() if to_send[other] or left[other]}

    def _part(self, memory: memoryview, nic: int) -> memoryview:
        nics = len(self._lines)
        return memory[len(memory) * nic // nics : len(memory) * (nic + 1) // nics]


def _send_some(line: socket.socket, parts: list[memoryview]) -> None:
    """Send as much of the first part as the kernel accepts at once, and drop what is sent, with any empty parts."""
    parts[0] = parts[0][line.send(parts[0][:_MOST_BYTES], socket.MSG_DONTWAIT) :] if parts[0] else parts[0]
    if not parts[0]:
        parts.pop(0)


def _receive_some(line: socket.socket, memory: memoryview) -> int:
    count = line.recv_into(memory)
    if not count:
        message = "a host has closed its connection in the middle of a measurement"
        raise ConnectionError(message)
    return count


def _connected(address: str, host: int) -> socket.socket:
    while True:
        line = _bounded(socket.socket())
        try:
            line.connect((address, _PORT))
        except ConnectionRefusedError:  # the other one is not there yet; whoever runs the job limits its time
            line.close()
            time.sleep(_RETRY_S)
        else:
            line.sendall(bytes([host]))
            return line


def _bounded(line: socket.socket) -> socket.socket:
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        line.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER_BYTES)
    return line
