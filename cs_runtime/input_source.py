"""The input of a user's program, as a worker needs it: its batches, identity, position and report."""

# Workers import this module, so it must not import the compiler.

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cs_runtime.errors import InputFnError
from cs_runtime.terminal import log_while_blocked
from cs_toolkit.errors import EXIT_BUG, exit_code_of
from cs_toolkit.random_numbers import preserve_random_state
from cs_toolkit.step import NARROWED, TensorSpec
from csrun.schedulers.tasks import worker_variables
from csrun.tasks.environment import environment_variables
from input_rules.findings import Finding, report_lines
from input_rules.input_export import InputProgram, Shard, export_input, export_requested

log = logging.getLogger("cs_runtime")

Batch = tuple[np.ndarray, ...]

Sharding = Literal["global", "shards", "program"]
"""How the share of a worker in the input of a training run is determined.

`global`: the workers read the batches of a single reader in rotation, whatever their number. `shards`: the
input function asks the toolkit for number and index of its shard when it is called, so a worker can read any
shard. `program`: the program decides, so only a run with the same number of workers reads the remaining
batches.
"""

# An input that takes longer to start is not built again only for the Input Function Report.
SLOW_INPUT_S = 2.0


class InputSource(Protocol):
    """The input of a program."""

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of one batch, in the order of the step's batch inputs."""
        ...

    def input_facts(self) -> Mapping[str, str]:
        """Return facts that identify program and input, by name; they must be equal in all tasks of a job.

        They must not depend on the task's rank, its machine, or the behavior of the user's code at run time.
        """
        ...

    def sharding(self) -> Sharding:
        """Return how the share of a worker is determined; the chief asks after it has read `inputs`."""
        ...

    def batches(self, skip: int) -> Iterator[Batch]:
        """Build the input and iterate over it after its first `skip` batches, in the order of `inputs`."""
        ...

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[Batch]:
        """Build the input of any shard, and iterate over its batches `first`, `first + stride` and so on.

        Raises:
            ShardingError: The input function determines its shard by itself.
        """
        ...


def narrow_integers(name: str, value: Any) -> np.ndarray:
    """Return a component as an array, with 64-bit integers narrowed to the device's 32 bits.

    Raises:
        InputFnError: A value does not fit.
    """
    array: np.ndarray = np.asarray(value)
    target = NARROWED.get(array.dtype.name)
    if target is None:
        return array
    result: np.ndarray = array.astype(target)
    if not np.array_equal(result, array):
        limits = np.iinfo(target)
        raise InputFnError(
            f"component '{name}' of the input has values from {array.min()} to {array.max()}; the CS system "
            f"computes integers in 32 bits, from {limits.min} to {limits.max}. Map them into that range"
        )
    return result


def input_facts(mode: str, function: Any, tensors: Iterable[str]) -> dict[str, str]:
    """Return the facts that identify an input: mode, files of the program, input function, tensors.

    Args:
        mode: Mode of the step.
        function: The user's input function.
        tensors: Name, type and shape of every tensor of a batch, as text.
    """
    while isinstance(function, partial):
        function = function.func
    numbered = {f"tensor {index}": text for index, text in enumerate(tensors)}
    # Without parameters, as a program may change them at run time in one task only.
    return {
        "mode": mode,
        "program": _file_mark(getattr(sys.modules.get("__main__"), "__file__", None)),
        "input function": f"{getattr(function, '__qualname__', type(function).__name__)} in "
        f"{_file_mark(_source_file(function))}",
        "number of tensors": str(len(numbered)),
        **numbered,
    }


def describe_function(function: Any) -> str:
    """Return the name and file of a function: `model_fn in model.py`."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    file = _source_file(function)
    return name if file is None else f"{name} in {Path(file).name}"


def _source_file(function: Any) -> str | None:
    for candidate in (function, type(function)):  # a callable object is found by its class
        try:
            return inspect.getsourcefile(candidate)
        except (TypeError, OSError):
            continue
    return None


def _file_mark(path: str | None) -> str:
    """Return name and digest of a file, independent of its directory: `run.py (sha256 1f3870be274f)`."""
    if path is None:
        return "no file"
    try:
        content = Path(path).read_bytes()
    except OSError:
        return Path(path).name
    return f"{Path(path).name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})"


@contextmanager
def log_skip(batches: int, reason: str) -> Iterator[None]:
    """Log how the body skips batches of the input, and how long it takes if they must be produced.

    Args:
        batches: Number of batches to skip; nothing is logged for 0.
        reason: Why they must be produced and dropped; empty if they need not be.
    """
    if not batches or not reason:
        if batches:
            log.info("the input skips its first %d batches without producing them", batches)
        yield
        return
    log.info("the input produces its first %d batches again and drops them, because of %s", batches, reason)
    start_s = time.monotonic()
    with log_while_blocked(f"its first {batches} batches", "the input is still dropping"):
        yield
    log.info("the input dropped its first %d batches in %.1f s", batches, time.monotonic() - start_s)


def log_restored_position(batches: int, at: int) -> None:
    """Log that the input resumes from a saved state after batch `at`, and skips up to batch `batches`."""
    rest = f"; {batches - at} more to read" if batches > at else ""
    log.info("resuming the input after batch %d from its saved state%s", at, rest)


def worker_environment(shard: Shard) -> AbstractContextManager[None]:
    """Set the environment of a worker during the body; the input may read it in any thread."""
    return environment_variables(worker_variables(os.environ, shard.count, shard.index))


def export_to_analyzer(program: Callable[[], InputProgram], *, compiles: bool) -> None:
    """If cs_input_analyzer has started this process, send it the input function; otherwise do nothing.

    This ends the process, except before a compile whose report the analyzer needs.

    Args:
        program: Returns the input function with everything that is needed to call it.
        compiles: A compile would start here, not a training run.
    """
    if export_requested():
        export_input(program(), compiles=compiles)


class Inspection(Protocol):
    """The result of inspecting an input function without running it."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Possible improvements."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Further remarks, one sentence each."""
        ...


def log_report(inspect: Callable[[], Inspection]) -> None:
    """Log the Input Function Report.

    Args:
        inspect: Inspects the input function, which it may call several times.
    """
    try:
        # The run must get the same batches if the function draws random numbers when it is called.
        with preserve_random_state():
            inspected = inspect()
    # A report never ends a run, not even by a bug of ours. If the input function raises, it raises again
    # when the run reads its input.
    except Exception as error:
        level = logging.WARNING if exit_code_of(error) == EXIT_BUG else logging.DEBUG
        log.log(level, "no Input Function Report: %s: %s", type(error).__name__, error)
        return
    for level, line in report_lines(inspected.findings, ["python", *sys.orig_argv[1:]], inspected.notes):
        log.log(level, "%s", line)
