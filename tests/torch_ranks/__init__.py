"""Ranks for the tests of PyTorch's backend: processes that run one function each and send back its result.

Ranks are forked from a server that has PyTorch loaded, because loading it takes seconds. Their functions stand in the
modules beside this one, where a child finds them by name.
"""

import datetime as dt
import multiprocessing
import os
import pickle
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

import treefold.torch
from treefold.group.bootstrap import connecting

#: The host that each rank pretends to be on, as a list: then only gloo carries anything between hosts.
HOSTS = "TREEFOLD_TEST_HOSTS"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "treefold.torch",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch._dynamo",
    ]  # what the bodies import
)
#: Seconds until a rank is killed. Full counts of 8 ranks take minutes on 2 cores.
PATIENCE_S = 1200 if os.environ.get("TREEFOLD_CASES") == "full" else 120


@dataclass(frozen=True)
class Raised:
    """An error as a rank saw it."""

    kind: str
    text: str


@dataclass(frozen=True)
class Died:
    """A rank that has sent nothing: the signal that ended it, as a negative number, or its exit code."""

    code: int


def run(body, size, *arguments, backend="treefold", method=None, environment=None, context=_SERVER, seconds=60.0):
    """Run ``body(rank, size, *arguments)`` on as many ranks, and return what each has returned or raised."""
    with tempfile.TemporaryDirectory() as folder:
        method = method or f"file://{folder}/store"
        jobs = [
            (body, rank, size, arguments, backend, method, environment or {}, seconds, str(Path(folder, str(rank))))
            for rank in range(size)
        ]
        children = [context.Process(target=_rank, args=(job,)) for job in jobs]
        for child in children:
            child.start()
        for child in children:
            child.join(PATIENCE_S)
            if child.is_alive():
                child.kill()
                child.join()
        return [_answer(Path(folder, str(rank)), child.exitcode) for rank, child in enumerate(children)]


def on_hosts(*hosts):
    """Return the environment in which rank r is on host ``hosts[r]``."""
    return {HOSTS: ",".join(map(str, hosts)), "GLOO_SOCKET_IFNAME": "lo"}


def _answer(path, code):
    return pickle.loads(path.read_bytes()) if path.exists() else Died(code)  # noqa: S301 - our own children's


def _rank(job):
    body, rank, size, arguments, backend, method, environment, seconds, path = job
    os.environ.update(environment)
    torch.set_num_threads(1)
    if HOSTS in os.environ:
        host = os.environ[HOSTS].split(",")[rank]
        connecting.host_key = lambda: f"host {host}"
    try:
        timeout = dt.timedelta(seconds=seconds)
        distributed.init_process_group(backend, init_method=method, rank=rank, world_size=size, timeout=timeout)
        answer = body(rank, size, *arguments)
    except Exception as error:  # noqa: BLE001 - the test says what it expects
        answer = Raised(type(error).__name__, str(error) or traceback.format_exc())
    Path(f"{path}.part").write_bytes(pickle.dumps(answer))
    Path(f"{path}.part").rename(path)
    if distributed.is_initialized():
        distributed.destroy_process_group()


__all__ = ["PATIENCE_S", "Died", "Raised", "on_hosts", "run", "treefold"]
