"""The layer-pipelined engine: the whole training step is one program, and a call runs many steps.

The program loops over consecutive batches of a stacked chunk; the first batch and the number of steps are
arguments. A single compiled program serves every number of steps, so results do not depend on how steps are
grouped into calls, bit for bit. The state stays on the device and is updated in place (donated).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cs_system.engine.device import compiler_options
from cs_system.engine.executable import load_step
from cs_system.engine.machine import computing_threads
from cs_system.engine.state import as_device, check_state, device_errors, from_device, select_state
from cs_system.errors import ExecutionError, ProgramError, WrongOrderError
from cs_system.messages import dtype_named
from cs_toolkit.step import StepInterface, TensorSpec, device_dtype

log = logging.getLogger("cs_system.engine")

# JAX has no annotations for these.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready
_ShapeDtypeStruct: Callable[..., Any] = jax.ShapeDtypeStruct

Values = tuple[Any, ...]
Step = Callable[[Values, Values], tuple[Values, Values]]


class PipelinedSteps:
    """Steps that were dispatched to the device."""

    def __init__(self, specs: Sequence[TensorSpec], values: Values, done: Any, count: int) -> None:
        self.count = count
        self._specs = specs
        self._values = values
        self._done = done

    def is_ready(self) -> bool:
        """Return True if the steps are done; on a CPU device this can be the case when `dispatch` returns."""
        return bool(self._done.is_ready())

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the steps; afterwards their chunk is not read any more.

        Returns:
            By output name the values of all steps, shape (count, *shape of the output).

        Raises:
            ExecutionError: the device reported a failure.
            DeviceMemoryError: it ran out of memory.
        """
        with device_errors(ExecutionError, "running the steps"):
            _block_until_ready((self._values, self._done))
            return {
                spec.name: from_device(np.asarray(value)[: self.count], spec)
                for spec, value in zip(self._specs, self._values, strict=True)
            }


