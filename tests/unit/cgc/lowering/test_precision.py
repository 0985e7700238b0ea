"""16-bit formats on the device: roundings bit for bit, ops computed in float32 and rounded once."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.lowering.interpret import export_step, step_function
from cgc.lowering.precision import round_to_cb16
from cgc.precision import CB16_LARGEST, rounded_to_cb16
from cs_system.engine.executable import load_step

ALL_EXPONENTS = (np.arange(512, dtype=np.uint32) << 23).view(np.float32)


def function(body: str, inputs: str, result: str, half: str = "cbfloat16"):
    """A jitted function of a body in CIRH text; `%x` and `%y` are its inputs, `%r` its result."""
    arguments = ", ".join(
        f'%{name}: {kind} {{cs.input_name = "input_{index}"}}'
        for index, (name, kind) in enumerate(zip("xy", inputs.split("|"), strict=False))
    )
    text = f"""builtin.module {{
      func.func @graph({arguments}) -> ({result} {{cs.output_name = "output_r"}})
          attributes {{cs.mode = "infer", cs.fp16_type = "{half}"}} {{
        {body}
        func.return %r : {result}
      }}
    }}"""
    step = step_function(parse_module(text))
    return jax.jit(lambda *values: step((), values)[1][0])


def test_every_exponent_mantissa_border_and_sign() -> None:
    mantissas = np.array(
        [0, 1, 0x1FFF, 0x2000, 0x2001, 0x3FFF, 0x4000, 0x5FFF, 0x6000, 0x6001, 0x7FFFFF], np.uint32
    )
    bits = (np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23) | mantissas).ravel()
    values = bits.view(np.float32)
    got = np.asarray(jax.jit(round_to_cb16)(values))
    expected = rounded_to_cb16(values)
    np.testing.assert_array_equal(got, expected)
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(got[kept].view(np.uint32), expected[kept].view(np.uint32))


def test_a_rounding_has_few_operations() -> None:
    """A step has thousands of them, and XLA compiles each wherever it is needed."""
    text = jax.jit(round_to_cb16).lower(ALL_EXPONENTS).as_text()
    operations = [line for line in text.splitlines() if " = stablehlo." in line]
    assert len([line for line in operations if "constant" not in line and "broadcast" not in line]) <= 12


def test_a_cast_rounds_and_the_way_back_keeps(rng: np.random.Generator) -> None:
    shape = "tensor<4096xf32>"
    cast = function(
        "%h = cirh.Cast %x : (tensor<4096xf32>) -> tensor<4096xf16>\n"
        "%r = cirh.Cast %h : (tensor<4096xf16>) -> tensor<4096xf32>",
        shape,
        shape,
    )
    values = (2.0 ** rng.uniform(-45, 33, 4096) * rng.choice([-1, 1], 4096)).astype(np.float32)
    np.testing.assert_array_equal(cast(values), rounded_to_cb16(values))


def test_a_truncating_cast_rounds_towards_zero() -> None:
    cast = function(
        "%h = cirh.Cast %x {Truncate = true} : (tensor<8xf32>) -> tensor<8xf16>\n"
        "%r = cirh.Cast %h : (tensor<8xf16>) -> tensor<8xf32>",
        "tensor<8xf32>",
        "tensor<8xf32>",
    )
    values = np.array(
        [1.999, -1.999, 2.0**33, -np.inf, 1.9 * 2.0**-39, -(2.0**-40), 2.0**-30 * 0.999, 3.0], np.float32
    )
    expected = [1.998046875, -1.998046875, CB16_LARGEST, -np.inf, 2.0**-39, -0.0, 511 * 2.0**-39, 3.0]
    np.testing.assert_array_equal(cast(values), np.array(expected, np.float32))


@pytest.mark.parametrize(("mnemonic", "exact"), [("Add", np.add), ("Mul", np.multiply), ("Div", np.divide)])
def test_arithmetic_is_rounded_once(mnemonic, exact, rng: np.random.Generator) -> None:
    compute = function(
        "%a = cirh.Cast %x : (tensor<2000xf32>) -> tensor<2000xf16>\n"
        "%b = cirh.Cast %y : (tensor<2000xf32>) -> tensor<2000xf16>\n"
        f"%c = cirh.{mnemonic} %a, %b : (tensor<2000xf16>, tensor<2000xf16>) -> tensor<2000xf16>\n"
        "%r = cirh.Cast %c : (tensor<2000xf16>) -> tensor<2000xf32>",
        "tensor<2000xf32>|tensor<2000xf32>",
        "tensor<2000xf32>",
    )
    x, y = (rounded_to_cb16(rng.normal(size=2000).astype(np.float32)) for _ in range(2))
    expected = rounded_to_cb16(exact(x.astype(np.float64), y.astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(compute(x, y), expected)


def test_a_product_is_summed_in_float32_and_rounded_once(rng: np.random.Generator) -> None:
    compute = function(
        "%a = cirh.Cast %x : (tensor<8x512xf32>) -> tensor<8x512xf16>\n"
        "%b = cirh.Cast %y : (tensor<512x8xf32>) -> tensor<512x8xf16>\n"
        "%c = cirh.MatMul %a, %b {transpose_a = false, transpose_b = false}"
        " : (tensor<8x512xf16>, tensor<512x8xf16>) -> tensor<8x8xf16>\n"
        "%r = cirh.Cast %c : (tensor<8x8xf16>) -> tensor<8x8xf32>",
        "tensor<8x512xf32>|tensor<512x8xf32>",
        "tensor<8x8xf32>",
    )
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 512), (512, 8)))
    exact = rounded_to_cb16(x).astype(np.float64) @ rounded_to_cb16(y).astype(np.float64)
    got = np.asarray(compute(x, y))
    np.testing.assert_array_equal(got, rounded_to_cb16(got))
    np.testing.assert_allclose(got, exact, rtol=2**-10 + 1e-6, atol=1e-5)


def test_a_range_that_float16_does_not_have() -> None:
    compute = function(
        "%a = cirh.Cast %x : (tensor<2xf32>) -> tensor<2xf16>\n"
        "%c = cirh.Mul %a, %a : (tensor<2xf16>, tensor<2xf16>) -> tensor<2xf16>\n"
        "%r = cirh.Cast %c : (tensor<2xf16>) -> tensor<2xf32>",
        "tensor<2xf32>",
        "tensor<2xf32>",
    )
    np.testing.assert_array_equal(compute(np.float32([2.0**15, 2.0**-16])), np.float32([2.0**30, 2.0**-32]))
    halves = function(
        "%r = cirh.Mul %x, %x : (tensor<2xf16>, tensor<2xf16>) -> tensor<2xf16>",
        "tensor<2xf16>",
        "tensor<2xf16>",
    )
    got = np.asarray(halves(np.float16([2.0**5, 2049.0])))
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, np.float16([1024, np.inf]))  # beyond float16, where it leaves the step


@pytest.mark.parametrize("half", ["float16", "cbfloat16"])
def test_an_activation_is_computed_in_float32(half: str) -> None:
    compute = function(
        "%a = cirh.Cast %x : (tensor<5xf32>) -> tensor<5xf16>\n"
        '%b = cirh.Gelu %a {approximation = "TANH"} : (tensor<5xf16>) -> tensor<5xf16>\n'
        "%r = cirh.Cast %b : (tensor<5xf16>) -> tensor<5xf32>",
        "tensor<5xf32>",
        "tensor<5xf32>",
        half,
    )
    x = np.float32([-3.0, -0.5, 0.25, 2.0, 128.0])  # 128 cubed is beyond float16
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(compute(x), exact, rtol=2**-10)


@pytest.mark.parametrize("half", ["float16", "cbfloat16"])
def test_a_bias_with_an_activation_is_rounded_once(half: str) -> None:
    compute = function(
        "%a = cirh.Cast %x : (tensor<3xf32>) -> tensor<3xf16>\n"
        "%b = cirh.Cast %y : (tensor<3xf32>) -> tensor<3xf16>\n"
        '%c = cirh.Composite %a, %b {function = "BiasGeluTanh"}'
        " : (tensor<3xf16>, tensor<3xf16>) -> tensor<3xf16>\n"
        "%r = cirh.Cast %c : (tensor<3xf16>) -> tensor<3xf32>",
        "tensor<3xf32>|tensor<3xf32>",
        "tensor<3xf32>",
        half,
    )
    # the first cubed is beyond float16; the second sum has more digits than 16 bits
    x, bias = np.float32([128.0, 2049 / 2048, -1.0]), np.float32([0.0, 2.0**-12, 0.25])
    rounding = rounded_to_cb16 if half == "cbfloat16" else lambda v: v.astype(np.float16).astype(np.float32)
    wide = rounding(x).astype(np.float64) + rounding(bias)
    exact = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_array_equal(compute(x, bias), rounding(exact.astype(np.float32)))


def test_an_exported_step_rounds_too() -> None:
    module = parse_module("""builtin.module {
      func.func @graph(%w: tensor<4xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64})
          -> tensor<4xf32> attributes {cs.mode = "train", cs.fp16_type = "cbfloat16"} {
        %h = cirh.Cast %w : (tensor<4xf32>) -> tensor<4xf16>
        %r = cirh.Cast %h : (tensor<4xf16>) -> tensor<4xf32>
        func.return %r : tensor<4xf32>
      }
    }""")
    values = np.float32([0.1, 1e-11, 70000.0, 1.0 + 2.0**-10])
    (new,), _ = load_step(export_step(module, step_interface(module)))((values,), ())
    np.testing.assert_array_equal(new, rounded_to_cb16(values))


def test_a_float16_product_is_rounded_before_a_sum(rng: np.random.Generator) -> None:
    """Whatever the machine makes of the two: from subnormal numbers to infinity."""
    kind = "tensor<65536xf16>"
    body = f"""%p = cirh.Mul %x, %y : ({kind}, {kind}) -> {kind}
        %r = cirh.Add %p, %x : ({kind}, {kind}) -> {kind}"""
    joined = function(body, f"{kind}|{kind}", kind, half="float16")
    signs = rng.choice([-1, 1], (2, 65536))
    x, y = (signs * 2.0 ** rng.uniform(-14, 10, (2, 65536))).astype(np.float16)
    with np.errstate(over="ignore"):
        product = x * y
        expected = product + x
    np.testing.assert_array_equal(np.asarray(joined(x, y)), expected)
    assert np.isinf(product).any()
    assert (np.abs(product) < 6e-5).any()
