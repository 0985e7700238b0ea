"""Rewrite a training step for micro-batches: the part before the sums over the batch, and the part after.

Values of the whole step are computed in one or more forms: `WHOLE`, as in the whole step; `SOME`, for the
samples of a micro-batch, or its share of a sum; cut out of a whole value along a dimension (an integer); and
`TOTAL`, combined from the shares of all micro-batches. Values that depend only on the batch, but on all of
its samples, such as the number of unmasked words, are computed from the whole batch wherever they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, SSAValue

from cgc.cirh import ops as cirh
from cgc.cirh.base import CirhOp, int_attr, ints_attr
from cgc.cirh.interface import INPUT_NAME, arguments_and_results, build_graph_function, graph_function
from cgc.cirh.random import SeededRandomOp
from cgc.cirh.traits import Elements
from cgc.cirh.types import INTEGERS, Tensor, dtype_name, element_count, shape_of, tensor_of, tensor_type
from cgc.errors import CompileError
from cgc.kernels.program import Program
from cgc.layers.micro_rules import SLICED, Part, Parts, apply_rule, pointwise, same_part

# Attribute of the ops whose shares are combined: "sum", "min" or "max".
TOTAL_OF = "cs.total"

Form = Literal["whole", "some", "total"] | int
WHOLE: Form = "whole"
SOME: Form = "some"
TOTAL: Form = "total"

_SHARES = ("sum", "min", "max")


class NotSplitError(CompileError):
    """A step that needs the whole batch at once."""


@dataclass(frozen=True)
class MicroStep:
    """A step that computes a micro-batch, and the part that follows all of them.

    Attributes:
        module: of the step. Its inputs are those of the whole step with some of the samples, then
            `whole_inputs`, then the number of the micro-batch if `is_numbered`.
        count: number of micro-batches.
        cut_inputs: positions of the tensors of a batch of which the step gets some samples.
        whole_inputs: positions of the tensors of the batch that the step needs whole as well.
        is_numbered: the step reads the number of its micro-batch, from 0.
    """

    module: ModuleOp
    count: int
    cut_inputs: tuple[int, ...]
    whole_inputs: tuple[int, ...]
    is_numbered: bool


def micro_step(module: ModuleOp, count: int) -> MicroStep:
    """Rewrite a training step for a number of micro-batches.

    Args:
        module: the step as the passes leave it; it is not changed.
        count: 2 or more; divides the samples of the batch.

    Raises:
        NotSplitError: the samples depend on each other, as in a batch norm.
    """
    copy = module.clone()
    sum_squares_of_samples(copy)
    move_scales_after_sums(copy)
    return _Rewriter(copy, count).rewrite()


class _Rewriter:
    """Rewrites a step in three passes: parts of all values, needed forms of all values, copies of all ops."""

    def __init__(self, module: ModuleOp, count: int) -> None:
        self._function = graph_function(module)
        self._program, self._count = Program(module), count
        self._parts: dict[SSAValue, Part] = {}
        # Parts of the operands that the rule of an op requires.
        self._operand_parts: dict[CirhOp, Parts] = {}
        # Values that depend on the batch and constants only.
        self._input_only: set[SSAValue] = set()
        # Row indices -> number of rows of the batch that they pick from.
        self._rows: dict[SSAValue, int] = {}
        self._with_own_rows: set[CirhOp] = set()
        self._needed: dict[SSAValue, set[Form]] = {}
        self._new_values: dict[tuple[SSAValue, Form], SSAValue] = {}
        self._block = Block()
        self._number: SSAValue | None = None

    def rewrite(self) -> MicroStep:
        """Return the rewritten step."""
        self._decide_parts()
        self._collect_forms()
        whole_inputs = self._add_arguments()
        for op in self._program.ops:
            self._emit(op)
        return self._finish(whole_inputs)

    # Which part of the batch each value is

    def _decide_parts(self) -> None:
        """Decide the part of every value, in program order."""
        program = self._program
        self._parts.update(dict.fromkeys(program.state, "whole"))
        for value in program.inputs:
            shape = shape_of(value)
            self._parts[value] = 0 if shape and shape[0] == program.batch_size else "whole"
            self._input_only.add(value)
        for op in program.ops:
            parts = tuple(self._parts[value] for value in op.operands)
            is_input_only = op.TRAITS.elements is not Elements.MADE and all(
                value in self._input_only
                or ((producer := program.producer(value)) is not None and producer in program.constant)
                for value in op.operands
            )
            if all(part == "whole" for part in parts):
                results = same_part("whole", op)
            else:
                results = self._result_parts(op, parts, is_input_only)
            self._parts.update(zip(op.results, results, strict=True))
            rows = self._source_rows(op)
            if rows is not None and isinstance(results[0], int):
                self._rows[op.results[0]] = rows
            if is_input_only:
                self._input_only.update(op.results)

    def _result_parts(self, op: CirhOp, parts: Parts, is_input_only: bool) -> Parts:
        """Return the parts of an op's results.

        Raises:
            NotSplitError: the samples of the batch depend on each other.
        """
        found = self._own_row_parts(op, parts)
        if found is None and "after" not in parts:
            found = apply_rule(op, parts, self._count)
        if found is not None and not (is_input_only and set(found[1]) & set(_SHARES)):
            self._operand_parts[op] = found[0]
            return found[1]
        # Values of the batch only can be computed whole, from the whole inputs.
        if is_input_only:
            return same_part("whole", op)
        pairs = zip(op.operands, parts, strict=True)
        if any(isinstance(part, int) and value not in self._input_only for value, part in pairs):
            raise NotSplitError(_reason(op, parts))
        return same_part("after", op)

    # Rows that samples pick by their index in the whole batch, for instance those of masked words

    def _source_rows(self, op: CirhOp) -> int | None:
        """Return the number of rows that indices pick from, if each sample picks its own rows; else None."""
        if isinstance(op, cirh.ReshapeOp | cirh.CastOp):
            return self._rows.get(op.operands[0])
        if isinstance(op, cirh.SelectOp) and isinstance(from_end := op.on_true.owner, cirh.AddOp):
            # Negative indices count from the end.
            return self._rows.get(op.on_false) if op.on_false in from_end.operands else None
        if isinstance(op, cirh.AddOp):
            for value, other in (op.operands, reversed(op.operands)):
                if self._parts[other] == 0 and isinstance(value.owner, cirh.ConstOp):
                    return rows_of_samples(value.owner)
        return None

    def _own_row_parts(self, op: CirhOp, parts: Parts) -> tuple[Parts, Parts] | None:
        """Return parts of a lookup or scatter where each sample uses only its own rows; None otherwise."""
        if isinstance(op, cirh.GatherOp):
            rows, part = shape_of(op.x)[0], parts[1]
            is_own = op.axis == 0 and parts[0] == 0 and isinstance(part, int)
        elif isinstance(op, cirh.ScatterNdOp):
            rows, part, is_own = shape_of(op.result)[0], 0, parts == (0, 0)
        elif isinstance(op, cirh.ScatterOp) and parts == ("whole", 0, 0) and self._is_zero(op.x):
            if self._rows.get(op.indices) != shape_of(op.x)[0]:
                return (parts, ("sum",)) if op.reduce_kind == "ADD" else None
            rows, part, is_own, parts = shape_of(op.x)[0], 0, True, (0, 0, 0)
        else:
            return None
        if not is_own or self._rows.get(op.indices) != rows:
            return None
        self._with_own_rows.add(op)
        return parts, (part,)

    def _is_zero(self, value: SSAValue) -> bool:
        op = value.owner
        if isinstance(op, cirh.BroadcastInDimOp):
            return self._is_zero(op.x)
        return isinstance(op, cirh.ConstOp) and op.splat_value() == 0

    # Which forms are needed

    def _collect_forms(self) -> None:
        """Collect the needed forms of all values, from the outputs back."""
        for value in (*self._program.outputs, *self._program.replacements.values()):
            if isinstance(self._parts[value], int) and value not in self._input_only:
                raise NotSplitError("the step outputs a value for each sample")
            self._need(value, self._complete(value))
        for op in reversed(self._program.ops):
            for form in self._forms(op):
                for value, wanted in zip(op.operands, self._operand_forms(op, form), strict=True):
                    if wanted is not None:
                        self._need(value, wanted)

    def _need(self, value: SSAValue, form: Form) -> None:
        """Record that a form of a value is needed, and the forms that it is computed from."""
        forms = self._needed.setdefault(value, set())
        forms.add(form)
        if form == TOTAL:
            forms.add(SOME)
        elif isinstance(form, int):
            op = value.owner
            if not isinstance(op, CirhOp) or self._cut_rule(op, form) is None:
                forms.add(WHOLE)

    def _forms(self, op: CirhOp) -> list[Form]:
        """Return the forms in which some result of an op is needed, except totals."""
        forms = {form for value in op.results for form in self._needed.get(value, ())}
        return sorted(forms - {TOTAL}, key=str)

    def _complete(self, value: SSAValue) -> Form:
        """Return the form of a value that ops after the sums read."""
        return TOTAL if self._parts[value] in _SHARES else WHOLE

    def _operand_forms(self, op: CirhOp, form: Form) -> Sequence[Form | None]:
        """Return the forms of the operands from which a form of an op's results is computed."""
        if form == SOME:
            pairs = zip(op.operands, self._operand_parts[op], strict=True)
            return [
                SOME if self._parts[value] != "whole" else part if isinstance(part, int) else WHOLE
                for value, part in pairs
            ]
        if isinstance(form, int):
            rule = self._cut_rule(op, form)
            return [None] * len(op.operands) if rule is None else rule
        return [self._complete(value) for value in op.operands]

    def _cut_rule(self, op: CirhOp, axis: int) -> list[Form | None] | None:
        """Return the operand forms of an op that is computed for some samples only, instead of being cut."""
        if isinstance(op, SeededRandomOp):
            return [WHOLE] if axis == 0 else None
        if isinstance(op, cirh.ConstOp):
            return [] if op.splat_value() is not None else None
        if isinstance(op, cirh.BroadcastInDimOp):
            dims = list(op.broadcast_dimensions)
            is_new = axis not in dims or shape_of(op.x)[dims.index(axis)] == 1
            return [WHOLE] if is_new else None
        if op.TRAITS.elements not in (Elements.POINTWISE, Elements.CONVERTED) or len(op.results) > 1:
            return None
        parts = pointwise(op, axis)
        return None if parts is None else [part if isinstance(part, int) else WHOLE for part in parts]

    # The module

    def _add_arguments(self) -> tuple[int, ...]:
        """Add the arguments of the new function.

        Returns:
            Positions of the inputs that are needed whole as well.
        """
        program, count = self._program, self._count
        arguments: list[SSAValue] = list(self._function.body.block.args)
        for value in arguments:
            is_whole = self._parts[value] == "whole"
            type_ = tensor_of(value) if is_whole else _cut_type(tensor_of(value), 0, count)
            self._new_values[value, WHOLE if is_whole else SOME] = self._add_argument(type_)
        whole = [
            position
            for position, value in enumerate(program.inputs)
            if self._parts[value] != "whole" and WHOLE in self._needed.get(value, ())
        ]
        for position in whole:
            value = program.inputs[position]
            self._new_values[value, WHOLE] = self._add_argument(tensor_of(value))
        for value in (*program.state, *program.inputs):
            self._cut_all(value)
        return tuple(whole)

    def _emit(self, op: CirhOp) -> None:
        """Copy an op once for each form of its results, and combine shares into totals."""
        for form in self._forms(op):
            if isinstance(form, int) and self._cut_rule(op, form) is None:
                continue
            self._copy(op, form)
        for value in op.results:
            self._cut_all(value)
            if TOTAL in self._needed.get(value, ()):
                kind = self._parts[value]
                total = cirh.ReshapeOp(self._new_values[value, SOME], shape_of(value)).take_origin(op)
                total.attributes[TOTAL_OF] = StringAttr(str(kind))
                self._new_values[value, TOTAL] = self._add(total)

    def _copy(self, op: CirhOp, form: Form) -> None:
        """Add a copy of an op for one form of its results."""
        pairs = zip(op.operands, self._operand_forms(op, form), strict=True)
        operands = [self._new_values[value, wanted] for value, wanted in pairs if wanted is not None]
        if form == SOME and op in self._with_own_rows:
            assert isinstance(op, cirh.GatherOp | cirh.ScatterNdOp | cirh.ScatterOp)
            # Indices among the rows of this micro-batch.
            indices = self._new_values[op.indices, SOME]
            rows = self._rows[op.indices] // self._count
            first = self._first_row(rows, tensor_of(indices))
            operands[list(op.operands).index(op.indices)] = self._add(
                cirh.SubOp(indices, first).take_origin(op)
            )
        axes = [self._parts[value] if form == SOME else form for value in op.results]
        types = [
            _cut_type(tensor_of(value), axis, self._count) if isinstance(axis, int) else tensor_of(value)
            for value, axis in zip(op.results, axes, strict=True)
        ]
        properties = self._properties(op, form)
        if isinstance(op, SeededRandomOp) and isinstance(form, int):
            operands.append(self._first_row_scalar(element_count(types[0])))
            properties["elements"] = int_attr(element_count(tensor_of(op.result)))
        value = op.splat_value() if isinstance(form, int) and isinstance(op, cirh.ConstOp) else None
        if value is not None:
            copy: CirhOp = cirh.ConstOp.splat(value, types[0])
        else:
            copy = type(op).create(operands=operands, result_types=types, properties=properties)
        copy.attributes.update(op.attributes)
        self._block.add_op(copy)
        self._new_values.update(((old, form), new) for old, new in zip(op.results, copy.results, strict=True))
        # A rule may admit an op whose shape does not follow from the cut operands.
        if tuple(types) != copy._infer_results():
            raise NotSplitError(f"{op.name}{_location(op)} has no form for some of the samples")
        is_mean = form == SOME and isinstance(op, cirh.ReduceOp) and op.reduce_kind == "MEAN"
        if is_mean and self._parts[op.results[0]] == "sum" and isinstance(self._operand_parts[op][0], int):
            # Means of equal micro-batches add up to the mean of the batch if each is divided by their number.
            mean = copy.results[0]
            share = cirh.ConstOp.splat(1 / self._count, tensor_of(mean)).take_origin(op)
            self._new_values[op.results[0], SOME] = self._add(
                cirh.MulOp(mean, self._add(share)).take_origin(op)
            )

    def _properties(self, op: CirhOp, form: Form) -> dict[str, Attribute]:
        """Return the attributes of a copy, with shapes and bounds for the samples of a micro-batch."""
        properties = dict(op.properties)
        names = SLICED.get(type(op))
        axis = self._operand_parts[op][0] if form == SOME and names else None
        if names and isinstance(axis, int):
            ends = list(getattr(op, names[1]))
            ends[axis] //= self._count
            properties[names[1]] = ints_attr(ends)
        return properties

    def _cut_all(self, value: SSAValue) -> None:
        """Cut the samples of this micro-batch out of a whole value, along each dimension that is needed."""
        for axis in sorted(form for form in self._needed.get(value, ()) if isinstance(form, int)):
            if (value, axis) not in self._new_values:
                size = shape_of(value)[axis] // self._count
                offsets = self._add(cirh.ArangeOp(size))
                rows = self._add(cirh.AddOp(offsets, self._first_row(size, tensor_of(offsets))))
                whole = self._new_values[value, WHOLE]
                self._new_values[value, axis] = self._add(cirh.GatherOp(whole, rows, axis))

    def _first_row(self, size: int, like: Tensor) -> SSAValue:
        """Return a tensor filled with the index of the first of `size` rows of this micro-batch."""
        first = self._first_row_scalar(size)
        if dtype_name(like) != "int32":
            first = self._add(cirh.CastOp(first, like.element_type))
        return self._add(cirh.BroadcastInDimOp(first, like.get_shape(), []))

    def _first_row_scalar(self, size: int) -> SSAValue:
        """Return the index of the first of `size` rows of this micro-batch, of type i32."""
        if self._number is None:
            self._number = self._add_argument(tensor_type([], "int32"))
        length = self._add(cirh.ConstOp.splat(size, tensor_type([], "int32")))
        return self._add(cirh.MulOp(self._number, length))

    def _add_argument(self, tensor: Tensor) -> SSAValue:
        return self._block.insert_arg(tensor, len(self._block.args))

    def _add(self, op: CirhOp) -> SSAValue:
        self._block.add_op(op)
        return op.results[0]

    def _finish(self, whole_inputs: tuple[int, ...]) -> MicroStep:
        """Build the module of the rewritten step."""
        arguments, results = arguments_and_results(self._function)
        block = self._function.body.block
        assert block.last_op is not None
        returned = [self._new_values[value, self._complete(value)] for value in block.last_op.operands]
        terminator = ReturnOp(*returned)
        self._block.add_op(terminator)
        own = [dict(argument.attributes) for argument in arguments]
        more = len(self._block.args) - len(own)
        own += [{INPUT_NAME: StringAttr(f"more_{index}")} for index in range(more)]
        result_attributes = [dict(result.attributes) for result in results]
        function = build_graph_function(self._block, terminator, own, result_attributes)
        function.attributes.update(self._function.attributes)
        inputs = enumerate(self._program.inputs)
        cut_inputs = tuple(position for position, value in inputs if self._parts[value] != "whole")
        return MicroStep(
            ModuleOp([function]), self._count, cut_inputs, whole_inputs, self._number is not None
        )


