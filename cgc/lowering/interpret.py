"""Interpret a module as a JAX function, once, under tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import jax
from jax import export, lax
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import OUTPUT_NAME, RESOURCE_NAME, alias_of, arguments_and_results, graph_function
from cgc.cirh.op_table import OpTable, tabulate_ops
from cgc.cirh.ops import UpdateTokenLoopOp
from cgc.cirh.types import HalfFormat, half_format
from cgc.errors import LoweringError
from cgc.lowering.loops import Loop, Read, find_loops
from cgc.lowering.precision import lower_in, to_computed, to_declared
from cgc.lowering.token_loop import Round, TokenLoop, find_token_loop, run_token_loop
from cs_toolkit.step import StepInterface, device_dtype

Values = tuple[jax.Array, ...]

# (state, inputs) -> (new state, outputs), all in the order of the step's interface.
StepFunction = Callable[[Sequence[jax.Array], Sequence[jax.Array]], tuple[Values, Values]]


def step_function(module: ModuleOp) -> StepFunction:
    """Return the function that a module's `@graph` computes; pure, for `jax.jit` or a jax loop.

    Returns:
        A function (state, inputs) -> (new state, outputs): sequences in the order of
        `step_interface(module)`; state that the step does not replace is passed through. 64-bit integers
        are passed and returned in 32 bits (`cs_toolkit.step.device_dtype`).

    Raises:
        LoweringError: (when called) an op cannot be executed, or the number of values is wrong.
    """
    plan = _Plan(module)

    def step(state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> tuple[Values, Values]:
        values = _evaluate(plan, plan.arguments(state, inputs))
        new_state = tuple(
            old if index is None else values[index]
            for old, index in zip(state, plan.replacements, strict=True)
        )
        return new_state, tuple(values[index] for index in plan.output_indices)

    return step


# Platforms that an executable runs on.
PLATFORMS = ("cpu", "cuda")


def export_step(module: ModuleOp, interface: StepInterface) -> bytes:
    """Lower a module for all platforms and serialize it; equal modules give equal bytes.

    Any process with JAX can run the result (`cs_system.engine.executable`). JAX reads exports of at least the
    last six months. The artifact's key has the version of JAX nevertheless, because results of XLA may change
    in the last place.

    Args:
        module: the step.
        interface: its interface (`cgc.cirh.interface.step_interface`).

    Raises:
        LoweringError: an op, or a value in it, cannot be executed.
    """
    struct: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # untyped in JAX
    state, inputs = (
        tuple(struct(spec.shape, device_dtype(spec.dtype)) for spec in specs)
        for specs in (interface.state, interface.inputs)
    )
    with _no_source_locations():
        exported = export.export(jax.jit(step_function(module)), platforms=PLATFORMS)(state, inputs)
        return bytes(exported.serialize())


@contextlib.contextmanager
def _no_source_locations() -> Iterator[None]:
    """Keep paths and line numbers of the caller out of the bytes."""
    setting = "jax_traceback_in_locations_limit"
    update: Callable[[str, int], None] = jax.config.update
    before = getattr(jax.config, setting)
    update(setting, 0)
    try:
        yield
    finally:
        update(setting, before)


class _Plan:
    """The arguments and results of `@graph` in the step's interface, and its loops.

    Attributes:
        step: the ops.
        token_loop: the loop over tokens, if the step has one.
        loops: of the ops; none in a step with a loop over tokens.
        replacements: for every state argument, the result that replaces it, or None.
        output_indices: the result of every named output.
    """

    def __init__(self, module: ModuleOp) -> None:
        self.function = graph_function(module)
        self.step = _tabulate(self.function)
        arguments, results = arguments_and_results(self.function)
        self._is_state = tuple(RESOURCE_NAME in argument.attributes for argument in arguments)
        self.replacements = tuple(
            alias_of(argument)
            for argument, is_state in zip(arguments, self._is_state, strict=True)
            if is_state
        )
        weights = [index for index, is_state in enumerate(self._is_state) if is_state]
        self.token_loop = find_token_loop(self.step)
        self.loops = find_loops(self.step, weights) if self.token_loop is None else []
        self.output_indices = tuple(
            index for index, result in enumerate(results) if OUTPUT_NAME in result.attributes
        )

    def arguments(self, state: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return all arguments of `@graph` in its order.

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


def _evaluate(plan: _Plan, arguments: Sequence[jax.Array]) -> Values:
    """Return the values that the function returns for these arguments."""
    half, step = half_format(plan.function), plan.step
    values = _Computed(to_computed(half, arguments))
    if plan.token_loop is None:
        _run_all(plan, half, values)
    else:
        _run_token_loop(plan.token_loop, step, half, values)
    terminator = plan.function.body.block.last_op
    assert terminator is not None, "checked by `_tabulate`"
    return to_declared(terminator.operands, [values[number] for number in step.returned])


def _run_all(plan: _Plan, half: HalfFormat, values: _Computed) -> None:
    """Run the ops in order, and their loops."""
    step, position = plan.step, 0
    for loop in (*plan.loops, None):
        end = len(step.ops) if loop is None else loop.start
        _run_ops(range(position, end), step, half, values)
        if loop is not None:
            _run_ops(loop.before, step, half, values)
            _run_loop(loop, step, half, values)
            _run_ops(loop.after, step, half, values)
            position = loop.end


def _tabulate(function: FuncOp) -> OpTable:
    """Return the table of the ops of a function.

    Raises:
        LoweringError: an op is not of CIRH or reads a later value, or the last op is not a return.
    """
    *ops, last = function.body.block.ops
    for op in ops:
        if not isinstance(op, CirhOp):
            raise LoweringError(
                f"{op.name} is not an op of CIRH; a step consists of cirh ops and func.return"
            )
    if not isinstance(last, ReturnOp):
        raise LoweringError("func.func @graph does not end in func.return")
    step = tabulate_ops(function)
    if step is None:
        raise LoweringError("an op of func.func @graph reads a value that a later one makes")
    return step


class _Computed:
    """The computed values of a step, by number; those of the copies in a loop are rows of stacked arrays."""

    def __init__(self, arguments: Sequence[jax.Array]) -> None:
        self._arrays = dict(enumerate(arguments))
        self._stack_rows: dict[int, tuple[jax.Array, int]] = {}

    def __getitem__(self, number: int) -> jax.Array:
        if number not in self._arrays:
            stack, position = self._stack_rows[number]
            self._arrays[number] = lax.index_in_dim(stack, position, keepdims=False)
        return self._arrays[number]

    def __setitem__(self, number: int, array: jax.Array) -> None:
        self._arrays[number] = array

    def copy(self) -> _Computed:
        """Return an independent collection of the same values."""
        copy = _Computed(())
        copy._arrays, copy._stack_rows = dict(self._arrays), dict(self._stack_rows)
        return copy

    def add_stack(self, numbers: Iterable[int], stack: jax.Array) -> None:
        """Add values that are the rows of an array."""
        for row, number in enumerate(numbers):
            self._stack_rows.setdefault(number, (stack, row))

    def stack(self, numbers: Sequence[int]) -> jax.Array:
        """Stack values as rows of an array; consecutive rows of another stack are one slice of it."""
        parts: list[jax.Array] = []
        rest = list(numbers)
        while rest:
            length, direction = self._contiguous_rows(rest)
            if length == 1:
                parts.append(lax.expand_dims(self[rest[0]], [0]))
            else:
                stack = self._stack_rows[rest[0]][0]
                low, high = sorted(self._stack_rows[number][1] for number in (rest[0], rest[length - 1]))
                part = lax.slice_in_dim(stack, low, high + 1)
                parts.append(part if direction > 0 else lax.rev(part, [0]))
            del rest[:length]
        stacked = parts[0] if len(parts) == 1 else lax.concatenate(parts, 0)
        self.add_stack(numbers, stacked)
        return stacked

    def _contiguous_rows(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Return how many of the first values are consecutive rows of one stack, and their order: 1 or -1."""
        direction = 0
        for length, (current, following) in enumerate(pairwise(map(self._stack_rows.get, numbers)), 1):
            if current is None or following is None or current[0] is not following[0]:
                return length, direction
            distance = following[1] - current[1]
            if abs(distance) != 1 or direction not in (0, distance):
                return length, direction
            direction = distance
        return len(numbers), direction


