"""The interface of engines, the choice of the engine for a step, and the size of its input ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cs_system.errors import ArtifactRefusedError, DeviceMemoryError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.swarmx.health import StragglerMonitor
from cs_system.swarmx.hosts import HostPool
from cs_toolkit.layered_step import ScheduleError, schedule_from_json
from cs_toolkit.step import CompiledStep, StepInterface, device_bytes

# A call costs 70 to 100 us whatever the number of its steps, so 32 steps hide it. 32 MiB of input still fit
# into a host's caches, and do not delay the first step of a run.
MAX_CHUNK_BATCHES = 32
MAX_CHUNK_BYTES = 32 << 20
# One chunk is being computed, one is full and one is being filled.
CHUNKS = 3


class PendingSteps(Protocol):
    """Steps that were dispatched to the device."""

    @property
    def count(self) -> int:
        """Number of steps."""
        ...

    def is_ready(self) -> bool:
        """Return True if the steps are done; never waits."""
        ...

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the steps; afterwards their chunk is not read any more.

        Returns:
            By output name the values of all steps, shape (count, *shape of the output).

        Raises:
            ExecutionError: the device reported a failure.
            DeviceMemoryError: it ran out of memory.
        """
        ...


class KeptState(Protocol):
    """The state after a step, which may be read from any thread while further steps are computed."""

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Read all of the state or part of it; each tensor may be read once.

        Raises:
            CsSystemError: the state has since been replaced, by new state or another snapshot; or MemoryX is
                gone.
        """
        ...

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        ...


class Engine(Protocol):
    """A program on the device; all calls come from the thread of the device unless stated otherwise."""

    @property
    def interface(self) -> StepInterface:
        """Names, dtypes and shapes of the step's inputs, state and outputs."""
        ...

    @property
    def chunk_batches(self) -> int:
        """Number of batches stacked in the chunks that `dispatch` gets."""
        ...

    @property
    def missing_state(self) -> Sequence[str]:
        """Names of the state that has not arrived, or that a failed step lost; empty: steps can run."""
        ...

    def program(self) -> float:
        """Prepare the device for the first step; return the seconds that it took.

        Raises:
            ProgramError: an executable cannot be read, does not fit the interface, or does not run here.
        """
        ...

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy part of the state to the device; steps can run when all of it has arrived.

        If the state is complete already, a new one begins.

        Raises:
            StateMismatchError: names, dtypes or shapes are not those of the interface, or an int64 value does
                not fit into the 32 bits that the device computes in.
            DeviceMemoryError: the state does not fit.
        """
        ...

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> PendingSteps:
        """Start `count` steps on the batches from `offset` of a chunk, without waiting for them.

        Raises:
            WrongOrderError: there is no state, or not all of it.
        """
        ...

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Copy the state, or part of it, in the dtypes of the interface.

        Raises:
            WrongOrderError: there is no state, because none was put or a failed step lost it.
            StateMismatchError: a name that the program does not have.
        """
        ...

    def snapshot(self, names: Sequence[str] | None = None) -> KeptState | None:
        """Keep the state after the last step dispatched, or part of it, until it has been read.

        Returns:
            None if no step may be computed until `fetch_state` has read the state.

        Raises:
            WrongOrderError, StateMismatchError: as in `fetch_state`.
        """
        ...

    def unresponsive(self) -> str | None:
        """Describe a part of the system that has not answered for seconds, or None; for any thread."""
        ...

    def stragglers(self) -> StragglerMonitor | None:
        """Return the work times of several wafers, or None if there is one; callable from any thread."""
        ...

    def free(self) -> None:
        """Free the memory of the device."""
        ...


