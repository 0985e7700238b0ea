"""Lower a group of CIRH ops to one function of LAIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue, TypeAttribute
from xdsl.passes import ModulePass

from cgc.cirh.base import CirhOp, mnemonic
from cgc.cirh.dense import dense_attr
from cgc.cirh.ops import ConstOp
from cgc.cirh.traits import Order
from cgc.cirh.types import numpy_dtype, shape_of, tensor_of
from cgc.errors import LoweringError
from cgc.lair.build import FMOD, Array, Builder, dtype_of, lair_tensor, scalar_type
from cgc.lair.dialect import declaration
from cgc.lair.from_jaxpr import build_nests, is_expressible
from cgc.lowering.base import narrow_to_device
from cgc.lowering.jax_table import trace


def lower_group(
    ops: Sequence[CirhOp], inputs: Sequence[SSAValue], outputs: Sequence[SSAValue], name: str = "kernel"
) -> ModuleOp:
    """Return a module with one function that computes the same as a group of ops.

    Args:
        ops: in program order.
        inputs: values from outside, in the order of the function's arguments. Constants need not be inputs;
            splats become constants in the loops.
        outputs: values that the function returns.
        name: of the function.

    Returns:
        The function, then the declarations of ops that linalg cannot express. Nothing is fused yet.
    """
    lowering = _Lowering(inputs)
    for op in ops:
        lowering.add(op)
    return lowering.module(outputs, name)


@dataclass(frozen=True)
class LowerToLairPass(ModulePass):
    """Lower every CIRH function to LAIR; attributes of arguments and results are kept."""

    name = "lower-to-lair"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place.

        Raises:
            LoweringError: a function with an op that is not of CIRH.
        """
        for function in [inner for inner in op.ops if isinstance(inner, FuncOp)]:
            *ops, terminator = function.body.block.ops
            if not isinstance(terminator, ReturnOp):
                raise LoweringError(f"func.func @{function.sym_name.data} does not end in func.return")
            body = [_check_dialect(inner) for inner in ops]
            name = function.sym_name.data
            lowered = lower_group(body, function.body.block.args, terminator.operands, name)
            for new in list(lowered.ops):
                lowered.body.block.detach_op(new)
                op.body.block.insert_op_before(new, function)
                if isinstance(new, FuncOp) and new.sym_name == function.sym_name:
                    new.arg_attrs, new.res_attrs = function.arg_attrs, function.res_attrs
                    new.attributes.update(function.attributes)
            op.body.block.erase_op(function)


def _check_dialect(op: Operation) -> CirhOp:
    if not isinstance(op, CirhOp):
        raise LoweringError(f"{op.name} is not an op of CIRH; only functions of cirh ops become loop nests")
    return op


class _Lowering:
    """The function under construction."""

    def __init__(self, inputs: Sequence[SSAValue]) -> None:
        dtypes = [dtype_of(tensor_of(value)) for value in inputs]
        types = [lair_tensor(shape_of(value), dtype) for value, dtype in zip(inputs, dtypes, strict=True)]
        self._block = Block(arg_types=types)
        self._builder = Builder(self._block)
        self._declared: list[FuncOp] = []
        self._arrays = {
            value: Array(argument, dtype)
            for value, argument, dtype in zip(inputs, self._block.args, dtypes, strict=True)
        }

    def add(self, op: CirhOp) -> None:
        """Add the nests of an op; a constant is added when it is first read."""
        if isinstance(op, ConstOp):
            return
        arrays = self._lower(op, [self._array(operand) for operand in op.operands])
        self._arrays.update(zip(op.results, arrays, strict=True))

    def module(self, outputs: Sequence[SSAValue], name: str) -> ModuleOp:
        """Return the finished module."""
        values = [self._array(value).value for value in outputs]
        self._block.add_op(ReturnOp(*values))
        types = ([argument.type for argument in self._block.args], [value.type for value in values])
        function = FuncOp(name, types, Region(self._block))
        return ModuleOp([function, *self._declared, *_remainders(function)])

    def _array(self, value: SSAValue) -> Array:
        if value not in self._arrays:
            op = value.owner
            if not isinstance(op, ConstOp):
                raise ValueError(f"{value} is made outside of the group and is not among its inputs")
            self._arrays[value] = self._constant(op)
        return self._arrays[value]

    def _constant(self, op: ConstOp) -> Array:
        """Return the tensor of a constant."""
        dtype, number = dtype_of(tensor_of(op.result)), op.splat_value()
        if number is not None:
            return self._builder.fill(shape_of(op.result), dtype, number)
        # A constant with distinct elements is a tensor of the function; unsigned integers become signless.
        values = narrow_to_device(op.to_array(), op.name)
        signless = values.view(numpy_dtype(scalar_type(dtype))) if dtype.startswith("u") else values
        arrays = ConstantOp(dense_attr(signless))
        self._block.add_op(arrays)
        return Array(arrays.result, dtype)

    def _lower(self, op: CirhOp, operands: Sequence[Array]) -> Sequence[Array]:
        """Add the nests of an op, or a call if loop nests cannot express it."""
        # Ops on empty tensors are calls, since loops need extents. So are sorts and scatters, whose order of
        # elements depends on data, and random numbers, which have a separate cost.
        is_call = op.TRAITS.order is not Order.ANY or op.TRAITS.work.random
        if not is_call and all(0 not in shape_of(value) for value in (*op.operands, *op.results)):
            jaxpr = trace(op)
            if is_expressible(jaxpr):
                return build_nests(self._builder, jaxpr, operands)
        return self._call(op, operands)

    def _call(self, op: CirhOp, operands: Sequence[Array]) -> Sequence[Array]:
        """Add a call of a private function that represents the op."""
        dtypes = [dtype_of(tensor_of(result)) for result in op.results]
        types = [
            lair_tensor(shape_of(result), dtype) for result, dtype in zip(op.results, dtypes, strict=True)
        ]
        name = f"{mnemonic(type(op))}_{len(self._declared)}"
        arguments: list[TypeAttribute] = [tensor_of(operand.value) for operand in operands]
        self._declared.append(declaration(name, op, arguments, types))
        call = CallOp(name, [operand.value for operand in operands], types)
        self._block.add_op(call)
        return [Array(value, dtype) for value, dtype in zip(call.results, dtypes, strict=True)]


def _remainders(function: FuncOp) -> list[FuncOp]:
    """Return the declarations of the remainder functions that bodies call."""
    called = {op.callee.root_reference.data for op in function.walk() if isinstance(op, CallOp)}
    found = []
    for dtype, name in FMOD.items():
        if name in called:
            scalar = scalar_type(dtype)
            found.append(FuncOp(name, ([scalar, scalar], [scalar]), Region(), "private"))
    return found
