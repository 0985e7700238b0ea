"""The interface of engines, and the size of their input ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cs_stream.batches import BatchLayout
from cs_system.errors import DeviceMemoryError
from cs_toolkit.step import StepInterface, device_bytes

# A call costs 0.25 ms of CPU time whatever the number of its steps, 0.19 ms of it in the engine's process and
# most of that for waking the other one; 32 steps hide it. 32 MiB of input still fit into a host's caches, and
# do not delay the first step of a run.
MAX_CHUNK_BATCHES = 32
MAX_CHUNK_BYTES = 32 << 20
# One chunk is being computed, one is full and one is being filled.
CHUNKS = 3


# By function number: the bytes written by `cgc.lowering.interpret.export_step`, and the interface.
Executables = Mapping[int, tuple[bytes, StepInterface]]


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
        """Read all of the state or part of it, in the dtypes of the interface; each tensor may be read once.

        Raises:
            CsSystemError: the state has since been replaced, by new state or another snapshot; or MemoryX is
                gone.
        """
        ...

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        ...


@dataclass(frozen=True)
class Utilization:
    """Fractions of the last seconds in which a wafer has computed, and received weights."""

    computing: float
    receiving: float


class WaferMonitor(Protocol):
    """The work of several wafers; all calls may come from any thread.

    Attributes:
        report: Sentence about the straggler that was last logged; None: there is none.
    """

    report: str | None

    def utilization(self) -> list[Utilization] | None:
        """Return the utilization of each wafer, or None if it is not known yet."""
        ...

    def straggler(self) -> str | None:
        """Describe the wafer for which the others wait, or None."""
        ...


class SharedChunks(Protocol):
    """The memory of chunks, which other processes can map; see `cs_stream.batches.RingMemory`."""

    @property
    def descriptor(self) -> int:
        """Descriptor of the memory."""
        ...

    @property
    def layout(self) -> BatchLayout:
        """Layout of the batches."""
        ...

    @property
    def chunk_batches(self) -> int:
        """Number of batches stacked in a chunk."""
        ...

    @property
    def chunks(self) -> Sequence[Sequence[np.ndarray]]:
        """The arrays of each chunk."""
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

    def snapshot(self, names: Sequence[str] | None = None) -> KeptState:
        """Keep the state after the last step dispatched, or part of it, until it has been read.

        Raises:
            WrongOrderError: there is no state, because none was put or a failed step lost it.
            StateMismatchError: a name that the program does not have.
        """
        ...

    def unresponsive(self) -> str | None:
        """Describe a part of the system that has not answered for seconds, or None; for any thread."""
        ...

    def free(self) -> None:
        """Free the memory of the device."""
        ...


class ExternalEngine(Engine, Protocol):
    """An engine in other processes, as the CS system has it."""

    def use_chunks(self, chunks: SharedChunks) -> None:
        """Prepare for `dispatch` with the chunks of a ring; callable from any thread."""
        ...

    def stragglers(self) -> WaferMonitor | None:
        """Return the work of several wafers, or None if there is one; callable from any thread."""
        ...

    def abort(self) -> None:
        """End the call that does not return; from any thread. Only `free` may follow."""
        ...


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