def make_engine(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int = 1,
    host_pool: HostPool | None = None,
) -> Engine:
    """Make the engine for the execution mode of a step; imports JAX, which takes a second.

    Args:
        step: The step to run.
        data: Bytes of its executables, by their names.
        chunk_batches: Maximum number of batches stacked in a chunk.
        memoryx: Where the weights of weight streaming are stored.
        wafers: Number of wafers that share a batch.
        host_pool: Where these are started; None: on this machine.

    Raises:
        ArtifactRefusedError: this system has no engine for the mode, or the engine needs other executables.
    """
    make = _ENGINES.get(step.execution)
    if make is None:
        raise ArtifactRefusedError(
            f"the artifact is compiled for execution {step.execution!r}, this system has "
            f"{', '.join(_ENGINES)}; compile it for one of them"
        )
    return make(step, data, chunk_batches, memoryx, wafers, host_pool)


def _make_pipelined(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int,
    host_pool: HostPool | None,
) -> Engine:
    if wafers != 1:
        raise ArtifactRefusedError(
            f"{wafers} wafers share a batch with execution 'pipelined', expected 1: a wafer holds the whole "
            "model; several share a batch by weight streaming (execution: weight_streaming, or auto)"
        )
    names = [executable.name for executable in step.executables]
    if len(names) != 1 or step.executables[0].interface != step.interface:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(names)} executable(s) ({', '.join(names)}), execution "
            "'pipelined' expects exactly one, with the interface of the whole step; compile it again"
        )
    from cs_system.engine.pipelined import PipelinedEngine

    return PipelinedEngine(data[names[0]], step.interface, chunk_batches)


def _make_weight_streaming(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int,
    host_pool: HostPool | None,
) -> Engine:
    try:
        schedule = schedule_from_json(step.schedule)
    except ScheduleError as error:
        raise ArtifactRefusedError(f"artifact {step.key[:12]}: {error}") from error
    expected = (1 + max((call.function for call in schedule.calls()), default=-1), set(schedule.state))
    if (len(step.executables), {spec.name for spec in step.interface.state}) != expected:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(step.executables)} executables and "
            f"{len(step.interface.state)} state tensors, its schedule has {expected[0]} and "
            f"{len(expected[1])}; compile it again"
        )
    if wafers != 1:
        from cs_system.swarmx.group import GroupEngine

        return GroupEngine(step, schedule, data, memoryx, wafers, host_pool)
    from cs_system.engine.streamed import StreamedEngine

    return StreamedEngine(step, schedule, data, memoryx)


_Make = Callable[[CompiledStep, Mapping[str, bytes], int, MemoryxConfig, int, HostPool | None], Engine]
_ENGINES: dict[str, _Make] = {
    "pipelined": _make_pipelined,
    "weight_streaming": _make_weight_streaming,
}


@dataclass(frozen=True)
class RingSize:
    """`chunks` chunks of `chunk_batches` batches each."""

    chunk_batches: int
    chunks: int


def ring_size(interface: StepInterface, memory_bytes: int) -> RingSize:
    """Choose the size of a program's input ring within a limit of host memory.

    The number of batches in a chunk is a power of two, so that chunks of small fields keep the alignment that
    lets the device read them in place. The stacked outputs of a chunk obey the same limit as its input.

    Raises:
        DeviceMemoryError: not even two single batches fit.
    """
    input_bytes = max(1, device_bytes(interface.inputs))
    step_bytes = max(input_bytes, device_bytes(interface.outputs))
    if 2 * input_bytes > memory_bytes:
        raise DeviceMemoryError(
            f"a batch of {input_bytes:,} bytes needs {2 * input_bytes:,} bytes for input, the system has "
            f"{memory_bytes:,}; use a smaller batch, or `cs_system serve --input-memory`"
        )
    batches = min(MAX_CHUNK_BATCHES, max(1, MAX_CHUNK_BYTES // step_bytes))
    batches = 1 << (batches.bit_length() - 1)
    while batches > 1 and CHUNKS * batches * input_bytes > memory_bytes:
        batches //= 2
    return RingSize(batches, min(CHUNKS, memory_bytes // (batches * input_bytes)))
