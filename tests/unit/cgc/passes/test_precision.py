"""Values computed after the precision pass, and its effect on the compiler."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from cgc.cirh.interface import step_interface
from cgc.cirh.text import canonical_text, parse_module
from cgc.driver import compile_step, validate_step
from cgc.errors import InvalidModuleError
from cgc.execution.compilation import CompileOptions
from cgc.lowering.interpret import step_function
from cgc.passes.pipeline import run_pipeline
from cgc.precision import rounded_to_cb16
from cs_toolkit.fabric import load_fabric
from tests.programs.steps import MLP_TRAIN

FORMATS = ("mixed_float16", "mixed_bfloat16", "cbfloat16")


def parsed():
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


@pytest.fixture
def module():
    return parsed()


@cache
def values(precision):
    """(new state, outputs) of one step on random numbers."""
    module = parsed()
    run_pipeline(module, CompileOptions(precision=precision).pipeline, verify=True)
    interface, rng = step_interface(module), np.random.default_rng(4)

    def draw(spec):
        if spec.dtype != "float32":
            return rng.integers(0, 3, spec.shape).astype(spec.dtype if spec.dtype != "int64" else "int32")
        return (np.abs if spec.name.startswith("state.optimizer") else np.asarray)(
            rng.normal(size=spec.shape) * 0.3
        ).astype(np.float32)

    state, inputs = (tuple(map(draw, specs)) for specs in (interface.state, interface.inputs))
    new_state, outputs = jax.jit(step_function(module))(state, inputs)
    names = [spec.name for spec in (*interface.state, *interface.outputs)]
    return dict(zip(names, map(np.asarray, (*new_state, *outputs)), strict=True))


@pytest.mark.parametrize("precision", FORMATS)
def test_a_step_differs_only_by_rounding(precision):
    wide, narrow = values("float32"), values(precision)
    differs = False
    for name, value in wide.items():
        assert narrow[name].dtype == value.dtype, name
        np.testing.assert_allclose(narrow[name], value, rtol=0.02, atol=0.002, err_msg=name)
        differs |= not np.array_equal(narrow[name], value)
    assert differs
    assert narrow["output_loss"] == pytest.approx(wide["output_loss"], rel=2e-3)


def test_twice_is_once(module):
    for precision in FORMATS:
        once, twice = module.clone(), module.clone()
        run_pipeline(once, f"precision{{mode={precision}}}")
        run_pipeline(twice, f"precision{{mode={precision}}},precision{{mode={precision}}}")
        assert canonical_text(once) == canonical_text(twice)


def test_both_formats_of_the_type_f16_differ_in_nothing_but_the_name(module):
    texts = set()
    for precision in ("mixed_float16", "cbfloat16"):
        rewritten = module.clone()
        run_pipeline(rewritten, CompileOptions(precision=precision).pipeline)
        texts.add(canonical_text(rewritten).replace('"cbfloat16"', '"float16"'))
    assert len(texts) == 1
    assert values("mixed_float16")["output_loss"] != values("cbfloat16")["output_loss"]


def test_constants_are_not_folded_in_a_format_that_numpy_does_not_have():
    text = """builtin.module {
      func.func @graph() -> (tensor<2xf32> {cs.output_name = "output_r"})
          attributes {cs.mode = "infer", cs.fp16_type = "cbfloat16"} {
        %c = cirh.Const dense<[7.0e+04, 1.0e-11]> : tensor<2xf32>
        %h = cirh.Cast %c : (tensor<2xf32>) -> tensor<2xf16>
        %r = cirh.Cast %h : (tensor<2xf16>) -> tensor<2xf32>
        func.return %r : tensor<2xf32>
      }
    }"""
    folded = parse_module(text)
    run_pipeline(folded)
    for each in (parse_module(text), folded):
        (result,) = jax.jit(step_function(each))((), ())[1]
        np.testing.assert_array_equal(result, rounded_to_cb16(np.float32([7e4, 1e-11])))


def test_a_constant_of_the_region_is_rounded_to_the_format():
    text = """builtin.module {
      func.func @graph(%x: tensor<2x2xf32> {cs.input_name = "input_0"})
          -> (tensor<2x2xf32> {cs.output_name = "output_r"}) attributes {cs.mode = "infer"} {
        %c = cirh.Const dense<[[0.1, 7.0e+04], [1.0e-11, 1.0]]> : tensor<2x2xf32>
        %r = cirh.MatMul %x, %c {transpose_a = false, transpose_b = false}
            : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
        func.return %r : tensor<2x2xf32>
      }
    }"""
    module = parse_module(text)
    run_pipeline(module, CompileOptions(precision="cbfloat16").pipeline)
    (result,) = jax.jit(step_function(module))((), (np.eye(2, dtype=np.float32),))[1]
    expected = rounded_to_cb16(np.float32([[0.1, 7e4], [1e-11, 1.0]]))
    np.testing.assert_array_equal(result, expected)


def test_a_mask_of_minus_infinity_leaves_no_nan():
    """A row in which everything is masked: the mean of all values, not NaN."""
    text = """builtin.module {
      func.func @graph(%q: tensor<4x4xf32> {cs.input_name = "input_0"},
                       %m: tensor<4x4xf32> {cs.input_name = "input_1"})
          -> (tensor<4x4xf32> {cs.output_name = "output_r"}) attributes {cs.mode = "infer"} {
        %low = cirh.Const dense<-1.0e+09> : tensor<4x4xf32>
        %mask = cirh.Mul %m, %low : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        %s = cirh.MatMul %q, %q {transpose_a = false, transpose_b = true}
            : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        %a = cirh.Add %s, %mask : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        %p = cirh.Softmax %a {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
        %r = cirh.MatMul %p, %q {transpose_a = false, transpose_b = false}
            : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
        func.return %r : tensor<4x4xf32>
      }
    }"""
    x = np.random.default_rng(2).normal(size=(4, 4)).astype(np.float32)
    mask = np.float32([[0, 0, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    found = {}
    for precision in ("float32", *FORMATS):
        module = parse_module(text)
        run_pipeline(module, CompileOptions(precision=precision).pipeline)
        found[precision] = np.asarray(jax.jit(step_function(module))((), (x, mask))[1][0])
        assert np.isfinite(found[precision]).all()
    open_rows = [0, 1, 3]
    for precision in FORMATS:
        np.testing.assert_allclose(found[precision][open_rows], found["float32"][open_rows], atol=0.01)


def test_the_precision_is_a_part_of_the_key_and_of_the_estimate(module, tmp_path):
    fabric = load_fabric("cs2")
    results = {
        precision: compile_step(module, tmp_path, CompileOptions(precision=precision), fabric)
        for precision in ("float32", *FORMATS)
    }
    assert len({result.artifact.key for result in results.values()}) == 4
    cycles = {
        precision: [
            figures.compute_cycles + figures.transmission_cycles
            for name, figures in result.report.pipelined.performance.kernels.items()
            if name.startswith("fc")
        ]
        for precision, result in results.items()
    }
    assert cycles["cbfloat16"] == cycles["mixed_float16"] == cycles["mixed_bfloat16"]
    assert len(cycles["float32"]) == 3
    assert all(narrow < wide for narrow, wide in zip(cycles["cbfloat16"], cycles["float32"], strict=True))
    text = results["cbfloat16"].artifact.read("cirh.mlir").decode()
    assert 'cs.fp16_type = "cbfloat16"' in text
    assert "xf16>" in text
    assert compile_step(module, tmp_path, CompileOptions(precision="cbfloat16"), fabric).reused


def test_an_unknown_precision_names_the_known_ones():
    with pytest.raises(ValidationError, match="'float32', 'mixed_float16', 'mixed_bfloat16' or 'cbfloat16'"):
        CompileOptions(precision="bfloat16")  # type: ignore[arg-type]


def test_an_unknown_format_of_a_module(module):
    text = MLP_TRAIN.read_text().replace('cs.mode = "train"', 'cs.mode = "train", cs.fp16_type = "float8"')
    with pytest.raises(
        InvalidModuleError, match=r'cs\.fp16_type is "float8", expected one of float16, bfloat16, cbfloat16'
    ):
        validate_step(parse_module(text), CompileOptions(precision="cbfloat16"), load_fabric("cs2"))
