"""Bodies of ranks that connect by the variables of torchrun, each as if on a host of its own."""

import os
import time

import numpy as np
from rank_processes import told

import treefold
from treefold.errors import TreefoldError
from treefold.group import connecting, joining


def _set_variables(me, port, **more):
    """Set what torchrun sets."""
    own = {"RANK": str(me.rank), "WORLD_SIZE": str(me.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({**own, "TORCHELASTIC_USE_AGENT_STORE": "True", **more})


def connect_in_a_run(me, *, port):
    """Connect as ranks of an elastic job do, whose processes then end without a word; return the sum of all."""
    _set_variables(me, port, TORCHELASTIC_RUN_ID="a run")
    joining.host_key = lambda: f"host {me.rank}"
    group = treefold.connect(connect_timeout_seconds=20)
    total = group.all_reduce(np.float32(2**me.rank))
    group._link.close = lambda *_: None
    return float(total)


def miss_a_rank(me, *, port, seconds):
    """Connect without rank 2, under torchrun's variables; most of the time goes by before PyTorch has made a store."""
    if me.rank == 2:
        return ""
    _set_variables(me, port)
    find = connecting.find_ranks
    connecting.find_ranks = lambda *given: time.sleep(0.75 * seconds) or find(*given)
    return told(lambda: treefold.connect(connect_timeout_seconds=seconds))[1]


def connect_unlike(me, *, port, variable, options, hosts=(0, 1, 2)):
    """Connect with a variable and options of this rank."""
    _set_variables(me, port, **variable.get(me.rank, {}))
    joining.host_key = lambda: f"host {hosts[me.rank]}"
    version = options.get(me.rank, {}).pop("version", treefold.__version__)
    treefold.__version__ = version
    try:
        return told(lambda: treefold.connect(connect_timeout_seconds=30, **options.get(me.rank, {})).close())
    except TreefoldError as error:
        return type(error).__name__, str(error)
