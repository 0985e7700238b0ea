"""Verify and copy whole modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from cgc.cirh.base import CirhOp
from cgc.cirh.types import require_tensor
from cgc.errors import InvalidModuleError, InvalidOpError


def verify_module(module: ModuleOp) -> None:
    """Check every op, and that every value is defined before its uses.

    Raises:
        InvalidModuleError: names the op and the rule that it breaks.
    """
    Verifier().verify(module)


class Verifier:
    """Verifies a module repeatedly while it changes; ops that have not changed are checked once."""

    def __init__(self) -> None:
        # A pass changes few ops, and checking one takes 20 times as long as seeing that it has not changed.
        self._good: dict[Operation, _OpState] = {}

    def verify(self, module: ModuleOp) -> None:
        """Verify the module as `verify_module` does."""
        good: dict[Operation, _OpState] = {}
        for op in module.walk():
            checked = _op_state(op)
            if checked is None or checked != self._good.get(op):
                try:
                    op.verify(verify_nested_ops=False)
                except (VerifyException, ValueError) as error:
                    raise InvalidModuleError(_describe(op, error)) from error
            if checked is not None:
                good[op] = checked
        self._good = good
        for function in module.body.ops if module.body.blocks else ():
            if isinstance(function, FuncOp):
                # Types of unused arguments are checked nowhere else.
                for index, kind in enumerate(function.function_type.inputs):
                    try:
                        require_tensor(kind)
                    except InvalidOpError as error:
                        raise InvalidModuleError(
                            f"func.func @{function.sym_name.data}: argument {index}: {error}"
                        ) from error
        for block in module.body.blocks:
            _check_order(block)


class _OpState(NamedTuple):
    """Everything that the verifier of an op depends on."""

    operands: Sequence[Attribute]
    results: Sequence[Attribute]
    properties: dict[str, Attribute]
    attributes: dict[str, Attribute]


def _op_state(op: Operation) -> _OpState | None:
    """Return the state of an op that its verifier depends on; None if that includes its position or body."""
    if not isinstance(op, CirhOp) or op.regions or op.next_op is None:
        return None
    return _OpState(op.operand_types, op.result_types, dict(op.properties), dict(op.attributes))


def _describe(op: Operation, error: Exception) -> str:
    # xDSL appends the whole module to the message of an op; the cause is the op's own verifier
    cause = error.__cause__ if isinstance(error.__cause__, VerifyException) else error
    message = str(cause)
    where = [text for text in (getattr(op, "node_name", None), getattr(op, "source", None)) if text]
    prefix = "" if message.startswith(op.name) else f"{op.name}: "
    return prefix + message + (f" (at {', '.join(where)})" if where else "")


def _check_order(block: Block, outer: tuple[set[SSAValue], ...] = ()) -> None:
    """Check a block and those inside its ops, which may use the values defined so far.

    Args:
        block: the block.
        outer: values defined in the enclosing blocks.
    """
    parent = block.parent_op()
    if block.is_empty and parent is not None and not parent.has_trait(NoTerminator):
        raise InvalidModuleError(f"{parent.name}: the body is empty, expected at least func.return")
    defined: set[SSAValue] = set(block.args)
    visible = (*outer, defined)
    for op in block.ops:
        for index, operand in enumerate(op.operands):
            if not any(operand in values for values in visible):
                raise InvalidModuleError(
                    f"{op.name}: operand {index} is used before it is defined; "
                    "ops must stand in the order of their data flow, and functions share no values"
                )
        for inner in (inner for region in op.regions for inner in region.blocks):
            _check_order(inner, () if op.has_trait(IsolatedFromAbove) else visible)
        defined.update(op.results)


def copy_module(module: ModuleOp) -> ModuleOp:
    """Return an equal module that shares only attributes; ops must be in the order of their data flow."""
    # Takes a third of the time of `ModuleOp.clone`.
    copy: ModuleOp = module.clone_without_regions()
    for block in module.body.blocks:
        made = Block()
        copy.body.add_block(made)
        for op in block.ops:
            made.add_op(_copy_function(op) if isinstance(op, FuncOp) else op.clone())
    return copy


def _copy_function(function: FuncOp) -> FuncOp:
    if len(function.body.blocks) != 1 or any(op.regions for op in function.body.block.ops):
        return function.clone()  # a declaration, or a body with branches
    copy: FuncOp = function.clone_without_regions()
    block = function.body.block
    made = Block(arg_types=block.arg_types)
    values: dict[int, SSAValue] = {}
    _add_values(values, block.args, made.args)
    for op in block.ops:
        made.add_op(_copy_op(op, values))
    copy.body.add_block(made)
    return copy


def _copy_op(op: Operation, values: dict[int, SSAValue]) -> Operation:
    """Copy an op; `values` maps identities of the old values to the new ones."""
    types = [result.type for result in op.results]
    read = op.operand_values if isinstance(op, CirhOp) else op.operands
    operands = [values[id(operand)] for operand in read]
    copy: Operation
    if isinstance(op, CirhOp):
        copy = op.create_unchecked(operands, types, op.properties, op.attributes)
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
