"""The printer of modules writes exactly what xDSL's own writes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp, StringAttr, TensorType, f32
from xdsl.ir import Attribute
from xdsl.printer import Printer

from cgc.cirh.base import layer_attr
from cgc.cirh.text import TextPrinter, parse_module

STEP = Path(__file__).parents[2] / "golden" / "cgc" / "fc_mnist_train.mlir"


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