def _cut_type(tensor: Tensor, axis: int, count: int) -> Tensor:
    shape = list(tensor.get_shape())
    shape[axis] //= count
    return tensor_type(shape, tensor.element_type)


def rows_of_samples(op: cirh.ConstOp) -> int | None:
    """Return the rows of a constant that counts up by the same number of rows for each sample; else None.

    Args:
        op: with the samples along its first dimension.
    """
    values = op.to_array()
    if dtype_name(tensor_of(op.result)) not in INTEGERS or values.ndim < 1 or len(values) < 2:
        return None
    strides = np.diff(values.astype(np.int64), axis=0)
    rows = int(strides.flat[0]) if strides.size else 0
    return rows * len(values) if rows > 0 and np.all(strides == rows) else None


def _location(op: CirhOp) -> str:
    where = [text for text in (op.node_name and f"'{op.node_name}'", op.source) if text]
    return f" ({', '.join(where)})" if where else ""


def _reason(op: CirhOp, parts: Parts) -> str:
    name = f"{op.name}{_location(op)}"
    if isinstance(op, cirh.FusedBatchNormOp | cirh.FusedBatchNormGradOp):
        return f"{name} takes mean and variance over the samples of the whole batch"
    if any(part in (*_SHARES, "after") for part in parts):
        return f"{name} uses, for each sample, a value that depends on all samples of the batch"
    return f"{name} computes with the samples of the whole batch"


