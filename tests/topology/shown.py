"""A topology as a test states it: whole matrices and whole trees, in GB/s."""


def matrix(topology, *kinds):
    """Return GB/s from every device to every other over its own links of some kinds (of all, where none is given)."""
    found = {}
    for link in topology.links:
        if not kinds or link.kind in kinds:
            found[link.source, link.target] = found.get((link.source, link.target), 0) + link.bytes_per_s / 1e9
    return [[round(found.get((a, b), 0), 6) for b in topology.devices] for a in topology.devices]


def ports(topology):
    """Return GB/s of every device to switches of NVLink or xGMI: there, and the same back."""
    found = {}
    for link in topology.links:
        if link.kind in {"nvlink", "xgmi"} and topology.kinds[link.target] == "switch":
            assert topology.capacity(link.target, link.source) == topology.capacity(link.source, link.target)
            found[link.source] = (link.target, round(link.bytes_per_s / 1e9, 6))
    return found


def tree(topology):
    """Return every PCIe link as ``child: (parent, GB/s)``, the same both ways."""
    found = {}
    links = [link for link in topology.links if link.kind == "pcie"]
    for there, back in zip(links[::2], links[1::2], strict=True):
        assert (there.source, there.target, there.bytes_per_s) == (back.target, back.source, back.bytes_per_s)
        found[there.source] = (there.target, round(there.bytes_per_s / 1e9, 6))
    return found


def between(topology):
    links = [link for link in topology.links if link.kind == "sys"]
    return {(link.source, link.target): link.bytes_per_s / 1e9 for link in links[::2]}
