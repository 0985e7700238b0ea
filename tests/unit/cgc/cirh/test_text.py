from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region
from xdsl.printer import Printer

from cgc.cirh.base import layer_attr
from cgc.cirh.ops import AddOp, ConstOp
from cgc.cirh.text import TextPrinter, canonical_text, parse_module, print_module
from cgc.cirh.types import tensor_type
from cgc.errors import CompileError, InvalidModuleError, ModuleSyntaxError


def module_of(*ops: ConstOp) -> ModuleOp:
    region = Region(Block([*ops, ReturnOp()]))
    return ModuleOp([FuncOp("graph", ([], []), region)])


def constants(module: ModuleOp) -> list[np.ndarray]:
    return [op.to_array() for op in module.walk() if isinstance(op, ConstOp)]


def body(line: str, arguments: str = "%x: tensor<4xf32>") -> str:
    return f"builtin.module {{\n  func.func @graph({arguments}) {{\n    {line}\n    func.return\n  }}\n}}\n"


SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.1, 1e-45, 3.0e38, 123456789.0, 16777217.0, 1e10, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("repeat", [1, 20])
def test_float_constants_come_back_bit_for_bit(dtype: type, repeat: int) -> None:
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL * repeat, np.float64).astype(dtype)
    arrays = [values, *(np.full((2, 2), value) for value in values[: len(SPECIAL)])]
    module = module_of(*map(ConstOp.from_array, arrays))
    for array, parsed in zip(arrays, constants(parse_module(print_module(module))), strict=True):
        assert parsed.dtype == array.dtype
        assert parsed.tobytes() == array.tobytes()


