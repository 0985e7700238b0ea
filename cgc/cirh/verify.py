"""Verification of whole modules."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from cgc.errors import InvalidModuleError


def verify_module(module: ModuleOp) -> None:
    """Checks every op and that every value is defined before its uses.

    Raises:
        InvalidModuleError: names the op and the rule that it breaks.
    """
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except (VerifyException, ValueError) as error:
            raise InvalidModuleError(_describe(op, error)) from error
    for block in module.walk_blocks():
        _check_order(block)


def _describe(op: Operation, error: Exception) -> str:
    # xDSL appends the whole module to the message of an op; the cause is the op's own verifier
    cause = error.__cause__ if isinstance(error.__cause__, VerifyException) else error
    message = str(cause)
    where = [text for text in (getattr(op, "node_name", None), getattr(op, "source", None)) if text]
    prefix = "" if message.startswith(op.name) else f"{op.name}: "
    return prefix + message + (f" (at {', '.join(where)})" if where else "")


def _check_order(block: Block) -> None:
    parent = block.parent_op()
    if block.is_empty and parent is not None and not parent.has_trait(NoTerminator):
        raise InvalidModuleError(f"{parent.name}: the body is empty, expected at least func.return")
    defined: set[SSAValue] = set(block.args)
    for op in block.ops:
        for index, operand in enumerate(op.operands):
            if operand not in defined:
                raise InvalidModuleError(
                    f"{op.name}: operand {index} is used before it is defined; "
                    "ops must stand in the order of their data flow, and functions share no values"
                )
        defined.update(op.results)
