import numpy as np
import pytest
import xxhash

from cs_stream.errors import BatchShapeError, LayoutError
from cs_stream.layout import BatchLayout
from cs_stream.payload import RingMemory, byte_view, conform, digest, wire_buffers

LAYOUT = BatchLayout.of([("image", "float32", (4, 3)), ("label", "int32", (4,))])
IMAGE = np.arange(12, dtype=np.float32).reshape(4, 3)
LABEL = np.arange(4, dtype=np.int32)


def refusal(batch: object) -> str:
    with pytest.raises(BatchShapeError) as caught:
        conform(LAYOUT, batch, "batch 7 of worker 1")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_short_last_batch_is_refused_with_the_cure() -> None:
    assert refusal((IMAGE[:3], LABEL)) == (
        "batch 7 of worker 1: field 'image' has shape (3, 3), expected (4, 3): every batch must have the "
        "compiled shape; pass drop_remainder=True to batch() in the input function"
    )


def test_another_dtype_is_refused() -> None:
    assert refusal((IMAGE.astype(np.float64), LABEL)) == (
        "batch 7 of worker 1: field 'image' has dtype float64, expected float32: convert it in the input "
        "function"
    )


def test_another_number_of_arrays_is_refused() -> None:
    assert refusal((IMAGE,)).startswith("batch 7 of worker 1: got 1 arrays, expected 2 (image: float32[4, 3]")


def test_a_bare_array_is_refused() -> None:
    assert refusal(IMAGE).startswith("batch 7 of worker 1: got a ndarray, expected a tuple of 2 arrays")
    assert "got a dict" in refusal({"image": IMAGE, "label": LABEL})


@pytest.mark.parametrize(
    "image",
    [
        IMAGE,
        np.asfortranarray(IMAGE),
        np.repeat(IMAGE, 2, axis=1)[:, ::2],
        IMAGE.astype(">f4"),
        IMAGE.tolist(),
    ],
    ids=["plain", "fortran", "strided", "big-endian", "list"],
)
def test_the_same_numbers_give_the_same_bytes(image: object) -> None:
    if isinstance(image, list):
        image = np.array(image, dtype=np.float32)
    array = conform(LAYOUT, [image, LABEL], "batch")[0]
    assert bytes(byte_view(array)) == IMAGE.astype("<f4").tobytes()


def test_a_conforming_array_is_not_copied() -> None:
    assert np.shares_memory(conform(LAYOUT, (IMAGE, LABEL), "batch")[0], IMAGE)


def test_a_rank_0_array_keeps_its_rank() -> None:
    layout = BatchLayout.of([("step", "int64", ())])
    (array,) = conform(layout, (np.int64(5),), "batch")
    assert array.shape == ()
    assert bytes(byte_view(array)) == (5).to_bytes(8, "little")


def test_digest_leaves_padding_out() -> None:
    fields = [byte_view(IMAGE), byte_view(LABEL)]
    buffers = wire_buffers(fields, memoryview(b"\xff" * 64))
    assert sum(buffer.nbytes for buffer in buffers) == LAYOUT.nbytes
    assert digest(fields) == xxhash.xxh3_64_intdigest(IMAGE.tobytes() + LABEL.tobytes())
    assert digest(fields[:1]) == xxhash.xxh3_64_intdigest(IMAGE.tobytes())


def test_chunks_are_stacked_aligned_and_back_the_slots() -> None:
    memory = RingMemory(LAYOUT, chunk_batches=3, chunks=2)
    for index in range(6):
        slot = memory.slot(index)
        assert sum(buffer.nbytes for buffer in slot.buffers) == LAYOUT.nbytes
        slot.fields[0][:] = np.full((4, 3), index, np.float32).tobytes()
        slot.fields[1][:] = np.full(4, index, np.int32).tobytes()
    for number, (image, label) in enumerate(memory.chunks):
        assert (image.shape, label.shape) == ((3, 4, 3), (3, 4))
        for array in (image, label):
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
        assert image[:, 0, 0].tolist() == [3 * number, 3 * number + 1, 3 * number + 2]
        assert label[:, 3].tolist() == [3 * number, 3 * number + 1, 3 * number + 2]


def test_a_ring_larger_than_the_machine_is_refused() -> None:
    layout = BatchLayout.of([("x", "uint8", (1 << 40,))])
    with pytest.raises(LayoutError, match=r"got 1024 chunks of 64 batches .* use fewer or smaller batches"):
        RingMemory(layout, chunk_batches=64, chunks=1024)
