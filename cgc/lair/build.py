"""Building functions of LAIR: tensors with their device type, loops over them, calls of what is no loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import tensor
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.dialects.linalg.ops import FillOp, YieldOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineMap

from cgc.cirh.types import shape_of
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.dialect import PARALLEL, REDUCTION, GenericOp
from cgc.lair.scalar import Scalar, constant_attr, lair_tensor, scalar_type

Body = Callable[..., Scalar | Sequence[Scalar]]
"""Makes the results of a point from the elements of all operands, inputs first, then running values."""


@dataclass(frozen=True, eq=False)
class Array:
    """A tensor of a function: its value, and its device type (which tells unsigned from signed)."""

    value: SSAValue
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return shape_of(self.value)

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)


@dataclass(frozen=True)
class Read:
    """An operand of a loop nest and the element that an iteration takes."""

    array: Array
    map: AffineMap


class Builder:
    """Adds ops to the body of one function."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def empty(self, shape: Sequence[int], dtype: str) -> Array:
        """A tensor without defined elements, to be written."""
        op = tensor.EmptyOp([], lair_tensor(shape, dtype))
        self.block.add_op(op)
        return Array(op.tensor, dtype)

    def filled(self, shape: Sequence[int], dtype: str, number: float) -> Array:
        """A tensor of one number."""
        value = ConstantOp(constant_attr(number, dtype))
        empty = self.empty(shape, dtype)
        op = FillOp([value.result], [empty.value], [empty.value.type])
        self.block.add_ops([value, op])
        return Array(op.results[0], dtype)

    def filled_from(self, shape: Sequence[int], number: Array) -> Array:
        """A tensor of the number that a rank-0 tensor holds."""
        read = Read(number, affine_map(len(shape), []))
        return self.parallel(shape, [read], number.dtype, lambda element: element)

    def parallel(self, shape: Sequence[int], reads: Sequence[Read], dtype: str, body: Body) -> Array:
        """One result of `shape`; each element by itself."""
        return self.parallel_results(shape, reads, [dtype], body)[0]

    def parallel_results(
        self, shape: Sequence[int], reads: Sequence[Read], dtypes: Sequence[str], body: Body
    ) -> list[Array]:
        """Several results of `shape`."""
        writes = [Read(self.empty(shape, dtype), identity(len(shape))) for dtype in dtypes]
        return self.loops(len(shape), (), reads, writes, lambda *values: body(*values[: len(reads)]))

    def pointwise(self, arrays: Sequence[Array], dtype: str, body: Body) -> Array:
        """Elements at one place of arrays of one shape; arrays of rank 0 are read everywhere."""
        return self.pointwise_results(arrays, [dtype], body)[0]

    def pointwise_results(self, arrays: Sequence[Array], dtypes: Sequence[str], body: Body) -> list[Array]:
        """`pointwise` with several results."""
        shape = max((array.shape for array in arrays), key=len)
        reads = [
            Read(array, identity(array.rank) if array.rank else affine_map(len(shape), []))
            for array in arrays
        ]
        return self.parallel_results(shape, reads, dtypes, body)

    def reduced(
        self, array: Array, dimensions: Sequence[int], start: float, body: Body, keep_dims: bool = False
    ) -> Array:
        """`body(element, running value)` over some dimensions, from `start`."""
        kept = [d for d in range(array.rank) if d not in dimensions]
        results = [dim(d) if d in kept else 0 for d in range(array.rank) if keep_dims or d in kept]
        shape = [array.shape[d] if d in kept else 1 for d in range(array.rank) if keep_dims or d in kept]
        write = Read(self.filled(shape, array.dtype, start), affine_map(array.rank, results))
        read = Read(array, identity(array.rank))
        return self.loops(array.rank, dimensions, [read], [write], body)[0]

    def loops(
        self, count: int, carried: Sequence[int], reads: Sequence[Read], writes: Sequence[Read], body: Body
    ) -> list[Array]:
        """A loop nest.

        Args:
            count: of loops.
            carried: the loops that carry a running value.
            reads: inputs.
            writes: initial values of the results, and where an iteration writes.
            body: see `Body`; gives one scalar for each result.
        """
        operands = [*reads, *writes]
        block = Block(arg_types=[scalar_type(operand.array.dtype) for operand in operands])
        arguments = [
            Scalar(block, argument, operand.array.dtype)
            for argument, operand in zip(block.args, operands, strict=True)
        ]
        made = body(*arguments) if arguments else body(block)
        results = [made] if isinstance(made, Scalar) else list(made)
        block.add_op(YieldOp(*(result.value for result in results)))
        op = GenericOp(
            [read.array.value for read in reads],
            [write.array.value for write in writes],
            Region(block),
            [AffineMapAttr(operand.map) for operand in operands],
            [REDUCTION if loop in carried else PARALLEL for loop in range(count)],
            [write.array.value.type for write in writes],
        )
        self.block.add_op(op)
        return [Array(value, write.array.dtype) for value, write in zip(op.results, writes, strict=True)]
