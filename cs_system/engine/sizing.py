"""How many batches go to the device in one call, and how many wait in host memory meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from cs_system.errors import DeviceMemoryError
from cs_toolkit.step import StepInterface, device_bytes

# A call costs 70 to 100 us whatever the number of its steps, so 32 steps hide it; 32 MiB of input keep
# the caches of a host useful and the first step of a run early.
MAX_CHUNK_BATCHES = 32
MAX_CHUNK_BYTES = 32 << 20
# One chunk computes, one is full and one fills.
CHUNKS = 3


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
