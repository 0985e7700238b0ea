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

# A call costs 70 to 100 us whatever the number of its steps, so 32 steps hide it; 32 MiB of input keep
# the caches of a host useful and the first step of a run early.
MAX_CHUNK_BATCHES = 32
MAX_CHUNK_BYTES = 32 << 20
# One chunk computes, one is full and one fills.
CHUNKS = 3


class PendingSteps(Protocol):
    """Steps that the device has been told to compute."""

    @property
    def count(self) -> int:
        """How many."""
        ...

    def is_ready(self) -> bool:
        """Whether they are done; never waits."""
        ...

    def wait(self) -> dict[str, np.ndarray]:
        """Waits for the steps; their chunk is not read any more afterwards.

        Returns:
            By output name the values of all steps, shape (count, *shape of the output).

        Raises:
            ExecutionError: the device reported a failure.
            DeviceMemoryError: it had not enough memory.
        """
        ...


class KeptState(Protocol):
    """The state after one step, which may be read from any thread while further steps are computed."""

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Some of it, or all; each tensor may be read once.

        Raises:
            CsSystemError: the state has been put or another one kept since; its memory has gone.
        """
        ...

    def end(self) -> None:
        """What has not been read is not wanted any more."""
        ...


class Engine(Protocol):
    """One program on the device; all calls come from the thread of the device."""

    @property
    def interface(self) -> StepInterface:
        """Names, dtypes and shapes of the step's inputs, state and outputs."""
        ...

    @property
    def chunk_batches(self) -> int:
        """Batches stacked in the chunks that `dispatch` gets."""
        ...

    @property
    def missing_state(self) -> Sequence[str]:
        """The names of the state that has not come, or that a failed step lost; none: steps can run."""
        ...

    def program(self) -> float:
        """Makes the device ready for the first step; returns the seconds that it took.

        Raises:
            ProgramError: an executable cannot be read, does not fit the interface, or does not run here.
        """
        ...

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Copies some of the state to the device; steps can run when all of it has come.

        Where all of it is there already, a new state begins.

        Raises:
            StateMismatchError: names, dtypes or shapes are not those of the interface, or an int64 value does
                not fit into the 32 bits that the device computes in.
            DeviceMemoryError: the state does not fit.
        """
        ...

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> PendingSteps:
        """Starts `count` steps on the batches from `offset` of a chunk; the caller does not wait for them.

        Raises:
            WrongOrderError: there is no state, or not all of it.
        """
        ...

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of the state, or of some of it, in the dtypes of the interface.

        Raises:
            WrongOrderError: there is no state, because none was put or because running failed.
            StateMismatchError: a name that the program does not have.
        """
        ...

    def snapshot(self, names: Sequence[str] | None = None) -> KeptState | None:
        """Keeps the state after the last step dispatched, or some of it, until it has been read.

        Returns:
            None where no step may be computed until `fetch_state` has read it.

        Raises:
            WrongOrderError, StateMismatchError: as `fetch_state`.
        """
        ...

    def late(self) -> str | None:
        """What part of the system has not answered for seconds; None: nothing. Any thread may ask."""
        ...

    def pace(self) -> StragglerMonitor | None:
        """How long each of several wafers works; None where there is one. Any thread may ask."""
        ...

    def free(self) -> None:
        """Gives back the memory of the device."""
        ...


def make_engine(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    num_csx: int = 1,
    machines: HostPool | None = None,
) -> Engine:
    """The engine of an execution mode; imports JAX, which takes a second.

    Args:
        step: what to run, and how.
        data: bytes of its executables, by their names.
        chunk_batches: batches stacked in a chunk, at most.
        memoryx: where weights are kept that stream to the device.
        num_csx: wafers that share a batch.
        machines: where these are started; None: here.

    Raises:
        ArtifactRefusedError: this system has no engine for the mode, or the engine wants other executables.
    """
    make = _ENGINES.get(step.execution)
    if make is None:
        raise ArtifactRefusedError(
            f"the artifact is compiled for execution {step.execution!r}, this system has "
            f"{', '.join(_ENGINES)}; compile it for one of them"
        )
    return make(step, data, chunk_batches, memoryx, num_csx, machines)


def _pipelined(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    num_csx: int,
    machines: HostPool | None,
) -> Engine:
    if num_csx != 1:
        raise ArtifactRefusedError(
            f"num_csx is {num_csx} for execution 'pipelined', expected 1: a wafer holds the whole model; "
            "several share a batch by weight streaming (execution: weight_streaming, or auto)"
        )
    names = [executable.name for executable in step.executables]
    if len(names) != 1 or step.executables[0].interface != step.interface:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(names)} executable(s) ({', '.join(names)}), execution "
            "'pipelined' expects exactly one, with the interface of the whole step; compile it again"
        )
    from cs_system.engine.pipelined import PipelinedEngine

    return PipelinedEngine(data[names[0]], step.interface, chunk_batches)


def _weight_streaming(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    num_csx: int,
    machines: HostPool | None,
) -> Engine:
    try:
        schedule = schedule_from_json(step.schedule)
    except ScheduleError as error:
        raise ArtifactRefusedError(f"artifact {step.key[:12]}: {error}") from error
    wanted = (1 + max((call.function for call in schedule.calls()), default=-1), set(schedule.state))
    if (len(step.executables), {spec.name for spec in step.interface.state}) != wanted:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(step.executables)} executables and "
            f"{len(step.interface.state)} state tensors, its schedule has {wanted[0]} and {len(wanted[1])}; "
            "compile it again"
        )
    if num_csx != 1:
        from cs_system.swarmx.group import GroupEngine

        return GroupEngine(step, schedule, data, memoryx, num_csx, machines)
    from cs_system.engine.streamed import StreamedEngine

    return StreamedEngine(step, schedule, data, memoryx)


_Make = Callable[[CompiledStep, Mapping[str, bytes], int, MemoryxConfig, int, HostPool | None], Engine]
_ENGINES: dict[str, _Make] = {
    "pipelined": _pipelined,
    "weight_streaming": _weight_streaming,
}


@dataclass(frozen=True)
class RingSize:
    """`chunks` chunks of `chunk_batches` batches each."""

    chunk_batches: int
    chunks: int


def ring_size(interface: StepInterface, memory_bytes: int) -> RingSize:
    """The input ring for a program within a limit of host memory.

    The batches of a chunk are a power of two, so that chunks of small fields keep the alignment that lets
    the device read them in place. The stacked outputs of a chunk obey the same limit as its input.

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
