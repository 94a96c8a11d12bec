"""A lab from the command line: ``python -m tools.lab star 1000 1000 1000 1000 -- python train.py``."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys

from . import launch
from .lab import Lab, missing
from .networks import Network, racks, rails, star

_EXAMPLES = """\
python -m tools.lab star 1000 1000 1000 1000 -- python train.py           4 hosts on a switch, torchrun's variables
python -m tools.lab --launcher torchrun star 100 100 100 25 -- train.py   one port is slow; torchrun on each host
python -m tools.lab --launcher mpiexec --ranks-per-host 2 rails 100 4 2 -- python mean.py   two NICs per host
python -m tools.lab racks 50 2 100 100 100 100                            two racks of two; stays until its input ends

Hosts are called host0, host1 … (10.77.NIC.NUMBER+1). Rates are in Mbit/s, in both directions of a cable.
"""


def main(arguments: list[str]) -> int:
    """Build the lab, run the command on it and remove it; return the first exit code that is not 0."""
    options, command = _parse(arguments)
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    with Lab(options.network(options)) as lab, contextlib.ExitStack() as stack:
        if not command:
            _show(lab)
            sys.stdin.read()
            return 0
        job = _job(lab, command, options, stack)
        return next((code for code in job.wait() if code), 0)


def _job(lab: Lab, command: list[str], options: argparse.Namespace, stack: contextlib.ExitStack) -> launch.Job:
    if options.launcher == "torchrun":
        return stack.enter_context(launch.torchrun(lab, command, options.ranks_per_host))
    order = launch.round_robin if options.round_robin else launch.blocks
    placement = order(lab.network.hosts, options.ranks_per_host)
    if options.launcher == "mpiexec":
        return stack.enter_context(launch.mpiexec(lab, command, placement))
    if options.outside_store:
        stack.enter_context(launch.outside_store(lab))
    return stack.enter_context(launch.start(lab, command, placement, store_outside=options.outside_store))


def _show(lab: Lab) -> None:
    for host in [*lab.hosts, lab.switches]:
        print(f"{lab.addresses[host.name]:12}{host.name:10}{shlex.join(host.enter())} bash")
    print("The lab stays until the input ends (Ctrl-D).", flush=True)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        "python -m tools.lab",
        description="Emulate hosts and the network between them, and run a command on every host.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [options] {star,racks,rails} … [-- command …]",
    )
    parser.add_argument("--launcher", choices=("variables", "torchrun", "mpiexec"), default="variables")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--round-robin", action="store_true", help="rank r on host r mod hosts, instead of in blocks")
    parser.add_argument("--outside-store", action="store_true", help="PyTorch's store is held outside rank 0")
    kinds = parser.add_subparsers(dest="kind", required=True)
    one_switch = kinds.add_parser("star", help="a host per rate, all on one switch")
    one_switch.add_argument("rates", type=float, nargs="+")
    one_switch.set_defaults(network=_star)
    two = kinds.add_parser(
        "racks", help="as many hosts per rack as said, and a trunk from the first switch to each other"
    )
    two.add_argument("trunk", type=float)
    two.add_argument("hosts_per_rack", type=int)
    two.add_argument("rates", type=float, nargs="+")
    two.set_defaults(network=_racks)
    many = kinds.add_parser("rails", help="hosts with several NICs, and a switch for each of them")
    many.add_argument("rate", type=float)
    many.add_argument("hosts", type=int)
    many.add_argument("nics", type=int)
    many.set_defaults(network=_rails)
    return parser.parse_args(arguments[:cut]), arguments[cut + 1 :]


def _star(options: argparse.Namespace) -> Network:
    return star(*options.rates)


def _racks(options: argparse.Namespace) -> Network:
    step = options.hosts_per_rack
    return racks(options.trunk, *(options.rates[at : at + step] for at in range(0, len(options.rates), step)))


def _rails(options: argparse.Namespace) -> Network:
    return rails(options.rate, hosts=options.hosts, nics=options.nics)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
