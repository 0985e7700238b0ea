"""Layouts of batches, arrays as buffers, and the memory of a ring."""

import ml_dtypes
import numpy as np
import pytest

from cs_stream.batches import BatchLayout, Field, RingMemory, byte_view, conform, wire_buffers
from cs_stream.errors import BatchShapeError, LayoutError

LAYOUT = BatchLayout.of([("image", "float32", (3, 5)), ("label", "int32", (3,)), ("step", "bool", ())])


def test_fields_start_at_multiples_of_64_bytes() -> None:
    assert LAYOUT.offsets == (0, 64, 128)
    assert LAYOUT.nbytes == 192


def test_digest_is_of_names_types_shapes_and_order() -> None:
    same = BatchLayout.of([("image", "float32", [3, 5]), ("label", "int32", [3]), ("step", "bool", [])])
    swapped = BatchLayout(LAYOUT.fields[::-1])
    assert same.digest == LAYOUT.digest
    assert swapped.digest != LAYOUT.digest


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("object", "field 'x': dtype: got 'object', expected a boolean, integer, float or complex type"),
        ("str", "field 'x': dtype: got 'str', expected a boolean, integer, float or complex type"),
        ("f4", "field 'x': dtype: got 'f4', expected its plain name 'float32'"),
        (">i4", "field 'x': dtype: got '>i4', expected its plain name 'int32'"),
        (
            "floaty",
            "field 'x': dtype: got 'floaty', which numpy does not know here; use a numpy name such as",
        ),
    ],
)
def test_a_type_that_cannot_travel_is_refused(dtype: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Field("x", dtype, (1,))
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


def test_a_size_of_nothing_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"field 'x': shape: got \(4, 0\), expected sizes of at least 1"):
        Field("x", "int32", (4, 0))


def test_no_field_and_a_name_twice_are_refused() -> None:
    with pytest.raises(LayoutError, match="got 0 fields, expected 1 to 1024"):
        BatchLayout(())
    with pytest.raises(LayoutError, match="got the field name 'x' twice"):
        BatchLayout.of([("x", "int32", (1,)), ("x", "int8", (1,))])
    with pytest.raises(LayoutError, match="field name: got an empty text"):
        Field("", "int32", (1,))


@pytest.mark.parametrize("value", [None, {}, [["x", "int32"]], [["x", "int32", [1.5]]], [["x", 4, [1]]], "x"])
def test_json_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(LayoutError, match=r"expected a list of \[name, dtype, \[sizes\]\]"):
        BatchLayout.from_json(value)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (LAYOUT.to_json(), None),
        (
            [["image", "float32", [4, 5]], ["label", "int64", [3]], ["step", "bool", []]],
            "layout: field 0: got 'image: float32[4, 5]', expected 'image: float32[3, 5]'; "
            "layout: field 1: got 'label: int64[3]', expected 'label: int32[3]'",
        ),
        (
            [["image", "float32", [3, 5]]],
            "layout: got 1 fields, expected 3 (image: float32[3, 5], label: int32[3], step: bool[])",
        ),
        (7, "layout: got 7, expected image: float32[3, 5], label: int32[3], step: bool[]"),
        (
            [["image", "posit16", [3, 5]], ["label", "int32", [3]], ["step", "bool", []]],
            "layout: field 0: got 'image: posit16[3, 5]', expected 'image: float32[3, 5]'",
        ),
    ],
)
def test_a_difference_names_field_got_and_expected(other: object, difference: str | None) -> None:
    assert LAYOUT.difference(other) == difference


def test_a_long_foreign_layout_is_cut_in_messages() -> None:
    assert len(LAYOUT.difference("x" * 100_000) or "") < 400


def test_wire_types_are_little_endian() -> None:
    assert Field("x", "int32", (1,)).numpy_dtype == np.dtype("<i4")


ALIGNED = BatchLayout.of([("image", "float32", (4, 3)), ("label", "int32", (4,))])
IMAGE = np.arange(12, dtype=np.float32).reshape(4, 3)
LABEL = np.arange(4, dtype=np.int32)


def refusal(batch: object) -> str:
    with pytest.raises(BatchShapeError) as caught:
        conform(ALIGNED, batch, "batch 7 of worker 1")
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
    array = conform(ALIGNED, [image, LABEL], "batch")[0]
    assert bytes(byte_view(array)) == IMAGE.astype("<f4").tobytes()


def test_a_conforming_array_is_not_copied() -> None:
    assert np.shares_memory(conform(ALIGNED, (IMAGE, LABEL), "batch")[0], IMAGE)


def test_a_rank_0_array_keeps_its_rank() -> None:
    layout = BatchLayout.of([("step", "int64", ())])
    (array,) = conform(layout, (np.int64(5),), "batch")
    assert array.shape == ()
    assert bytes(byte_view(array)) == (5).to_bytes(8, "little")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "complex64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_view_has_the_bytes_of_an_array_of_any_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    view = byte_view(array)
    assert (view.ndim, view.format, view.nbytes) == (1, "B", array.nbytes)
    assert bytes(view) == array.tobytes()
    assert np.shares_memory(np.frombuffer(view, np.uint8), array)


def test_fields_are_padded_on_the_wire() -> None:
    fields = [byte_view(IMAGE), byte_view(LABEL)]
    buffers = wire_buffers(fields, memoryview(b"\xff" * 64))
    assert b"".join(buffers) == IMAGE.tobytes() + b"\xff" * 16 + LABEL.tobytes() + b"\xff" * 48


def test_chunks_are_stacked_aligned_and_back_the_slots() -> None:
    memory = RingMemory(ALIGNED, chunk_batches=3, chunks=2)
    for index in range(6):
        slot = memory.slot(index)
        assert sum(buffer.nbytes for buffer in slot.buffers) == ALIGNED.nbytes
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
