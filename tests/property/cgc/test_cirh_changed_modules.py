"""Valid modules with one thing of their text changed: refused with a message, or as good as any other."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.text import parse_module, print_module
from cgc.cirh.types import element_count, numpy_dtype, shape_of, tensor_of
from cgc.errors import CompileError, LoweringError
from cgc.lowering.base import device_type, result_dtype, result_shape
from cgc.lowering.jax_table import lower
from cgc.passes.pipeline import run_pipeline

from .examples import examples
from .random_modules import GENERATORS, Builder

PLACES = re.compile(
    r"(?P<type>(?<=[<x])(?:bf16|f16|f32|i1|i8|ui8|i32|i64|ui32)(?=>))|(?P<size>(?<=[<x])\d+(?=x))"
    r'|(?P<text>"[^"]*")|(?P<float>-?\d\.\d+e[-+]\d+)|(?P<int>(?<=[ :\[])-?\d+(?=[\],> ]))'
    r"|(?P<flag>\b(?:true|false)\b)|(?P<value>%\w+)|(?P<attribute>\w+ = [^,}{]+(?=[,}]))"
)
INSTEAD: dict[str, list[str]] = {
    "type": ["bf16", "f16", "f32", "i1", "i8", "ui8", "i32", "i64", "ui32", "f64", "i16", "index"],
    "size": ["0", "1", "2", "3", "5", "?"],
    "text": ['""', '"MAX"', '"ADD"', '"SAME"', '"\\22"', "7"],
    "float": ["nan", "-1.0", "0.0", "1e-40", "0x7FC00000", "0xFF800000", "true"],
    "int": ["-1", "0", "1", "2", "4096", str(2**31), str(-(2**63)), str(2**63 - 1), str(2**63), "0.5"],
    "flag": ["true", "false", "1", "unit"],
    "value": ["%0", "%1", "%2", "%9"],
    "attribute": ["", "other = 1"],
}
LARGEST = 10**5
"""Elements of a tensor that is computed here; larger ones are only read and printed."""


@st.composite
def texts(draw: st.DrawFn) -> str:
    """The text of a module of one op and what it reads, with one thing exchanged: there, or everywhere."""
    builder = Builder(draw, constants_only=False)
    builder.add(GENERATORS[draw(st.sampled_from(ops.ALL_OPS))](builder))
    builder.block.add_op(ReturnOp(*builder.values))
    types = [value.type for value in builder.values]
    text = print_module(ModuleOp([FuncOp("graph", (builder.block.arg_types, types), Region(builder.block))]))
    kind = draw(st.sampled_from(sorted(INSTEAD)))
    places = [match for match in PLACES.finditer(text) if match.lastgroup == kind]
    if not places:
        return text
    place, new = draw(st.sampled_from(places)), draw(st.sampled_from(INSTEAD[kind]))
    if kind in ("type", "size") and draw(st.booleans()):
        return PLACES.sub(lambda match: new if match.group() == place.group() else match.group(), text)
    return text[: place.start()] + new + text[place.end() :]


def check(text: str) -> None:
    try:
        module = parse_module(text)
    except CompileError:
        return
    printed = print_module(module)
    assert print_module(parse_module(printed)) == printed
    made = [op for op in module.walk() if isinstance(op, CirhOp)]
    if max(element_count(tensor_of(result)) for op in made for result in op.results) > LARGEST:
        return
    rewritten = module.clone()
    run_pipeline(rewritten, verify=True)
    with contextlib.suppress(LoweringError):  # constants that do not fit into the 32 bits of the device
        trace(module)
        trace(rewritten)


def trace(module: ModuleOp) -> None:
    """Lowers all ops, computing nothing, and compares with the types that they declare."""
    function = graph_function(module)
    arguments = [
        jax.ShapeDtypeStruct(shape_of(value), device_type(numpy_dtype(tensor_of(value).element_type)))
        for value in function.body.block.args
    ]

    def run(*given_values: Any) -> Any:
        values: dict[SSAValue, Any] = dict(zip(function.body.block.args, given_values, strict=True))
        for op in function.body.block.ops:
            if isinstance(op, CirhOp):
                results = lower(op, *(values[operand] for operand in op.operands))
                for index, result in enumerate(results):
                    assert (result.shape, result.dtype) == (result_shape(op, index), result_dtype(op, index))
                values.update(zip(op.results, results, strict=True))
        return 0

    jax.eval_shape(run, *arguments)


FEW = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))


@FEW
@given(texts())
def test_changed_text_is_refused_or_means_something(text: str) -> None:
    check(text)


@pytest.mark.soak
@settings(FEW, max_examples=1000)
@given(texts())
def test_much_changed_text(text: str) -> None:
    check(text)
