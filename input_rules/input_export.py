"""How a front end hands its input function to an analyzer, where a training would begin.

A front end calls `take_over` when `wanted()`. Who analyses has started the process, and says in its
environment what takes the function: neither side imports the other.
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

VARIABLE = "CSRUN_INPUT_ANALYSIS"
"""Names the file with the order for a process; a program that finds it is analysed instead of training."""

TAKER = "CSRUN_INPUT_ANALYZER"
"""MODULE:FUNCTION, which is given the program, the file of the order, and whether the program was about to
compile; it returns only where the program is to go on to compile."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the data a worker reads: the `index`-th of `count`."""

    count: int
    index: int


@dataclass(frozen=True)
class InputProgram:
    """An input function with everything that is needed to call it.

    Attributes:
        framework: whose pipeline it returns.
        function: the user's function.
        build: calls it as the worker of that shard would and returns what it returned: a tf.data.Dataset, a
            torch DataLoader. For TensorFlow it may be called in a graph or eagerly.
        batches: reads it as that worker would: a freshly built input, one array a component.
        component_names: names of the arrays in their order, which may be known only once a batch was read;
            refuses an input that no run could use.
        batch_size: records of a whole batch; None: as many as the first array has rows.
        artifact_dirs: folders that may hold the artifact of a compilation, with its report.
        seed: of the graph, for TensorFlow.
        eager: whether the function is written for eager execution, for TensorFlow.
        seeded: the random numbers that the input draws begin again in every run, the same ones.
        role: while it is open the process finds in its environment what that worker of a run would: for what
            a built input reads there only when it is read itself, in this process or in one that it starts.
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


def wanted() -> bool:
    """Whether an analyzer has started this process."""
    return bool(os.environ.get(VARIABLE))


def take_over(program: InputProgram, *, compiles: bool = False) -> None:
    """Hands the program over, which ends the process.

    Returns only where the caller was about to compile (`compiles`) and the analyzer wants the report of it.
    """
    module, _, function = os.environ[TAKER].partition(":")
    getattr(import_module(module), function)(program, Path(os.environ[VARIABLE]), compiles)