def _run_ops(positions: Iterable[int], step: OpTable, half: HalfFormat, values: _Computed) -> None:
    for position in positions:
        results = lower_in(half, step.ops[position], [values[number] for number in step.operands(position)])
        for number, array in zip(step.results(position), results, strict=True):
            values[number] = array


def _run_token_loop(loop: TokenLoop, step: OpTable, half: HalfFormat, values: _Computed) -> None:
    """Run the ops before a loop over tokens, its rounds, and the ops after it, which read the last round."""
    _run_ops(loop.before, step, half, values)
    end = step.ops[loop.update]
    assert isinstance(end, UpdateTokenLoopOp)
    _, _, update, stop = step.operands(loop.update)

    def begin(own: _Computed, tokens: jax.Array, index: jax.Array) -> None:
        for number, array in zip(step.results(loop.start), (tokens, index[:, None]), strict=True):
            own[number] = array

    def body(now: Round) -> jax.Array:
        own = values.copy()
        begin(own, now.tokens, now.last)
        _run_ops(loop.body, step, half, own)
        return own[update]

    last = run_token_loop(end, values[step.operands(loop.start)[0]], values[stop], body)
    begin(values, last.previous_tokens, last.previous_last)
    if loop.reads_body:
        _run_ops(loop.body, step, half, values)
    values[step.results(loop.update)[0]] = last.tokens
    _run_ops(loop.after, step, half, values)


def _run_loop(loop: Loop, step: OpTable, half: HalfFormat, values: _Computed) -> None:
    """Run a loop as one scan over its copies."""
    ops = [step.ops[position] for position in loop.positions[:, 0].tolist()]
    read_by_all = {read.number for reads in loop.reads for read in reads if read.kind == "shared"}
    shared = {number: values[number] for number in read_by_all}

    def body(carried: tuple[Values, ...], stacked: Values) -> tuple[tuple[Values, ...], Values]:
        results: list[Values] = []

        def value(read: Read) -> jax.Array:
            match read.kind:
                case "shared":
                    return shared[read.number]
                case "stacked":
                    return stacked[read.number]
                case "carried":
                    return carried[read.number][0]
                case "same":
                    return results[read.number][read.result]

        for op, reads in zip(ops, loop.reads, strict=True):
            results.append(lower_in(half, op, [value(read) for read in reads]))
        later = tuple(
            (*earlier[1:], results[carry.family][carry.result])
            for earlier, carry in zip(carried, loop.carries, strict=True)
        )
        return later, tuple(results[family][result] for family, result in loop.stacked)

    first = tuple(tuple(values[number] for number in carry.initial) for carry in loop.carries)
    rows = tuple(map(values.stack, loop.stacks))
    carried, stacks = lax.scan(body, first, rows, length=loop.copies)
    for (family, result), stack in zip(loop.stacked, stacks, strict=True):
        values.add_stack((step.first_result[loop.positions[family]] + result).tolist(), stack)
    for family, result, carry in loop.last:
        values[int(step.first_result[loop.positions[family, -1]]) + result] = carried[carry][-1]
