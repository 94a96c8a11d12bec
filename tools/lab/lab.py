"""A network as a lab: built, changed while jobs run, and removed."""

from __future__ import annotations

import functools
import json
import sys
from types import TracebackType
from typing import Self

from .hosts import Host, LabError, missing_tools
from .networks import Network, star

#: The switches have an address, too: what runs beside them is reached from a host over its own cable only.
_SWITCHES, _SWITCH_ADDRESS = "switches", 254
#: How long a packet may wait for its turn, at most: the queue of a port.
_QUEUE_MS = 50
_SLOW_MBIT_PER_S = 20
_BURST_BYTES_PER_MBIT_PER_S = 131.072  # 128 KiB at 1 Gbit/s


class Lab:
    """Emulated hosts in a network; a context manager.

    ``hosts[i]`` has the address ``address(i, nic)`` on each of its NICs ``eth0``, ``eth1`` …; ``switches`` is one more
    host, with all bridges. NIC k of any host reaches NIC k of any other and no other NIC.

    Raises:
        LabError: ``missing()`` says why.

    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.hosts: list[Host] = []
        try:
            self.switches = Host(_SWITCHES, self.addresses)
            self._build()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the lab."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the lab."""
        self.close()

    def close(self) -> None:
        """End everything that runs in the lab, and remove it."""
        for host in [*self.hosts, *([self.switches] if hasattr(self, "switches") else [])]:
            host.close()
        self.hosts = []

    def address(self, host: int, nic: int = 0) -> str:
        """Return the IPv4 address of a host's NIC."""
        return f"10.77.{nic}.{host + 1}"

    @property
    def switch_address(self) -> str:
        """The address of the switches' side, which hosts reach over their first NIC unless it is cut off."""
        return f"10.77.0.{_SWITCH_ADDRESS}"

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each host's first NIC, and of the switches, by the names that hosts know."""
        named = {f"host{number}": self.address(number) for number in range(self.network.hosts)}
        return {**named, _SWITCHES: self.switch_address}

    def cut(self, host: int, nic: int = 0) -> None:
        """Unplug the cable at the switch. Data in transit are lost, and TCP tells neither end."""
        self._set_link(_port(host, nic), "down")

    def mend(self, host: int, nic: int = 0) -> None:
        """Plug the cable in again."""
        self._set_link(_port(host, nic), "up")

    def cut_trunk(self, number: int = 0) -> None:
        """Unplug a trunk at its first switch: hosts then reach only those on their own side."""
        self._set_link(_trunk_end(number), "down")

    def mend_trunk(self, number: int = 0) -> None:
        """Plug the trunk in again."""
        self._set_link(_trunk_end(number), "up")

    def set_rate(self, mbit_per_s: float, host: int, nic: int = 0) -> None:
        """Change the rate of a cable, in both directions, without interrupting anything."""
        _shape(self.hosts[host], {f"eth{nic}": mbit_per_s})
        _shape(self.switches, {_port(host, nic): mbit_per_s})

    def set_network(self, network: Network) -> None:
        """Give all cables and trunks the rates of ``network``, which has the same cables.

        Raises:
            LabError: its cables lead elsewhere.

        """
        if _ends(network) != _ends(self.network):
            message = f"A lab of {self.network.name!r} cannot become {network.name!r}: its cables lead elsewhere."
            raise LabError(message)
        self.network = network
        self._shape_all()

    def transferred(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return the bytes that each NIC has sent and received so far, by host and NIC."""
        found = {}
        for number, host in enumerate(self.hosts):
            for link in json.loads(host.configure("ip", "-s", "-json", "link")):
                if link["ifname"].startswith("eth"):
                    counts = link["stats64"]
                    found[number, int(link["ifname"][3:])] = counts["tx"]["bytes"], counts["rx"]["bytes"]
        return found

    def _build(self) -> None:
        # Only the first switch has an address: else all answer for it, and what hosts send there would use no trunk.
        self.switches.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")
        self.switches.configure("ip", "-batch", "-", lines="".join(map(_bridge, range(self.network.switches))))
        for number in range(self.network.hosts):
            self.hosts.append(Host(f"host{number}", self.addresses))
        for host, nic, switch in _ends(self.network)[0]:
            self._lay(host, nic, switch)
        for number, (first, second) in enumerate(_ends(self.network)[1]):
            self.switches.configure("ip", "-batch", "-", lines=_trunk(number, first, second))
        self.switches.configure("ip", "address", "add", f"{self.switch_address}/24", "dev", "bridge0")
        self._shape_all()

    def _lay(self, host: int, nic: int, switch: int) -> None:
        port, peer = _port(host, nic), self.hosts[host].process_id
        self.switches.configure(
            "ip",
            "-batch",
            "-",
            lines=(
                f"link add name {port} type veth peer name eth{nic} netns {peer}\n"
                f"link set {port} addrgenmode none\nlink set {port} master bridge{switch}\nlink set {port} up\n"
            ),
        )
        # Without an IPv6 address of its own an idle NIC sends nothing: its counters are the jobs'.
        self.hosts[host].configure(
            "ip",
            "-batch",
            "-",
            lines=(
                f"link set eth{nic} addrgenmode none\n"
                f"address add {self.address(host, nic)}/24 dev eth{nic}\nlink set eth{nic} up\n"
            ),
        )

    def _shape_all(self) -> None:
        ports = {_port(cable.host, cable.nic): cable.mbit_per_s for cable in self.network.cables}
        for number, trunk in enumerate(self.network.trunks):
            ports |= {_trunk_end(number, end): trunk.mbit_per_s for end in "ab"}
        _shape(self.switches, ports)
        for number, host in enumerate(self.hosts):
            own = {f"eth{cable.nic}": cable.mbit_per_s for cable in self.network.cables if cable.host == number}
            _shape(host, own)

    def _set_link(self, name: str, state: str) -> None:
        self.switches.configure("ip", "link", "set", name, state)


@functools.cache
def missing() -> str | None:
    """Return in words why this machine cannot have a lab, or None if it can."""
    if sys.platform != "linux":
        return f"A lab is made of Linux namespaces; this is {sys.platform}."
    if tools := missing_tools():
        return f"A lab needs {', '.join(tools)} (of util-linux and iproute2) on the PATH."
    try:
        with Lab(star(100)):
            return None
    except LabError as error:
        needs = "A lab needs root, or `unshare --map-root-user`, and in a container CAP_SYS_ADMIN and CAP_NET_ADMIN."
        return f"{needs} {error}"


def _port(host: int, nic: int) -> str:
    return f"port{host}n{nic}"


def _trunk_end(number: int, end: str = "a") -> str:
    return f"trunk{number}{end}"


def _bridge(number: int) -> str:
    name = f"bridge{number}"
    return f"link add name {name} type bridge mcast_snooping 0\nlink set {name} addrgenmode none\nlink set {name} up\n"


def _trunk(number: int, first: int, second: int) -> str:
    ends = {_trunk_end(number, "a"): first, _trunk_end(number, "b"): second}
    lines = [f"link add name {min(ends)} type veth peer name {max(ends)}"]
    for name, switch in ends.items():
        lines += [f"link set {name} {what}" for what in ("addrgenmode none", f"master bridge{switch}", "up")]
    return "\n".join([*lines, ""])


def _ends(network: Network) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    cables = [(cable.host, cable.nic, cable.switch) for cable in network.cables]
    return cables, [(trunk.first, trunk.second) for trunk in network.trunks]


def _shape(host: Host, mbit_per_s: dict[str, float]) -> None:
    lines = [
        f"qdisc replace dev {name} root tbf rate {rate * 1000:.0f}kbit burst {_burst(rate)} latency {_QUEUE_MS}ms\n"
        for name, rate in mbit_per_s.items()
    ]
    host.configure("tc", "-batch", "-", lines="".join(lines))


def _burst(mbit_per_s: float) -> int:
    # The bucket has to hold what the rate brings while the kernel's timer is late: with 16 KiB at 1 Gbit/s TCP gets a
    # quarter of the rate. A larger one lets short messages pass at the machine's speed, so slow links get the smallest.
    if mbit_per_s <= _SLOW_MBIT_PER_S:
        return 16 << 10
    return max(64 << 10, int(mbit_per_s * _BURST_BYTES_PER_MBIT_PER_S))
