"""Bodies of ranks that connect by the variables of torchrun, each as if on a host of its own."""

import os

import numpy as np
from rank_processes import told

import treefold
from treefold.group.bootstrap import connecting


def _set_variables(me, port, **more):
    own = {"RANK": str(me.rank), "WORLD_SIZE": str(me.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({**own, "TORCHELASTIC_USE_AGENT_STORE": "True", **more})


def connect_in_a_run(me, *, port):
    """Connect as ranks of an elastic job do, which end without a word afterwards; return the sum of all."""
    _set_variables(me, port, TORCHELASTIC_RUN_ID="a run")
    connecting.host_key = lambda: f"host {me.rank}"
    group = treefold.connect(connect_timeout_seconds=20)
    total = group.all_reduce(np.float32(2**me.rank))
    group._link.close = lambda *_: None
    return float(total)


def connect_unlike(me, *, port, options):
    """Connect, rank 1 with these options, or as another version."""
    _set_variables(me, port)
    connecting.host_key = lambda: f"host {me.rank}"
    options = options if me.rank == 1 else {}
    treefold.__version__ = options.pop("version", treefold.__version__)
    return told(lambda: treefold.connect(connect_timeout_seconds=30, **options).close())
