import numpy as np
import pytest

from cs_stream.errors import LayoutError
from cs_stream.layout import BatchLayout, Field

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
