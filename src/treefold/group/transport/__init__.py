"""Links between the ranks of a group: they make calls together, in shared memory or over an engine between hosts."""
