"""Trainings for ``assert_same_training``, which each rank's process imports by their names."""

import os
import signal
import threading

import torch
from torch import nn

import treefold
from treefold.torch import MicroBatches


def train(fault=None):
    """Train on this process's ranks; ``fault``: what is done wrong on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.3), nn.Linear(7, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with treefold.connect() as group:
        run = MicroBatches(model, group, per_step=4)
        for step in range(3):
            for index in run.mine(step):
                with run.micro_batch(step, index):
                    if fault == "dropout" and step == 1:
                        torch.manual_seed(group.rank)
                    loss = model(torch.randn(6, 5)).square().mean()
                    loss.backward()
                    run.log(loss=loss)
            run.reduce()
            if fault == "raises" and group.rank == 1:
                raise ZeroDivisionError
            if fault == "dies" and group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "waits" and group.rank == 1:
                threading.Event().wait(60)
            optimizer.step()
            if not (fault == "ends" and step == 2 and group.size == 2):
                yield run.digests(optimizer)


def seeded_by_rank():
    return train("dropout")


def raises():
    return train("raises")


def dies():
    return train("dies")


def waits():
    return train("waits")


def ends():
    return train("ends")
