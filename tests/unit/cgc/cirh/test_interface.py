from __future__ import annotations

import pytest

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.errors import InvalidModuleError
from cs_toolkit.step import TensorSpec

STEP = '%step: tensor<i64> {tf.resource_name = "state.global_step", tf.aliasing_output = 1 : i64}'
X = '%x: tensor<8x4xf32> {cs.input_name = "input_0"}'
LABELS = '%l: tensor<8xi32> {cs.input_name = "input_1"}'
W = '%w: tensor<4xbf16> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64}'
MEAN = '%m: tensor<4xf32> {tf.resource_name = "state.optimizer.mean"}'
LOSS = '%c: tensor<f32> {tf.resource_name = "state.model.c"}'


def text_of(arguments: list[str], results: list[tuple[str, str, str]], name: str = "graph") -> str:
    """results: value, type, attribute dictionary."""
    types = ", ".join(f"{type_} {attributes}" for _, type_, attributes in results)
    values = ", ".join(value for value, _, _ in results)
    returned = f"func.return {values} : {', '.join(t for _, t, _ in results)}" if results else "func.return"
    return f"builtin.module {{ func.func @{name}({', '.join(arguments)}) -> ({types}) {{\n{returned}\n}} }}"


NEW_W = ("%w", "tensor<4xbf16>", "")
NEW_STEP = ("%step", "tensor<i64>", "")
OUTPUT = ("%c", "tensor<f32>", '{cs.output_name = "output_loss"}')


def test_interface_of_a_step() -> None:
    module = parse_module(text_of([W, X, LOSS, STEP, LABELS, MEAN], [NEW_W, NEW_STEP, OUTPUT]))
    interface = step_interface(module)
    assert interface.inputs == (
        TensorSpec("input_0", "float32", (8, 4)),
        TensorSpec("input_1", "int32", (8,)),
    )
    assert [spec.name for spec in interface.state] == [
        "state.model.w",
        "state.model.c",
        "state.global_step",
        "state.optimizer.mean",
    ]
    assert interface.outputs == (TensorSpec("output_loss", "float32", ()),)
    assert interface.updated == ("state.model.w", "state.global_step")


def test_a_replaced_state_may_also_be_an_output() -> None:
    named = ("%w", "tensor<4xbf16>", '{cs.output_name = "output_w"}')
    interface = step_interface(parse_module(text_of([W], [named])))
    assert interface.updated == ("state.model.w",)
    assert interface.outputs == (TensorSpec("output_w", "bfloat16", (4,)),)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", 24), ("bfloat16", 12), ("bool", 6), ("int64", 48), ("uint8", 6)]
)
def test_size_of_a_tensor(dtype: str, expected: int) -> None:
    assert TensorSpec("t", dtype, (2, 3)).nbytes == expected


FAULTS = [
    ([X, '%y: tensor<f32> {cs.input_name = "input_0"}'], [], "'input_0', expected 'input_1'"),
    ([LABELS], [], "expected 'input_0'; inputs are numbered in batch order from 0"),
    (["%x: tensor<f32>"], [], "argument 0 of @graph has neither of tf.resource_name and cs.input_name"),
    (
        ['%x: tensor<f32> {cs.input_name = "input_0", tf.resource_name = "state.model.x"}'],
        [],
        "argument 0 of @graph has both of",
    ),
    (['%x: tensor<f32> {tf.resource_name = "state.model."}'], [], "expected state.model.<variable>"),
    (['%x: tensor<f32> {tf.resource_name = "weight"}'], [], "is 'weight', expected state.model.<variable>"),
    (["%x: tensor<f32> {tf.resource_name = 3 : i64}"], [], "is 3 : i64, expected a non-empty string"),
    (['%x: tensor<f64> {cs.input_name = "input_0"}'], [], "cast to f32 first"),
    (['%x: tensor<?xf32> {cs.input_name = "input_0"}'], [], "shapes must be static"),
    ([LOSS, LOSS.replace("%c", "%d")], [], "the name 'state.model.c' is used twice"),
    ([W], [], "tf.aliasing_output is 0, expected"),
    ([W, W.replace("%w", "%v").replace("model.w", "model.v")], [NEW_W], "replaces both state.model.w and"),
    (
        [W, LOSS],
        [("%c", "tensor<f32>", "")],
        "result 0 of @graph has type tensor<f32>, expected tensor<4xbf16>, the type of state.model.w",
    ),
    ([W.replace("0 : i64", '"0"')], [NEW_W], "expected an integer"),
    ([LOSS], [("%c", "tensor<f32>", "")], "result 0 of @graph replaces no state and has no cs.output_name"),
    ([LOSS], [("%c", "tensor<f32>", '{cs.output_name = "loss"}')], "expected 'output_<name>'"),
    ([LOSS], [OUTPUT, OUTPUT], "the name 'output_loss' is used twice"),
    (['%x: tensor<f32> {cs.input_name = "input_0", tf.aliasing_output = 0 : i64}'], [], "batch input cannot"),
]


@pytest.mark.parametrize(("arguments", "results", "message"), FAULTS, ids=[f[2][:40] for f in FAULTS])
def test_rules_of_the_interface(
    arguments: list[str], results: list[tuple[str, str, str]], message: str
) -> None:
    with pytest.raises(InvalidModuleError) as caught:
        step_interface(parse_module(text_of(arguments, results)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("builtin.module {}", "module holds nothing, expected one function, func.func @graph"),
        (text_of([], [], "main"), "module holds @main, expected"),
        (text_of([], []) + text_of([], [], "f"), "builtin.module"),
        ("builtin.module { func.func private @graph() -> () }", "expected a body of one block"),
    ],
)
def test_a_step_is_one_function(text: str, message: str) -> None:
    with pytest.raises(InvalidModuleError, match=message.replace("(", r"\(")):
        step_interface(parse_module(text))
