"""Export the input function of a program to the analyzer that has started the program.

A front end calls `export_input` before a training run would begin, if `export_requested()`. The analyzer
names the function that receives the input in the environment, so that neither side imports the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from input_rules.pipeline import Framework

# Path of the order for a process; a program that finds it is analyzed instead of trained.
ORDER_VARIABLE = "CSRUN_INPUT_ANALYSIS"

# MODULE:FUNCTION that receives the program, the path of the order, and whether the program was about to
# compile. The function returns only if the program is to continue with its compile.
RECEIVER_VARIABLE = "CSRUN_INPUT_ANALYZER"


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the data that a worker reads: number `index` of `count`."""

    count: int
    index: int


@dataclass(frozen=True)
class InputProgram:
    """An input function with everything that is needed to call it.

    Attributes:
        framework: framework of the pipeline that the function returns.
        function: the user's function.
        build: calls the function as the worker of a shard would; returns a tf.data.Dataset or a torch
            DataLoader. For TensorFlow it may be called in a graph or eagerly.
        batches: reads the input as that worker would: a newly built input, one array for each component.
        component_names: names of the arrays in order, which may be known only after a batch was read; raises
            for an input that no run could use.
        batch_size: records of a full batch; None: the number of rows of the first array.
        artifact_dirs: folders that may hold the artifact of a compile, with its report.
        seed: graph seed, for TensorFlow.
        eager: the function is written for eager execution, for TensorFlow.
        seeded: every run draws the same random numbers for its input.
        role: context in which the environment of the process is that of a worker of the shard, for inputs
            that read it only when they are iterated, in this process or in a subprocess.
    """

    framework: Framework
    function: Callable[..., Any]
    build: Callable[[Shard], Any]
    batches: Callable[[Shard], Iterator[tuple[Any, ...]]]
    component_names: Callable[[], Sequence[str]] = tuple
    batch_size: int | None = None
    artifact_dirs: tuple[Path, ...] = ()
    seed: int | None = None
    eager: bool = False
    seeded: bool = False
    role: Callable[[Shard], AbstractContextManager[None]] = lambda shard: nullcontext()


def export_requested() -> bool:
    """Return True if an analyzer has started this process."""
    return bool(os.environ.get(ORDER_VARIABLE))


def export_input(program: InputProgram, *, compiles: bool = False) -> None:
    """Pass the program to the analyzer, which ends the process.

    Returns only if the caller was about to compile (`compiles`) and the analyzer needs the compile report.
    """
    module, _, function = os.environ[RECEIVER_VARIABLE].partition(":")
    getattr(import_module(module), function)(program, Path(os.environ[ORDER_VARIABLE]), compiles)
