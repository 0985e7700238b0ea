"""What a worker needs of a front end: the input of the user's program, and nothing of a compiler."""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cs_runtime.errors import InputFnError
from cs_runtime.terminal import announced
from cs_toolkit.errors import EXIT_BUG, exit_code_of
from cs_toolkit.random_numbers import random_numbers_kept
from cs_toolkit.step import NARROWED, TensorSpec
from input_rules.findings import Finding, lines

Batch = tuple[np.ndarray, ...]


class InputSource(Protocol):
    """The input of a program."""

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of one batch, in the order of the step's batch inputs."""
        ...

    def input_facts(self) -> Mapping[str, str]:
        """What identifies program and input, as name -> text; must be equal in all tasks of a job.

        Nothing that a task's place, its machine, or the user's code at run time can change belongs here.
        """
        ...

    def batches(self, skip: int) -> Iterator[Batch]:
        """A freshly built input without its first `skip` batches, arrays in the order of `inputs`."""
        ...


def narrowed(name: str, value: Any) -> np.ndarray:
    """The array of a component, 64-bit integers as 32-bit ones: so the device computes them.

    Raises:
        InputFnError: a value does not fit.
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

    Parameters are not among them: a program may change them while it runs, in one task only.

    Args:
        mode: What the step does.
        function: The user's input function.
        tensors: Name, type and shape of every tensor of a batch, as text.
    """
    while isinstance(function, partial):
        function = function.func
    numbered = {f"tensor {index}": text for index, text in enumerate(tensors)}
    return {
        "mode": mode,
        "program": _file_mark(getattr(sys.modules.get("__main__"), "__file__", None)),
        "input function": f"{getattr(function, '__qualname__', type(function).__name__)} in "
        f"{_file_mark(_source_file(function))}",
        "number of tensors": str(len(numbered)),
        **numbered,
    }


def described_function(function: Any) -> str:
    """What a user knows a function by: `model_fn in model.py`."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    file = _source_file(function)
    return name if file is None else f"{name} in {Path(file).name}"


def _source_file(function: Any) -> str | None:
    for candidate in (function, type(function)):  # an object with __call__ has the file of its class
        try:
            return inspect.getsourcefile(candidate)
        except (TypeError, OSError):
            continue
    return None


def _file_mark(path: str | None) -> str:
    """Name and content of a file, the same wherever a machine has it: `run.py (sha256 1f3870be274f)`."""
    if path is None:
        return "no file"
    try:
        content = Path(path).read_bytes()
    except OSError:
        return Path(path).name
    return f"{Path(path).name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})"


log = logging.getLogger("cs_runtime")


@contextmanager
def told(batches: int, reads: str) -> Iterator[None]:
    """Says how the body goes to a position in the input, and how long that has taken where it reads.

    Args:
        batches: to be left out; for 0 nothing is said.
        reads: why they are read; "" where they are not.
    """
    if not batches or not reads:
        if batches:
            log.info("the input begins behind its first %d batches without making them", batches)
        yield
        return
    log.info("the input makes its first %d batches again and drops them, because of %s", batches, reads)
    began_s = time.monotonic()
    with announced(f"its first {batches} batches", "the input still drops"):
        yield
    log.info("the input has dropped its first %d batches in %.1f s", batches, time.monotonic() - began_s)


def told_from_state(batches: int, at: int) -> None:
    """Says that the input goes on from a state that an earlier run has kept, behind `at` batches."""
    rest = f" and reads {batches - at} more" if batches > at else ""
    log.info("the input goes on from its kept state behind %d batches%s", at, rest)


class Inspected(Protocol):
    """What is known of an input function that was not run."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What it could do better."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know beside, one sentence each."""
        ...


def log_report(inspect: Callable[[], Inspected]) -> None:
    """Logs what an input function could do better. A report never ends a run, not even by a bug of ours.

    An input function that raises does so again when the run reads its input, which tells the user. One that
    draws random numbers while it is called gives the run the batches that it would give without a report.

    Args:
        inspect: Calls the function, as often as it has to.
    """
    try:
        with random_numbers_kept():
            inspected = inspect()
    except Exception as error:
        level = logging.WARNING if exit_code_of(error) == EXIT_BUG else logging.DEBUG
        log.log(level, "no Input Function Report: %s: %s", type(error).__name__, error)
        return
    for level, line in lines(inspected.findings, ["python", *sys.orig_argv[1:]], inspected.notes):
        log.log(level, "%s", line)
