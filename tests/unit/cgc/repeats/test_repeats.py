"""Repeated blocks of a step are rewritten once, with the result of the passes on the whole step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.interface import graph_function
from cgc.cirh.module import copy_module
from cgc.cirh.op_table import module_digest, tabulate_ops
from cgc.cirh.text import canonical_text, parse_module, print_module
from cgc.errors import PipelineError
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline
from cgc.repeats.expand import Item, expand_items
from cgc.repeats.find import _Families
from cgc.repeats.rewrite import rewrite
from cgc.repeats.shorten import ShortStep, shorten_step
from tests.programs.pytorch.residual_stack import Stack, sgd_step

from .repeated_steps import RESIDUAL, TENSOR, Emit, Part, RepeatedBlock, repeated_step


def shortened(module: ModuleOp) -> ShortStep | None:
    scanned = tabulate_ops(graph_function(module))
    assert scanned is not None
    return shorten_step(module, scanned, 3)


def rewritten(module: ModuleOp, pipeline: str = DEFAULT_PIPELINE) -> ModuleOp:
    return rewrite(module, tabulate_ops(graph_function(module)), pipeline)


def assert_as_whole(module: ModuleOp, pipeline: str = DEFAULT_PIPELINE) -> None:
    """The same text, names and lines included, and the module as it was."""
    before = print_module(module)
    whole = copy_module(module)
    run_pipeline(whole, pipeline)
    assert print_module(rewritten(module, pipeline)) == print_module(whole)
    assert print_module(module) == before


def no_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step may be rewritten as a whole."""
    monkeypatch.setattr("cgc.repeats.rewrite.copy_module", lambda module: pytest.fail("it was not shortened"))


