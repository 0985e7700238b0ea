"""Copies of modules, in a third of the time of `ModuleOp.clone`."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from cgc.cirh.base import CirhOp


def copied(module: ModuleOp) -> ModuleOp:
    """An equal module that shares attributes alone; ops must stand in the order of their data flow."""
    copy: ModuleOp = module.clone_without_regions()
    for block in module.body.blocks:
        made = Block()
        copy.body.add_block(made)
        for op in block.ops:
            made.add_op(_function(op) if isinstance(op, FuncOp) else op.clone())
    return copy


def _function(function: FuncOp) -> FuncOp:
    if len(function.body.blocks) != 1 or any(op.regions for op in function.body.block.ops):
        return function.clone()  # a declaration, or a body with branches
    copy: FuncOp = function.clone_without_regions()
    block = function.body.block
    made = Block(arg_types=block.arg_types)
    values: dict[int, SSAValue] = {}
    _add_values(values, block.args, made.args)
    for op in block.ops:
        made.add_op(_op(op, values))
    copy.body.add_block(made)
    return copy


def _op(op: Operation, values: dict[int, SSAValue]) -> Operation:
    """A copy of an op; values by the identities of those that they stand for."""
    types = [result.type for result in op.results]
    read = op.operand_values if isinstance(op, CirhOp) else op.operands
    operands = [values[id(operand)] for operand in read]
    copy: Operation
    if isinstance(op, CirhOp):
        copy = op.made_of(operands, types, op.properties, op.attributes)
    else:
        copy = type(op).create(
            operands=operands, result_types=types, properties=op.properties, attributes=op.attributes
        )
    copy.location = op.location
    _add_values(values, op.results, copy.results)
    return copy


def _add_values(values: dict[int, SSAValue], old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
    for before, after in zip(old, new, strict=True):
        if before.name_hint is not None:
            after.name_hint = before.name_hint
        values[id(before)] = after
