"""Types and refusals of convolution, pooling and batch normalization."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.types import tensor_type
from cgc.errors import InvalidOpError

OPERANDS = {
    "x": ((2, 8, 9, 4), "float32"),
    "k": ((3, 3, 4, 6), "float32"),
    "per_channel": ((3, 3, 1, 8), "float32"),
    "y": ((2, 6, 7, 6), "float32"),
    "pooled": ((2, 4, 4, 4), "float32"),
    "h": ((2, 8, 9, 4), "float16"),
    "n": ((2, 8, 9, 4), "int32"),
    "volume": ((2, 5, 8, 9, 4), "float32"),
    "k3": ((2, 3, 3, 4, 6), "float32"),
    "pooled_volume": ((2, 2, 4, 4, 4), "float32"),
    "row": ((2, 4), "float32"),
    "c": ((4,), "float32"),
    "d": ((6,), "float32"),
}
Build = Callable[[SimpleNamespace], CirhOp]
WINDOW = ((2, 2), (2, 2))
WINDOW_3D = ((2, 2, 2), (2, 2, 2))


@pytest.fixture
def v() -> SimpleNamespace:
    block = Block(arg_types=[tensor_type(shape, dtype) for shape, dtype in OPERANDS.values()])
    return SimpleNamespace(**dict(zip(OPERANDS, block.args, strict=True)))


def conv(lhs: str, rhs: str, *args: object, **attributes: object) -> Build:
    return lambda v: ops.ConvolutionOp(getattr(v, lhs), getattr(v, rhs), *args, **attributes)


def backward(lhs: str, rhs: str, direction: str, shape: tuple[int, ...]) -> Build:
    return conv(lhs, rhs, conv_pass_direction=direction, shape=shape)


RESULTS: list[tuple[Build, str]] = [
    (conv("x", "k"), "tensor<2x6x7x6xf32>"),
    (conv("x", "k", (2, 3)), "tensor<2x3x3x6xf32>"),
    (conv("x", "k", (1, 1), (1, 1, 1, 1)), "tensor<2x8x9x6xf32>"),
    (conv("x", "k", (1, 1), (2, 0, 0, 1), (2, 3)), "tensor<2x6x4x6xf32>"),
    (conv("x", "per_channel", groups=4), "tensor<2x6x7x8xf32>"),
    (backward("y", "k", "BWD_INPUT", (2, 8, 9, 4)), "tensor<2x8x9x4xf32>"),
    (backward("x", "y", "BWD_KERNEL", (3, 3, 4, 6)), "tensor<3x3x4x6xf32>"),
    (lambda v: ops.PoolOp(v.x, "MAX", *WINDOW), "tensor<2x4x4x4xf32>"),
    (lambda v: ops.PoolOp(v.h, "AVG", (3, 3), (2, 2), (0, 1, 1, 1)), "tensor<2x4x5x4xf16>"),
    (lambda v: ops.MaxPoolGradOp(v.x, v.pooled, *WINDOW), "tensor<2x8x9x4xf32>"),
    (lambda v: ops.AvgPoolGradOp(v.pooled, (2, 9, 8, 4), *WINDOW), "tensor<2x9x8x4xf32>"),
    (conv("volume", "k3"), "tensor<2x4x6x7x6xf32>"),
    (conv("volume", "k3", (1, 2, 3), (1, 0, 1, 1, 0, 0), (2, 1, 1)), "tensor<2x4x4x3x6xf32>"),
    (
        conv("volume", "volume", conv_pass_direction="BWD_KERNEL", shape=(1, 1, 1, 4, 4)),
        "tensor<1x1x1x4x4xf32>",
    ),
    (lambda v: ops.PoolOp(v.volume, "MAX", *WINDOW_3D), "tensor<2x2x4x4x4xf32>"),
    (lambda v: ops.MaxPoolGradOp(v.volume, v.pooled_volume, *WINDOW_3D), "tensor<2x5x8x9x4xf32>"),
    (lambda v: ops.AvgPoolGradOp(v.pooled_volume, (2, 5, 8, 9, 4), *WINDOW_3D), "tensor<2x5x8x9x4xf32>"),
]


@pytest.mark.parametrize(("build", "expected"), RESULTS)
def test_constructors_infer_the_result_type(v: SimpleNamespace, build: Build, expected: str) -> None:
    op = build(v)
    assert str(op.results[0].type) == expected
    op.verify()


def test_batch_norm_takes_rows_and_images_and_16_bit_samples(v: SimpleNamespace) -> None:
    op = ops.FusedBatchNormOp(v.h, v.c, v.c, v.c, v.c, 0.5, 0.25, False)
    assert [str(r.type) for r in op.results] == ["tensor<2x8x9x4xf16>", *["tensor<4xf32>"] * 4]
    assert (op.epsilon, op.exponential_avg_factor, op.is_training) == (0.5, 0.25, False)
    grad = ops.FusedBatchNormGradOp(v.row, v.row, v.c, v.c, v.c)
    assert [str(r.type) for r in grad.results] == ["tensor<2x4xf32>", "tensor<4xf32>", "tensor<4xf32>"]
    grad.verify()


FAULTS: list[tuple[Build, str]] = [
    (conv("row", "k"), "x has type tensor<2x4xf32>, expected rank 4: [batch, height, width, channels]"),
    (conv("n", "k"), "x has type tensor<2x8x9x4xi32>, expected an element type of"),
    (conv("h", "k"), "expected rank 4 and element type f16"),
    (conv("y", "k"), "expected [h, w, 6 / groups, multiple of groups]"),
    (conv("x", "k", groups=2), "groups is 2, expected [h, w, 4 / groups"),
    (conv("x", "k", (0, 1)), "the stride is (0, 1), expected two positive sizes"),
    (conv("x", "k", (1,)), "the stride is (1,), expected two positive sizes"),
    (conv("x", "k", (1, 1), (1, 1)), "padding is (1, 1), expected top, bottom, left, right"),
    (conv("x", "k", (1, 1), (-1, 0, 0, 0)), "padding is (-1, 0, 0, 0)"),
    (conv("x", "k", dilation=(4, 1)), "a window of 9 x 3 does not fit into 8 x 9"),
    (backward("y", "k", "BACK", (2, 8, 9, 4)), "conv_pass_direction is 'BACK', expected one of FWD"),
    (
        backward("y", "k", "BWD_INPUT", (2, 9, 9, 4)),
        "the gradient has type tensor<2x6x7x6xf32>, expected tensor<2x7x7x6xf32>",
    ),
    (backward("x", "y", "BWD_KERNEL", (3, 4, 4, 6)), "expected tensor<2x6x6x6xf32>"),
    (lambda v: ops.PoolOp(v.x, "MIN", *WINDOW), "pool_type is 'MIN', expected one of MAX, AVG"),
    (lambda v: ops.PoolOp(v.n, "MAX", *WINDOW), "x has type tensor<2x8x9x4xi32>"),
    (
        lambda v: ops.PoolOp(v.x, "MAX", *WINDOW, (2, 0, 0, 0)),
        "padding is (2, 0, 0, 0), expected less than the window (2, 2)",
    ),
    (lambda v: ops.PoolOp(v.x, "MAX", (9, 1), (1, 1)), "a window of 9 x 1 does not fit into 8 x 9"),
    (conv("volume", "k"), "expected rank 5 and element type f32"),
    (conv("x", "k3"), "expected rank 4 and element type f32"),
    (conv("volume", "k3", (1, 1)), "the stride is (1, 1), expected three positive sizes, of depth, height"),
    (conv("volume", "k3", padding=(1, 1, 1, 1)), "expected front, back, top, bottom, left, right"),
    (conv("volume", "k3", groups=2), "expected [d, h, w, 4 / groups, multiple of groups]"),
    (conv("volume", "k3", dilation=(5, 1, 1)), "a window of 6 x 3 x 3 does not fit into 5 x 8 x 9"),
    (lambda v: ops.PoolOp(v.volume, "AVG", *WINDOW), "the window is (2, 2), expected three positive sizes"),
    (lambda v: ops.MaxPoolGradOp(v.x, v.y, *WINDOW), "grad has type tensor<2x6x7x6xf32>"),
    (lambda v: ops.AvgPoolGradOp(v.pooled, (2, 10, 8, 4), *WINDOW), "expected tensor<2x5x4x4xf32>"),
    (
        lambda v: ops.FusedBatchNormOp(v.x, v.c, v.d, v.c, v.c),
        "offset has type tensor<6xf32>, expected tensor<4xf32>, the type of the channels of x",
    ),
    (lambda v: ops.FusedBatchNormOp(v.c, v.c, v.c, v.c, v.c), "expected rank 2 or more, channels last"),
    (lambda v: ops.FusedBatchNormGradOp(v.h, v.x, v.c, v.c, v.c), "grad has type tensor<2x8x9x4xf16>"),
]


@pytest.mark.parametrize(("build", "message"), FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_constructors_refuse_what_does_not_fit(v: SimpleNamespace, build: Build, message: str) -> None:
    with pytest.raises(InvalidOpError) as caught:
        build(v)
    assert message in str(caught.value)
    assert str(caught.value).startswith("cirh.")


@pytest.mark.parametrize(
    "build",
    [
        conv("x", "k"),
        lambda v: ops.PoolOp(v.x, "MAX", *WINDOW),
        lambda v: ops.FusedBatchNormOp(v.x, v.c, v.c, v.c, v.c),
    ],
)
def test_channels_first_is_refused(v: SimpleNamespace, build: Build) -> None:
    op = build(v)
    op.properties["data_format"] = StringAttr("NCHW")
    with pytest.raises(InvalidOpError, match="data_format is 'NCHW', expected 'NHWC'"):
        op.verify_()


@pytest.mark.parametrize("build", [conv("volume", "k3"), lambda v: ops.PoolOp(v.volume, "MAX", *WINDOW_3D)])
def test_volumes_have_their_own_data_format(v: SimpleNamespace, build: Build) -> None:
    op = build(v)
    assert op.data_format == "NDHWC"
    op.properties["data_format"] = StringAttr("NHWC")
    with pytest.raises(InvalidOpError, match="data_format is 'NHWC', expected 'NDHWC'"):
        op.verify_()
