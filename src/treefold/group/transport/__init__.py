"""What joins the ranks of a group: calls that all of them make, in shared memory or over an engine between hosts."""
