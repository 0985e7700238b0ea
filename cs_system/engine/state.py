"""State on its way to a device and back: checks, dtypes, and the errors of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from cs_system.errors import CsSystemError, DeviceMemoryError, StateMismatchError
from cs_system.messages import dtype_named, state_problems
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype


def check_state(interface: StepInterface, state: Mapping[str, np.ndarray]) -> None:
    """Check part of a state against the interface of its step.

    Raises:
        StateMismatchError: names, dtypes or shapes differ, or a number does not fit the device's type.
    """
    specs = tuple(spec for spec in interface.state if spec.name in state)
    problems = state_problems(specs, {n: (a.dtype.name, a.shape) for n, a in state.items()})
    for spec in () if problems else specs:
        array, narrow = state[spec.name], dtype_named(device_dtype(spec.dtype))
        if narrow == array.dtype or not array.size or not np.issubdtype(narrow, np.integer):
            continue
        limits, least, most = np.iinfo(narrow), array.min(), array.max()
        if least < limits.min or most > limits.max:
            problems.append(
                f"'{spec.name}' has values from {least} to {most}; the device computes in {narrow}"
            )
    if problems:
        raise StateMismatchError.of(problems)


def as_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Convert an array to the type that the device computes in, without a copy if it has that type."""
    return array.astype(dtype_named(device_dtype(spec.dtype)), copy=False)


def from_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Copy an array to the dtype of the interface; a view would keep the device from reusing its memory."""
    return array.astype(dtype_named(spec.dtype), copy=True)


def select_state(interface: StepInterface, names: Sequence[str] | None) -> list[TensorSpec]:
    """Return the state tensors with the given names; None: all.

    Raises:
        StateMismatchError: a name that the program does not have.
    """
    specs = {spec.name: spec for spec in interface.state}
    selected = list(specs) if names is None else list(names)
    unknown = [f"'{name}' is not state of the program" for name in selected if name not in specs]
    if unknown:
        raise StateMismatchError.of(unknown)
    return [specs[name] for name in selected]


@contextmanager
def device_errors(kind: type[CsSystemError], doing: str) -> Iterator[None]:
    """Convert device errors in the body to errors of a CS system: DeviceMemoryError, else `kind`."""
    try:
        yield
    except CsSystemError:
        raise
    except MemoryError as error:
        raise DeviceMemoryError(f"out of memory while {doing}: {error}") from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        # JAX has no exception class for a lack of memory.
        if "RESOURCE_EXHAUSTED" in message:
            raise DeviceMemoryError(f"out of memory while {doing}: {message}") from error
        raise kind(f"{doing} failed: {message}") from error
