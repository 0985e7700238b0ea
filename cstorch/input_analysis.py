"""The input function for cs_input_analyzer, where that has started the program, and for the log of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cs_runtime.input_report
from csrun.environment import variables
from csrun.stand_ins import worker_variables
from cstorch.config import configuration
from cstorch.data import DataLoader, OwnNumbers
from cstorch.job import task
from cstorch.own_loader import data_loader_of
from cstorch.streaming import reading_as
from input_rules.handover import InputProgram, Shard, take_over, wanted

PATIENCE_S = 2.0
"""A run does not make an input once more for its report that took longer to make."""


def hand_over(loader: DataLoader) -> None:
    """Gives the input function to the analyzer that has started this process; nothing without one.

    Ends the process, except before a compilation whose report the analyzer wants.
    """
    if wanted():
        config = configuration()
        take_over(_program(loader), compiles=config.compile_only or config.validate_only)


def log_report(loader: DataLoader) -> None:
    """Logs what the input function could do better, see `cs_runtime.input_report.log_report`."""
    if loader.making_s > PATIENCE_S:
        return
    from input_rules.torch.inspection import inspect

    with OwnNumbers(loader.seed):
        cs_runtime.input_report.log_report(lambda: inspect(_program(loader), task().num_workers))


def _program(loader: DataLoader) -> InputProgram:
    config = configuration()

    def build(shard: Shard) -> Any:
        with _role(shard):
            return data_loader_of(loader.made())

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        with _role(shard):
            yield from loader.arrays(iter(loader.made()))

    return InputProgram(
        framework="torch",
        function=loader.input_fn,
        build=build,
        batches=batches,
        component_names=lambda: [spec.name for spec in loader.inputs()],
        batch_size=loader.batch_size,
        artifact_dirs=(config.compile_dir or config.model_dir,),
        seeded=True,
        role=_role,
    )


@contextmanager
def _role(shard: Shard) -> Iterator[None]:
    """What a worker finds: for what it reads in its environment later, too."""
    told = variables(worker_variables(os.environ, shard.count, shard.index))
    with told, reading_as(shard.count, shard.index):
        yield
