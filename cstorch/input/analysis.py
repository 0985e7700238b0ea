"""The input function for cs_input_analyzer, where that has started the program, and for the log of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.data

import cs_runtime.input_source
from csrun.schedulers.tasks import worker_variables
from csrun.tasks.environment import environment_variables
from cstorch.input.loader import InputLoader
from cstorch.input.random_state import RandomState
from cstorch.job import reading_as, task
from cstorch.program import configuration
from input_rules.input_export import InputProgram, Shard, export_input, export_requested

PATIENCE_S = 2.0
"""A run does not make an input once more for its report that took longer to make."""


def export_input_function(loader: InputLoader) -> None:
    """Gives the input function to the analyzer that has started this process; nothing without one.

    Ends the process, except before a compilation whose report the analyzer wants.
    """
    if export_requested():
        config = configuration()
        export_input(_program(loader), compiles=config.compile_only or config.validate_only)


def log_report(loader: InputLoader) -> None:
    """Logs what the input function could do better, see `cs_runtime.input_source.log_report`."""
    if loader.first_batch_s > PATIENCE_S:
        return
    from input_rules.torch.inspection import inspect

    first = None if loader.sends_function else loader.first
    with RandomState(loader.seed):
        cs_runtime.input_source.log_report(lambda: inspect(_program(loader), task().num_workers, first))


def _program(loader: InputLoader) -> InputProgram:
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
    told = environment_variables(worker_variables(os.environ, shard.count, shard.index))
    with told, reading_as(shard.count, shard.index):
        yield


def data_loader_of(made: Any) -> torch.utils.data.DataLoader[Any]:
    """Return the DataLoader that stands for what an input function returns.

    Args:
        made: Something that can be iterated for batches.

    Returns:
        Itself where it is a DataLoader, the DataLoader among its attributes where it reads one, else one that
        iterates it in this process.
    """
    if isinstance(made, torch.utils.data.DataLoader):
        return made
    attributes = getattr(made, "__dict__", {}).values()
    inner = (one for one in attributes if isinstance(one, torch.utils.data.DataLoader))
    return next(inner, None) or _IteratingLoader(made)


class _IteratingLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader of a list, a generator, or an object with `__iter__`; the rules ask for `iterated`."""

    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated
        super().__init__(_Batches(iterated), batch_size=None, collate_fn=_unchanged)


class _Batches(torch.utils.data.IterableDataset[Any]):
    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterated)


def _unchanged(batch: Any) -> Any:
    return batch
