import pytest

from cs_system.engine.sizing import RingSize, ring_size
from cs_system.errors import DeviceMemoryError
from cs_toolkit.step import StepInterface, TensorSpec

MIB = 1 << 20


def interface(input_bytes: int, output_bytes: int = 4) -> StepInterface:
    return StepInterface(
        inputs=(TensorSpec("input_0", "uint8", (input_bytes,)),),
        state=(),
        outputs=(TensorSpec("output_0", "uint8", (output_bytes,)),),
        updated=(),
    )


@pytest.mark.parametrize(
    ("input_bytes", "output_bytes", "memory", "expected"),
    [
        (256 * 784 * 4, 4, 1024 * MIB, RingSize(32, 3)),  # FC-MNIST
        (100, 4, 1024 * MIB, RingSize(32, 3)),
        (3 * MIB, 4, 1024 * MIB, RingSize(8, 3)),  # 10 batches fit into 32 MiB; a power of two is taken
        (100 * MIB, 4, 1024 * MIB, RingSize(1, 3)),
        (100 * MIB, 4, 250 * MIB, RingSize(1, 2)),
        (1 * MIB, 4, 24 * MIB, RingSize(8, 3)),
        (100, 16 * MIB, 1024 * MIB, RingSize(2, 3)),  # large outputs are stacked as well
    ],
)
def test_size_follows_batch_and_memory(input_bytes, output_bytes, memory, expected):
    size = ring_size(interface(input_bytes, output_bytes), memory)
    assert size == expected
    assert size.chunk_batches * size.chunks * input_bytes <= memory


def test_64_bit_integers_take_32_bits_in_the_ring():
    tokens = StepInterface((TensorSpec("input_0", "int64", (MIB,)),), (), (), ())
    assert ring_size(tokens, 1024 * MIB) == RingSize(8, 3)


def test_a_batch_that_does_not_fit_is_refused():
    with pytest.raises(
        DeviceMemoryError, match=r"needs 200 bytes for input, the system has 150; use a smaller"
    ):
        ring_size(interface(100), 150)
