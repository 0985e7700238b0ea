"""What the engines share: values on their way to the device, and what goes wrong there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from cs_system.errors import CsSystemError, DeviceMemoryError, StateMismatchError
from cs_system.messages import dtype_named, state_faults
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype


def check_state(interface: StepInterface, state: Mapping[str, np.ndarray]) -> None:
    """Compares some of a state with the interface of its step.

    Raises:
        StateMismatchError: names, dtypes or shapes differ, or a number does not fit the device's type.
    """
    specs = tuple(spec for spec in interface.state if spec.name in state)
    faults = state_faults(specs, {n: (a.dtype.name, a.shape) for n, a in state.items()})
    faults = faults or [fault for spec in specs for fault in _narrowing_fault(spec, state[spec.name])]
    if faults:
        raise StateMismatchError.of(faults)


def as_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """An array in the type that the device computes in; itself where it has that type."""
    return array.astype(dtype_named(device_dtype(spec.dtype)), copy=False)


def from_device(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """A copy in the dtype of the interface: a view of device memory would keep the device from reusing it."""
    return array.astype(dtype_named(spec.dtype), copy=True)


def wanted_state(interface: StepInterface, names: Sequence[str] | None) -> list[TensorSpec]:
    """The tensors of a state by name; None: all.

    Raises:
        StateMismatchError: a name that the program does not have.
    """
    specs = {spec.name: spec for spec in interface.state}
    wanted = list(specs) if names is None else list(names)
    unknown = [f"'{name}' is not state of the program" for name in wanted if name not in specs]
    if unknown:
        raise StateMismatchError.of(unknown)
    return [specs[name] for name in wanted]


@contextmanager
def device_errors(kind: type[CsSystemError], doing: str) -> Iterator[None]:
    """Makes errors of the device those of a CS system: `kind`, or that there is not enough memory."""
    try:
        yield
    except CsSystemError:
        raise
    except MemoryError as error:
        raise DeviceMemoryError(f"out of memory while {doing}: {error}") from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if "RESOURCE_EXHAUSTED" in message:
            raise DeviceMemoryError(f"out of memory while {doing}: {message}") from error
        raise kind(f"{doing} failed: {message}") from error


def _narrowing_fault(spec: TensorSpec, array: np.ndarray) -> Iterator[str]:
    narrow = dtype_named(device_dtype(spec.dtype))
    if narrow == array.dtype or not array.size or not np.issubdtype(narrow, np.integer):
        return
    limits = np.iinfo(narrow)
    if array.min() < limits.min or array.max() > limits.max:
        yield f"'{spec.name}' has values from {array.min()} to {array.max()}; the device computes in {narrow}"
