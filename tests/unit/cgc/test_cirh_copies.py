"""Copies of modules are equal to what they are of, and apart from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgc.cirh.interface import graph_function
from cgc.cirh.module import copied, verify_module
from cgc.cirh.text import parse_module, print_module
from cgc.passes.pipeline import run_pipeline

STEP = (Path(__file__).parents[2] / "golden" / "cgc" / "fc_mnist_train.mlir").read_text(encoding="utf-8")


@pytest.mark.parametrize("passes", ["", "default", "lower-to-lair"])
def test_a_copy_has_the_text_of_its_original_names_and_origins_included(passes: str) -> None:
    module = parse_module(STEP)
    run_pipeline(module, passes)  # loop nests have regions, and functions without a body
    before = print_module(module)
    copy = copied(module)
    verify_module(copy)
    assert print_module(copy) == before
    assert not set(module.walk()) & set(copy.walk())


def test_what_happens_to_a_copy_does_not_happen_to_the_original() -> None:
    module = parse_module(STEP)
    before = print_module(module)
    copy = copied(module)
    run_pipeline(copy)
    for op in graph_function(copy).body.block.ops:
        op.attributes.clear()
    assert print_module(module) == before != print_module(copy)
