"""Interprets a module as a jax function: once, under tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import (
    OUTPUT_NAME,
    RESOURCE_NAME,
    alias_of,
    arguments_and_results,
    graph_function,
)
from cgc.cirh.precision import HalfFormat, half_format
from cgc.errors import LoweringError
from cgc.lowering.precision import given, lower_in, taken

Values = tuple[jax.Array, ...]
StepFunction = Callable[[Sequence[jax.Array], Sequence[jax.Array]], tuple[Values, Values]]
"""(state, inputs) -> (new state, outputs), all in the order of the step's interface."""


def step_function(module: ModuleOp) -> StepFunction:
    """The function that a module's `@graph` computes; pure, to be called under `jax.jit` or from a jax loop.

    Returns:
        A function (state, inputs) -> (new state, outputs): sequences in the order of
        `step_interface(module)`; state that the step does not replace is passed through. 64-bit integers
        are taken and returned in 32 bits (`cs_toolkit.step.device_dtype`).

    Raises:
        LoweringError: (when called) an op cannot be executed, or the number of values is wrong.
    """
    plan = _Plan(module)

    def step(state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> tuple[Values, Values]:
        values = _evaluate(plan.function, plan.arguments(state, inputs))
        new_state = tuple(
            old if index is None else values[index]
            for old, index in zip(state, plan.replacements, strict=True)
        )
        return new_state, tuple(values[index] for index in plan.output_indices)

    return step


class _Plan:
    """Where the arguments and results of `@graph` stand in the step's interface.

    Attributes:
        replacements: for every state argument, the result that replaces it, or None.
        output_indices: the result of every named output.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.function = graph_function(module)
        arguments, results = arguments_and_results(self.function)
        self._is_state = tuple(RESOURCE_NAME in argument.attributes for argument in arguments)
        self.replacements = tuple(
            alias_of(argument)
            for argument, is_state in zip(arguments, self._is_state, strict=True)
            if is_state
        )
        self.output_indices = tuple(
            index for index, result in enumerate(results) if OUTPUT_NAME in result.attributes
        )

    def arguments(self, state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """All arguments of `@graph` in its order.

        Raises:
            LoweringError: there are too few or too many.
        """
        state_count = sum(self._is_state)
        expected = (state_count, len(self._is_state) - state_count)
        if (len(state), len(inputs)) != expected:
            raise LoweringError(
                f"got {len(state)} state values and {len(inputs)} inputs, "
                f"expected {expected[0]} and {expected[1]}, one for each name in the step's interface"
            )
        rest_of_state, rest_of_inputs = iter(state), iter(inputs)
        return [next(rest_of_state) if is_state else next(rest_of_inputs) for is_state in self._is_state]


def _evaluate(function: FuncOp, arguments: Sequence[jax.Array]) -> Values:
    """The values that the function returns for these arguments."""
    block, half = function.body.block, half_format(function)
    values: dict[SSAValue, jax.Array] = dict(zip(block.args, taken(half, arguments), strict=True))
    for op in block.ops:
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, ReturnOp):
            return given(op.operands, operands)
        values.update(zip(op.results, _lowered(half, op, operands), strict=True))
    raise LoweringError("func.func @graph does not end in func.return")


def _lowered(half: HalfFormat, op: Operation, operands: Sequence[jax.Array]) -> Values:
    if not isinstance(op, CirhOp):
        raise LoweringError(f"{op.name} is no op of CIRH; a step consists of cirh ops and func.return")
    return lower_in(half, op, operands)
