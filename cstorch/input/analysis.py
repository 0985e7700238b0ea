"""Export of the input function to cs_input_analyzer, and the Input Function Report in the log of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.data

from cs_runtime import input_source
from cstorch.input.loader import InputLoader
from cstorch.input.random_state import RandomState
from cstorch.job import reading_as, task
from cstorch.program import configuration
from input_rules.input_export import InputProgram, Shard


def export_input_function(loader: InputLoader) -> None:
    """If cs_input_analyzer has started this process, send it the input function of a loop."""
    config = configuration()
    compiles = config.compile_only or config.validate_only
    input_source.export_to_analyzer(lambda: _program(loader), compiles=compiles)


def log_report(loader: InputLoader) -> None:
    """Log possible improvements of the input function (`cs_runtime.input_source.log_report`)."""
    if loader.first_batch_s > input_source.SLOW_INPUT_S:
        return
    from input_rules.torch.inspection import inspect

    first = None if loader.sends_function else loader.first
    with RandomState(loader.seed):
        input_source.log_report(lambda: inspect(_program(loader), task().num_workers, first))


def _program(loader: InputLoader) -> InputProgram:
    config = configuration()

    def build(shard: Shard) -> Any:
        with _role(shard):
            return data_loader_of(loader.make_loader())

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        with _role(shard):
            yield from loader.arrays(iter(loader.make_loader()))

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
    """Give the body the environment and the share of a worker."""
    with input_source.worker_environment(shard), reading_as(shard.count, shard.index):
        yield


def data_loader_of(made: Any) -> torch.utils.data.DataLoader[Any]:
    """Return the DataLoader that the rules examine for the return value of an input function.

    Args:
        made: An iterable of batches.

    Returns:
        The value itself if it is a DataLoader, else the DataLoader among its attributes, else a DataLoader
        that iterates over it in this process.
    """
    if isinstance(made, torch.utils.data.DataLoader):
        return made
    attributes = getattr(made, "__dict__", {}).values()
    inner = (one for one in attributes if isinstance(one, torch.utils.data.DataLoader))
    return next(inner, None) or _IteratingLoader(made)


class _IteratingLoader(torch.utils.data.DataLoader[Any]):
    """A DataLoader over a list, a generator, or an object with `__iter__`; the rules read `iterated`."""

    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated
        super().__init__(_Batches(iterated), batch_size=None, collate_fn=_identity)


class _Batches(torch.utils.data.IterableDataset[Any]):
    def __init__(self, iterated: Iterable[Any]) -> None:
        self.iterated = iterated

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterated)


def _identity(batch: Any) -> Any:
    return batch