def test_nan_payloads_come_back() -> None:
    array = np.array([0x7FC00001, 0xFF800001, 0x7F800001], np.uint32).view(np.float32)
    (parsed,) = constants(parse_module(print_module(module_of(ConstOp.from_array(array)))))
    assert parsed.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integer_constants_come_back(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = np.array([[limits.min, 0, 1, limits.max]], dtype)
    (parsed,) = constants(parse_module(print_module(module_of(ConstOp.from_array(array)))))
    assert parsed.dtype == array.dtype
    assert np.array_equal(parsed, array)


def test_bool_constants_are_equal_however_they_are_made() -> None:
    made = module_of(ConstOp.from_array(np.array([True, False])))
    parsed = parse_module(body("%c = cirh.Const dense<[true, false]> : tensor<2xi1>", ""))
    generic = parse_module(
        body('%c = "cirh.Const"() <{value = dense<[true, false]> : tensor<2xi1>}> : () -> tensor<2xi1>', "")
    )
    assert np.array_equal(constants(parsed)[0], [True, False])
    assert canonical_text(made).split("cirh.Const")[1].split("\n")[0] in canonical_text(parsed)
    assert canonical_text(parsed) == canonical_text(generic)


def test_a_large_constant_prints_as_bytes_and_a_repeated_one_as_one_number() -> None:
    large = np.arange(10_000, dtype=np.float32)
    text = print_module(module_of(ConstOp.from_array(large)))
    assert 'dense<"0x' in text
    assert np.array_equal(constants(parse_module(text))[0], large)
    splat = print_module(module_of(ConstOp.splat(-np.inf, tensor_type((512, 512), "float32"))))
    assert "dense<0xFF800000> : tensor<512x512xf32>" in splat
    assert len(splat) < 200


def test_constants_without_elements() -> None:
    text = print_module(module_of(ConstOp.from_array(np.zeros((0, 3), np.float32))))
    assert "dense<> : tensor<0x3xf32>" in text
    assert constants(parse_module(text))[0].shape == (0, 3)


def test_text_that_people_write() -> None:
    module = parse_module(
        body(
            "%a = cirh.Const dense<1> : tensor<2xf32>\n"
            "    %b = cirh.Const dense<0x7F800000> : tensor<f32>\n"
            '    %c = cirh.Const dense<"0x0000803F"> : tensor<2xf32>  // a splat in hex\n'
            '    %d = cirh.Const {cs.name = "a \\"quoted\\" name"} dense<[]> : tensor<0xi32>'
        )
    )
    a, b, c, d = constants(module)
    assert a.tolist() == [1.0, 1.0]
    assert b == np.inf
    assert c.tolist() == [1.0, 1.0]
    assert d.size == 0
    assert [op.node_name for op in module.walk() if isinstance(op, ConstOp)][3] == 'a "quoted" name'


SYNTAX_FAULTS = [
    ("%c = cirh.Const dense<[1, 2]> : tensor<3xi32>", "3:26", "shape (2,), expected that of tensor<3xi32>"),
    ("%c = cirh.Const dense<[[1], [1, 2]]> : tensor<2x1xi32>", "3:27", "lists of different lengths"),
    ("%c = cirh.Const dense<300> : tensor<ui8>", "3:26", "got 300, expected 0 to 255"),
    ("%c = cirh.Const dense<1.5> : tensor<i32>", "3:26", "got 1.5, expected an integer"),
    ("%c = cirh.Const dense<true> : tensor<f32>", "3:26", "got true, expected a number"),
    ("%c = cirh.Const dense<2> : tensor<i1>", "3:26", "got 2, expected true or false"),
    ('%c = cirh.Const dense<"0xZZ"> : tensor<f32>', "3:26", "hex bytes"),
    ('%c = cirh.Const dense<"0x0000"> : tensor<f32>', "3:26", "holds 2 bytes, expected 4"),
    ("%c = cirh.Const dense<1> : tensor<99999999999999999999xi32>", "3:26", "takes 3999"),
    ("%c = cirh.Const dense<> : tensor<1xf32>", "3:26", "holds 0 bytes, expected 4"),
    ("%c = cirh.Const dense<1.0> : tensor<f64>", "3:34", "cast to f32 first"),
    ("%c = cirh.Const dense<1.0> : tensor<?xf32>", "3:34", "must be static"),
    (
        "%c = cirh.Mul %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<5xf32>",
        "3:19",
        "expected tensor<4xf32>",
    ),
    ("%c = cirh.Mul %x : (tensor<4xf32>) -> tensor<4xf32>", "3:19", "Expected 2 operands"),
    ("%c = cirh.Mul %x, %x : (tensor<4xf32>) -> tensor<4xf32>", "3:28", "expected 1 operand types but had 2"),
    ("%c = cirh.Neg %x {slow = true} : (tensor<4xf32>) -> tensor<4xf32>", "3:19", "unknown attribute 'slow'"),
    ("%c = cirh.Softmax %x : (tensor<4xf32>) -> tensor<4xf32>", "3:23", "axis"),
    ("%c = cirh.Neg %y : (tensor<4xf32>) -> tensor<4xf32>", "3:19", "not defined: [%y]"),
    ("%c = cirh.Negate %x : (tensor<4xf32>) -> tensor<4xf32>", "3:22", "unknown op cirh.Negate; did"),
    ("%c = cirh.relu %x : (tensor<4xf32>) -> tensor<4xf32>", "3:20", "did you mean cirh.Relu?"),
    ("%c = cirh.Qq %x : (tensor<4xf32>) -> tensor<4xf32>", "3:18", "unknown op cirh.Qq; cgc-opt --list"),
    ("%c = cirh.Const dense<0> : tensor<4611686018427387904xi8>", "3:26", "expected 2147483648 or less"),
    ("%c = cirh.Arange {start = 250 : i64, step = 3 : i64} : () -> tensor<3xui8>", "3:22", "from 250 to 256"),
    (
        "%c = cirh.Arange {start = -9223372036854775808 : i64, step = 1 : i64} : () -> tensor<1xf32>",
        "3:22",
        "expected numbers from -2147483648 to 2147483647",
    ),
    ('%c = cirh.Neg %x {cs.name = "open} : (tensor<4xf32>)', "3:33", "does not end on its line"),
    (r'%c = cirh.Neg %x {cs.name = "a long string with a bad \q"}', "3:33", "has an escape other than"),
]


@pytest.mark.parametrize("start", ["%c = cirh.Const dense<", "%c = cirh.Neg %x {a.b = "])
def test_deep_nesting_is_refused(start: str) -> None:
    with pytest.raises(ModuleSyntaxError, match=r"model\.mlir: brackets are nested too deeply"):
        parse_module(body(start + "[" * 5000), "model.mlir")


@pytest.mark.parametrize(("line", "place", "message"), SYNTAX_FAULTS, ids=[f[2] for f in SYNTAX_FAULTS])
def test_errors_are_reported_at_their_lines(line: str, place: str, message: str) -> None:
    with pytest.raises(ModuleSyntaxError) as caught:
        parse_module(body(line), "model.mlir")
    assert str(caught.value).startswith(f"model.mlir:{place}: ")
    assert message in str(caught.value)
    assert line.strip()[:20] in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_fault_after_a_huge_constant_shows_a_short_line() -> None:
    line = f'%c = cirh.Const dense<"0x{"00" * 400_000}"> : tensor<100001xf32>'
    with pytest.raises(ModuleSyntaxError) as caught:
        parse_module(body(line))
    assert len(str(caught.value)) < 1000


def test_ops_in_the_wrong_order_are_refused() -> None:
    text = body(
        "%b = cirh.Neg %a : (tensor<4xf32>) -> tensor<4xf32>\n"
        "    %a = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>"
    )
    with pytest.raises(InvalidModuleError, match=r"cirh\.Neg: operand 0 is used before it is defined"):
        parse_module(text)


def test_errors_of_the_generic_form_name_node_and_source() -> None:
    text = body(
        '%b = "cirh.Neg"(%x) {cs.name = "head/neg", cs.source = "model.py:7"} : '
        "(tensor<4xf32>) -> tensor<5xf32>"
    )
    with pytest.raises(InvalidModuleError) as caught:
        parse_module(text)
    assert str(caught.value) == (
        "cirh.Neg: result type is tensor<5xf32>, expected tensor<4xf32> (at head/neg, model.py:7)"
    )


@pytest.mark.parametrize(
    "text",
    ["", "hello", "builtin.module {", "builtin.module { func.func @graph(%x: tensor<f32>) { } }", "test.op"],
)
def test_texts_that_are_no_module_are_refused(text: str) -> None:
    with pytest.raises(CompileError):
        parse_module(text)


def test_canonical_text_depends_only_on_the_computation() -> None:
    plain = parse_module(body("%a = cirh.Add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>"))
    dressed = parse_module(
        body(
            '%named = cirh.Add %in, %in {cs.layer = ["l"], cs.name = "n", cs.source = "f.py:1"} : '
            "(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>",
            "%in: tensor<4xf32>",
        )
    )
    other = parse_module(body("%a = cirh.Sub %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>"))
    assert canonical_text(plain) == canonical_text(dressed)
    assert canonical_text(plain) != canonical_text(other)
    assert {"cs.layer", "cs.name", "cs.source"} <= set(re.findall(r"cs\.\w+", print_module(dressed)))
    assert "%named" in print_module(dressed)
    assert canonical_text(parse_module(canonical_text(plain))) == canonical_text(plain)


def test_names_of_values_do_not_collide() -> None:
    block = Block(arg_types=[tensor_type((4,), "float32")])
    first = AddOp(block.args[0], block.args[0])
    second = AddOp(first, first)
    first.result.name_hint = second.result.name_hint = "sum"
    block.add_ops([first, second, ReturnOp()])
    module = ModuleOp([FuncOp("graph", ([tensor_type((4,), "float32")], []), Region(block))])
    text = print_module(module)
    assert print_module(parse_module(text)) == text


STEP = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


def both(item: ModuleOp | Attribute) -> tuple[str, str]:
    texts = []
    for printer_type in (TextPrinter, Printer):
        out = StringIO()
        printer = printer_type(stream=out)
        printer.print_op(item) if isinstance(item, ModuleOp) else printer.print_attribute(item)
        texts.append(out.getvalue())
    return texts[0], texts[1]


def test_a_training_step() -> None:
    ours, theirs = both(parse_module(STEP.read_text(encoding="utf-8")))
    assert ours == theirs


@given(st.text())
def test_strings(text: str) -> None:
    ours, theirs = both(StringAttr(text))
    assert ours == theirs


@given(st.lists(st.text(), max_size=3))
def test_layers(path: list[str]) -> None:
    ours, theirs = both(layer_attr(tuple(path)))
    assert ours == theirs


@given(st.lists(st.integers(0, 1 << 40), max_size=4))
def test_types(shape: list[int]) -> None:
    ours, theirs = both(TensorType(f32, shape))
    assert ours == theirs