@pytest.mark.parametrize("pipeline", [DEFAULT_PIPELINE, "cse,dce"])
def test_a_deep_step_is_rewritten_as_a_whole_one(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_whole(monkeypatch)
    assert_as_whole(repeated_step(20), pipeline)


def test_an_op_without_a_copy_in_the_block_that_others_share_is_no_repeat() -> None:
    step = tabulate_ops(graph_function(repeated_step(20)))
    assert step is not None
    for place in (-1, len(step.ops)):  # before the first op, after the last one
        families = _Families(step)
        families._add(10, 20)
        families._add(place, place + 10)
        assert families._consistent_repeats() is None


def test_a_network_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    ids, labels = torch.randint(0, 12, (2, 4, 6))
    step = sgd_step(
        Stack(13, width=8, tied=True),
        lambda model, x, y: functional.cross_entropy(model(x).reshape(-1, 12), y.reshape(-1)),
        (ids, labels),
    )
    no_whole(monkeypatch)
    assert_as_whole(step.module)


def test_passes_see_a_step_that_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(module: ModuleOp, pipeline: str) -> None:
        seen.append(len(graph_function(module).body.block.ops))
        run_pipeline(module, pipeline)

    monkeypatch.setattr("cgc.repeats.rewrite.run_pipeline", counted)
    rewritten(repeated_step(20))
    shallow, seen[:] = list(seen), []
    rewritten(repeated_step(40))
    assert seen == shallow
    assert sum(seen) < sum(1 for _ in repeated_step(40).walk())


def crossing(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    """The size of what the copy before has negated: the negation goes, between all copies alike."""
    return emit(ops.NegOp(emit(ops.MatMulOp(emit(ops.AbsOp(read[0])), read[1]))))


def alternating(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return emit(ops.NegOp(emit(ops.MulOp(read[0], read[1]))))


@pytest.mark.parametrize(
    ("forward", "is_once"), [(RESIDUAL.forward, True), (crossing, True), (alternating, False)]
)
def test_one_copy_less_is_rewritten_where_copies_do_not_meet_alike(
    forward: Part, is_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ModuleOp] = []

    def counted(module: ModuleOp, pipeline: str) -> None:
        seen.append(module)
        run_pipeline(module, pipeline)

    monkeypatch.setattr("cgc.repeats.rewrite.run_pipeline", counted)
    module = repeated_step(20, RepeatedBlock(forward, RESIDUAL.backward))
    rewritten(module)
    assert (len(seen) == 1) == is_once
    assert_as_whole(module)


def without_gradient(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return emit(ops.ConstOp.from_array(np.zeros((4, 4), np.float32)))


def test_a_collector_of_values_that_became_one() -> None:
    """The gradients of all copies but the last are one constant, and so are their norms."""
    assert_as_whole(repeated_step(20, RepeatedBlock(without_gradient, without_gradient)))


def scaled(emit: Emit, copy: int, read: Sequence[SSAValue]) -> SSAValue:
    made = RESIDUAL.forward(emit, copy, read)
    return emit(ops.MulOp(made, read[2]))


def of_another_seed_only(emit: Emit, copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return RESIDUAL.forward(emit, 1000 + copy, read)


def of_the_input(emit: Emit, copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return RESIDUAL.forward(emit, copy, (read[3], *read[1:]))


@pytest.mark.parametrize("change", [scaled, of_another_seed_only, of_the_input])
def test_a_copy_that_differs(change: Callable[[Emit, int, Sequence[SSAValue]], SSAValue]) -> None:
    assert_as_whole(repeated_step(20, change=change))


def numbered(emit: Emit, copy: int, read: Sequence[SSAValue]) -> SSAValue:
    factor = emit(ops.BroadcastInDimOp(emit(ops.ConstOp.from_array(1.0 / (1 + copy))), (4, 4), ()))
    return emit(ops.MulOp(RESIDUAL.forward(emit, copy, read), factor))


def test_copies_that_all_differ_are_rewritten_one_by_one() -> None:
    module = repeated_step(20, RepeatedBlock(numbered, RESIDUAL.backward))
    assert shortened(module) is None
    assert_as_whole(module)


def test_a_shallow_step_is_not_shortened() -> None:
    assert shortened(repeated_step(7)) is None


def opposite(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return emit(ops.NegOp(read[0]))


def one_more(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    one = emit(ops.ConstOp.from_array(np.ones((4, 4), np.float32)))
    zero = emit(ops.MulOp(emit(ops.SubOp(one, one)), read[1]))
    return emit(ops.AddOp(read[0], emit(ops.AddOp(one, zero))))


def nothing(emit: Emit, _copy: int, read: Sequence[SSAValue]) -> SSAValue:
    return emit(ops.SubOp(read[0], read[0]))


@pytest.mark.parametrize("copies", [20, 21])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(opposite, opposite), (one_more, RESIDUAL.backward), (RESIDUAL.forward, opposite), (nothing, nothing)],
)
def test_rewrites_may_depend_on_the_number_of_copies(forward: Part, backward: Part, copies: int) -> None:
    """Negations that cancel each other out, numbers that add up, values that become one."""
    assert_as_whole(repeated_step(copies, RepeatedBlock(forward, backward)))


def test_an_error_of_the_passes_is_that_of_the_whole_step() -> None:
    with pytest.raises(PipelineError, match="unknown pass 'nope'"):
        rewritten(repeated_step(20), "canonicalize,nope")


UNARY = (ops.NegOp, ops.ReluOp, ops.TanhOp, ops.AbsOp)
BINARY = (ops.AddOp, ops.SubOp, ops.MulOp, ops.MaxOp)
NUMBERS = (1.0, -1.0, -0.0, 2.0)
OTHERS = 2 + len(NUMBERS)
"""Kinds of ops besides: a product of matrices, a transpose there and back, numbers."""


@st.composite
def blocks(draw: st.DrawFn) -> tuple[RepeatedBlock, Part]:
    """A block of random ops, each of which reads some of what was there before it, and one that differs."""

    def part(values: int) -> list[tuple[int, int, int]]:
        kinds = len(UNARY) + len(BINARY) + OTHERS
        made = range(draw(st.integers(2, 8)))
        return [
            (
                draw(st.integers(0, kinds - 1)),
                draw(st.integers(0, values + i - 1)),
                draw(st.integers(0, values + i - 1)),
            )
            for i in made
        ]

    forward, backward = part(4), part(4)
    other = [(kind, *draw(st.permutations((first, second)))) for kind, first, second in forward]
    place = draw(st.integers(0, len(other) - 1))
    other[place] = (other[place][0], draw(st.integers(0, place + 3)), other[place][2])

    def emitted(emit: Emit, plan: list[tuple[int, int, int]], known: list[SSAValue]) -> SSAValue:
        for kind, first, second in plan:
            left, right = known[first], known[second]
            if kind < len(UNARY):
                known.append(emit(UNARY[kind](left)))
            elif kind < len(UNARY) + len(BINARY):
                known.append(emit(BINARY[kind - len(UNARY)](left, right)))
            elif kind == len(UNARY) + len(BINARY):
                known.append(emit(ops.MatMulOp(left, right)))
            elif kind == len(UNARY) + len(BINARY) + 1:
                known.append(emit(ops.TransposeOp(emit(ops.TransposeOp(left, (1, 0))), (1, 0))))
            else:
                number = NUMBERS[kind - len(UNARY) - len(BINARY) - 2]
                known.append(emit(ops.ConstOp.from_array(np.full((4, 4), number, np.float32))))
        return known[-1]

    def part_of(plan: list[tuple[int, int, int]]) -> Part:
        return lambda emit, _, read: emitted(emit, plan, [v for v in read if v.type == TENSOR])

    return RepeatedBlock(part_of(forward), part_of(backward)), part_of(other)


@settings(suppress_health_check=list(HealthCheck))
@given(blocks(), st.integers(13, 16), st.integers(0, 15), st.booleans())
def test_random_blocks(found: tuple[RepeatedBlock, Part], copies: int, at: int, is_changed: bool) -> None:
    block, change = found
    assert_as_whole(repeated_step(copies, block, change if is_changed else None, at))


def items(text: str) -> list[Item]:
    """`a0 b0 x` as items; without a number it is no copy."""
    return [Item(ord(word[0]), int(word[1:]) if word[1:] else None) for word in text.split()]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("x a0 b0 a1 b1 a2 b2 y", "x a0 b0 a1 b1 a2 b2 a3 b3 a4 b4 y"),
        ("a2 b2 x a1 b1 a0 b0", "a4 b4 x a3 b3 a2 b2 a1 b1 a0 b0"),
        ("a0 b1 a1 b2 a2", "a0 b1 a1 b2 a2 b3 a3 b4 a4"),
        ("x y", "x y"),
    ],
)
def test_copies_come_in_where_they_follow_each_other(short: str, long: str) -> None:
    found, _ = expand_items(items(short), 2)
    assert found == items(long)


@pytest.mark.parametrize("text", ["a0 x a1 y a2", "a0 b0 b1 a1 x a2 b2", "a1 x a0 y a2"])
def test_copies_in_no_order_do_not_grow(text: str) -> None:
    _, kept = expand_items(items(text), 2)
    assert ord("a") not in kept


def test_a_digest_distinguishes_modules_as_their_canonical_text_does() -> None:
    plain, rebuild = repeated_step(3), parse_module(canonical_text(repeated_step(3)))
    others = [
        repeated_step(4),
        repeated_step(3, change=scaled),
        repeated_step(3, change=of_another_seed_only),
        repeated_step(3, change=of_the_input),
        repeated_step(3, RepeatedBlock(numbered, RESIDUAL.backward)),
    ]
    renamed = parse_module(print_module(plain).replace("block1/kernel", "block_1/kernel"))
    digests = [
        module_digest(one, tabulate_ops(graph_function(one))) for one in (plain, rebuild, *others, renamed)
    ]
    texts = [canonical_text(one) for one in (plain, rebuild, *others, renamed)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(set(texts)) == 7