def sum_squares_of_samples(module: ModuleOp) -> None:
    """Give operands of norms that have samples a separate root and sum: sums add up, norms do not."""
    # It differs from the joint norm by the rounding of a root and a square.
    samples = Program(module).per_sample_values
    block = graph_function(module).body.block
    for op in list(block.ops):
        if not isinstance(op, cirh.L2NormOp) or samples.isdisjoint(op.operands):
            continue
        operands = [_root(op, value) if value in samples else value for value in op.operands]
        whole = cirh.L2NormOp(*operands)
        whole.attributes.update(op.attributes)
        block.insert_op_before(whole, op)
        op.result.replace_all_uses_with(whole.result)
        block.erase_op(op)


def _root(op: cirh.L2NormOp, value: SSAValue) -> SSAValue:
    """Return the root of the sum of squares of a value, in float32."""
    block = op.parent_block()
    assert block is not None
    casts: list[CirhOp] = []
    if dtype_name(tensor_of(value)) != "float32":
        casts.append(cirh.CastOp(value, "float32"))
        value = casts[0].results[0]
    square = cirh.MulOp(value, value)
    total = cirh.ReduceOp(square.result, "ADD", range(len(shape_of(value))))
    root = cirh.SqrtOp(total.result)
    for new in (*casts, square, total, root):
        block.insert_op_before(new.take_origin(op), op)
    return root.result