class CopiedState:
    """A copy of the state after a step (`cs_system.engine.base.KeptState`).

    Args:
        values: The tensors by name.
    """

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self._values = values

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return all of the state or part of it; each tensor may be read once."""
        return {name: self._values.pop(name) for name in (list(self._values) if names is None else names)}

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        self._values.clear()


class PipelinedEngine:
    """A program on the device. Not thread-safe; needs no server.

    Args:
        executable: Bytes written by `cgc.lowering.interpret.export_step`.
        interface: Names, dtypes and shapes of the step's inputs, state and outputs.
        chunk_batches: Number of batches stacked in the chunks that `run` gets.
        name: Name of the executable in errors.
    """

    def __init__(
        self, executable: bytes, interface: StepInterface, chunk_batches: int, name: str = "step"
    ) -> None:
        self.interface = interface
        self._name = name
        self.chunk_batches = chunk_batches
        self._executable = executable
        self._compiled: Any = None
        self._state: Values | None = None
        self._arriving: dict[str, Any] = {}

    def program(self) -> float:
        """Compile the program for this device; otherwise the first `run` does it.

        Returns:
            The seconds that it took, near zero if it was done before.

        Raises:
            ProgramError: the executable cannot be read, does not fit the interface, or XLA refuses it.
        """
        started = time.monotonic()
        if self._compiled is None:
            with device_errors(ProgramError, "programming"):
                step, interface = load_step(self._executable, self._name), self.interface
                state = _device_shapes(interface.state)
                _check_results(step, state, _device_shapes(interface.inputs), interface)
                chunk = _device_shapes(interface.inputs, self.chunk_batches)
                index = _ShapeDtypeStruct((), np.dtype(np.int32))
                loop = _steps_loop(step, interface.outputs, self.chunk_batches)
                lowered = jax.jit(loop, donate_argnums=0).lower(state, chunk, index, index)
                options = compiler_options(computing_threads())
                self._compiled = lowered.compile(compiler_options=options)
        return time.monotonic() - started

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy part of the state to the device; see `Engine.put_state` for the errors."""
        check_state(self.interface, state)
        self._state = None
        with device_errors(ExecutionError, "loading the state"):
            # A private copy, because device_put may keep using the memory of a numpy array.
            self._arriving |= {
                spec.name: jax.device_put(
                    np.array(state[spec.name], dtype_named(device_dtype(spec.dtype)), copy=True)
                )
                for spec in self.interface.state
                if spec.name in state
            }
        if len(self._arriving) == len(self.interface.state):
            self._state = tuple(self._arriving[spec.name] for spec in self.interface.state)
            self._arriving = {}

    @property
    def missing_state(self) -> Sequence[str]:
        """Names of the state that has not arrived, or that a failed step lost."""
        if self._state is not None:
            return []
        return [spec.name for spec in self.interface.state if spec.name not in self._arriving]

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> PipelinedSteps:
        """Start `count` steps on the batches from `offset` of a chunk, without waiting for them.

        Args:
            chunk: One array of shape (chunk_batches, *shape) per input. Read in place if its address is a
                multiple of 64: leave it unchanged until `PipelinedSteps.wait` has returned.
            offset: First batch.
            count: Number of steps, at least 1.

        Raises:
            WrongOrderError: there is no state.
        """
        if self._state is None:
            raise WrongOrderError("there is no state on the system; put_state comes before the first step")
        if count < 1 or offset < 0 or offset + count > self.chunk_batches:
            raise ValueError(f"batches {offset} to {offset + count} of a chunk of {self.chunk_batches}")
        self.program()
        state, self._state = self._state, None
        with device_errors(ExecutionError, "running the steps"):
            inputs = tuple(
                jax.device_put(as_device(array, spec))
                for array, spec in zip(chunk, self.interface.inputs, strict=True)
            )
            new_state, outputs, done = self._compiled(state, inputs, np.int32(offset), np.int32(count))
        self._state = new_state
        return PipelinedSteps(self.interface.outputs, outputs, done, count)

    def run(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> dict[str, np.ndarray]:
        """Run steps: `dispatch`, then `PipelinedSteps.wait`."""
        return self.dispatch(chunk, offset, count).wait()

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Copy the state, or part of it, in the dtypes of the interface.

        Raises:
            WrongOrderError: there is no state, because none was put or a failed step lost it.
            StateMismatchError: a name that the program does not have.
        """
        if self._state is None:
            raise WrongOrderError("there is no state on the system: none was put, or a failed step lost it")
        specs = select_state(self.interface, names)
        values = {spec.name: value for spec, value in zip(self.interface.state, self._state, strict=True)}
        with device_errors(ExecutionError, "reading the state"):
            return {spec.name: from_device(np.asarray(values[spec.name]), spec) for spec in specs}

    def snapshot(self, names: Sequence[str] | None = None) -> CopiedState:
        """Copy the state, or part of it: the next steps reuse its memory."""
        return CopiedState(self.fetch_state(names))

    def unresponsive(self) -> str | None:
        """Return None: there is no other part that could stop answering."""
        return None

    def free(self) -> None:
        """Free the memory of the device."""
        self._state = None
        self._arriving = {}
        self._compiled = None


def _steps_loop(step: Step, outputs: Sequence[TensorSpec], chunk_batches: int) -> Callable[..., Any]:
    """Return the function (state, chunk, offset, count) -> (state, stacked outputs, count)."""

    def run(state: Values, chunk: Values, offset: Any, count: Any) -> tuple[Values, Values, Any]:
        def body(index: Any, carry: tuple[Values, Values]) -> tuple[Values, Values]:
            state, stacked = carry
            batch = tuple(lax.dynamic_index_in_dim(field, offset + index, keepdims=False) for field in chunk)
            state, values = step(state, batch)
            return tuple(state), tuple(
                lax.dynamic_update_index_in_dim(buffer, value, index, 0)
                for buffer, value in zip(stacked, values, strict=True)
            )

        stacked = tuple(jnp.zeros((chunk_batches, *spec.shape), device_dtype(spec.dtype)) for spec in outputs)
        state, stacked = lax.fori_loop(0, count, body, (tuple(state), stacked))
        # The count is returned because a step without outputs also needs a result that shows that it ended.
        return state, stacked, count + 0

    return run


def _check_results(step: Step, state: Values, inputs: Values, interface: StepInterface) -> None:
    new_state, outputs = jax.eval_shape(step, state, inputs)
    for kind, specs, values in (
        ("state", interface.state, new_state),
        ("output", interface.outputs, outputs),
    ):
        want = [(s.name, device_dtype(s.dtype), s.shape) for s in specs]
        got = [(v.dtype.name, tuple(v.shape)) for v in values]
        if len(want) != len(got):
            raise ProgramError(f"the executable has {len(got)} {kind} results, its interface {len(want)}")
        for (name, *expected), found in zip(want, got, strict=True):
            if tuple(expected) != found:
                raise ProgramError(
                    f"{kind} '{name}' of the executable is {found}, its interface says {expected}"
                )


def _device_shapes(specs: Sequence[TensorSpec], stacked: int | None = None) -> Values:
    lead = () if stacked is None else (stacked,)
    return tuple(
        _ShapeDtypeStruct((*lead, *spec.shape), dtype_named(device_dtype(spec.dtype))) for spec in specs
    )
