"""Dead code of LAIR: nests, ops of bodies, operands and declarations that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.traits import IsTerminator

from cgc.lair.dialect import GenericOp
from cgc.lair.generic import gives_every_loop, with_operands


@dataclass(frozen=True)
class LairDcePass(ModulePass):
    """Removes what no function returns, inputs that no body reads, and functions that are not called."""

    name = "lair-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place; functions with a body stay, and so do their arguments."""
        functions = [inner for inner in op.walk() if isinstance(inner, FuncOp)]
        for function in functions:
            if function.body.blocks:
                _clean(function.body.block)
        called = {inner.callee.root_reference.data for inner in op.walk() if isinstance(inner, CallOp)}
        for function in functions:
            if not function.body.blocks and function.sym_name.data not in called:
                Rewriter.erase_op(function)


def _clean(block: Block) -> None:
    for op in reversed(list(block.ops)):
        if op.has_trait(IsTerminator):
            continue
        if not any(result.uses for result in op.results):
            block.erase_op(op)
        elif isinstance(op, GenericOp):
            _clean_nest(op)


def _clean_nest(op: GenericOp) -> None:
    _clean(op.body.block)
    arguments = op.body.block.args
    first = len(op.inputs)
    outputs = [
        position
        for position, result in enumerate(op.results)
        if result.uses or arguments[first + position].uses
    ]
    inputs = [position for position in range(first) if arguments[position].uses]
    if len(inputs) + len(outputs) == len(op.operands):
        return
    maps = [op.maps[position] for position in (*inputs, *(first + place for place in outputs))]
    if gives_every_loop(maps, len(op.iterator_types)):
        _clean_nest(with_operands(op, inputs, {}, outputs))