def move_scales_after_sums(module: ModuleOp) -> None:
    """Rewrite scatter(rows * scale) to scatter(rows) * scale; it differs by rounding."""
    # The scale of a clipped gradient of a table follows from all samples, so it is known only after the sum.
    samples = Program(module).per_sample_values
    for op in list(graph_function(module).body.block.ops):
        while (
            isinstance(op, cirh.ScatterNdOp)
            and (found := _match_scaled_rows(op.updates, samples)) is not None
        ):
            op = _scale_after(op, *found)


def _match_scaled_rows(value: SSAValue, samples: frozenset[SSAValue]) -> tuple[SSAValue, SSAValue] | None:
    """Return rows of samples and the scalar that multiplies all of them; None for other values."""
    product = value.owner
    if not isinstance(product, cirh.MulOp):
        return None
    for rows, other in (product.operands, reversed(product.operands)):
        if rows in samples and other not in samples and isinstance(other.owner, cirh.BroadcastInDimOp):
            scalar = other.owner.x
            if shape_of(scalar) == ():
                return rows, scalar
    return None


def _scale_after(op: cirh.ScatterNdOp, rows: SSAValue, scalar: SSAValue) -> cirh.ScatterNdOp:
    """Build the scatter of unscaled rows, and scale its result."""
    block = op.parent_block()
    assert block is not None
    shape = shape_of(op.result)
    total = cirh.ScatterNdOp(op.indices, rows, shape, op.reduce_kind).take_origin(op)
    scale = cirh.BroadcastInDimOp(scalar, shape, []).take_origin(op)
    scaled = cirh.MulOp(total.result, scale.result).take_origin(op)
    for new in (total, scale, scaled):
        block.insert_op_before(new, op)
    product = op.updates.owner
    op.result.replace_all_uses_with(scaled.result)
    block.erase_op(op)
    if isinstance(product, cirh.MulOp) and not product.result.uses:
        block.erase_op(product)
    return total
