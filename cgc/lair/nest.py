"""Loop nests of a LAIR function as plain data, for placement and the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xdsl.dialects import tensor
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.dialects.linalg.ops import FillOp, IndexOp, YieldOp
from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import AffineMap

from cgc.cirh.types import numpy_dtype, tensor_of
from cgc.lair.affine import identity
from cgc.lair.dialect import (
    DOMAIN,
    ITERATION_WORK,
    OP,
    WORK,
    GenericOp,
    dependent_loops,
    loop_extents,
    reads_outputs,
)
from cgc.lair.polyhedra import carried_loops

_LETTERS = "ijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Access:
    """An access of a nest to a tensor.

    Attributes:
        value: the tensor, a position in `LoopProgram.values`.
        map: from iterations to elements; None if it depends on data.
        writes: the nest writes these elements; else it reads them.
    """

    value: int
    map: AffineMap | None
    writes: bool = False


@dataclass(frozen=True)
class LoopNest:
    """Loops around one body.

    Attributes:
        extents: iterations of every loop, the outermost first.
        carried: loops that carry a running value: reductions and scans.
        scanned: carried loops that index a result, which keeps the running value of every step.
        accesses: tensors that an iteration reads or writes.
        work: kinds of work of an iteration, as named in `cgc.kernels.coefficients`, and their amounts.
        arith_ops: operations of an iteration.
        wide: the result has elements of more than 16 bits.
        call: the mnemonic of the op, if linalg cannot express it.
    """

    extents: tuple[int, ...]
    carried: tuple[int, ...]
    scanned: tuple[int, ...]
    accesses: tuple[Access, ...]
    work: tuple[tuple[str, int], ...]
    arith_ops: int
    wide: bool
    call: str | None = None

    @property
    def points(self) -> int:
        """Number of iterations."""
        return math.prod(self.extents)

    def describe(self) -> str:
        """Return one line, such as `for i in 0..256, j in 0..768: 14 arith ops, reduce over j`."""
        names = [loop_name(loop) for loop in range(len(self.extents))]
        loops = ", ".join(f"{name} in 0..{extent}" for name, extent in zip(names, self.extents, strict=True))
        plural = "" if self.arith_ops == 1 else "s"
        work = f"{self.arith_ops} arith op{plural}" if self.arith_ops else "move"
        parts = [self.call or work]
        reduced = [names[loop] for loop in self.carried if loop not in self.scanned]
        if reduced:
            parts.append(f"reduce over {', '.join(reduced)}")
        if self.scanned:
            parts.append(f"scan over {', '.join(names[loop] for loop in self.scanned)}")
        return f"{f'for {loops}' if loops else 'once'}: {', '.join(parts)}"


@dataclass(frozen=True)
class Value:
    """A tensor of a function.

    Attributes:
        shape: its sizes.
        element_bytes: of one element.
        argument: its number among the arguments; None for other values.
    """

    shape: tuple[int, ...]
    element_bytes: int
    argument: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LoopProgram:
    """All nests of a function in order.

    Attributes:
        nests: the loops.
        values: all tensors, the arguments first.
        results: positions of the returned values.
    """

    nests: tuple[LoopNest, ...]
    values: tuple[Value, ...]
    results: tuple[int, ...]


def loop_name(loop: int) -> str:
    """Return i, j, k ... then i1, j1 ..."""
    repetition, letter = divmod(loop, len(_LETTERS))
    return _LETTERS[letter] + (str(repetition) if repetition else "")


def loop_program(module: ModuleOp) -> LoopProgram:
    """Read the nests of the first function of a module.

    A tensor that a nest updates is the same tensor afterwards. Filling in the initial value of a reduction is
    no nest.
    """
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}
    return _Reader(functions, next(iter(functions.values())).body.block).program()


class _Reader:
    """Reads the ops of a function in order, and numbers its tensors."""

    def __init__(self, functions: Mapping[str, FuncOp], block: Block) -> None:
        self._functions = functions
        self._block = block
        self._values: list[Value] = []
        self._numbers: dict[SSAValue, int] = {}
        self._nests: list[LoopNest] = []

    def program(self) -> LoopProgram:
        """Return the nests of the function."""
        returned: tuple[int, ...] = ()
        for argument in self._block.args:
            self._number(argument, argument=argument.index)
        for op in self._block.ops:
            if isinstance(op, GenericOp):
                self._nests.append(self._generic(op))
            elif isinstance(op, FillOp):
                if not _is_start_of_sum(op):
                    value = self._values[number := self._number(op.results[0])]
                    access = Access(number, identity(len(value.shape)), writes=True)
                    self._nests.append(
                        LoopNest(value.shape, (), (), (access,), (("simple", 1),), 0, value.element_bytes > 2)
                    )
            elif isinstance(op, CallOp):
                self._nests.append(self._call(op))
            if isinstance(op, ReturnOp):
                returned = tuple(self._number(operand) for operand in op.operands)
        return LoopProgram(tuple(self._nests), tuple(self._values), returned)

    def _number(self, value: SSAValue, argument: int | None = None) -> int:
        if value not in self._numbers:
            kind = tensor_of(value)
            self._numbers[value] = len(self._values)
            self._values.append(Value(kind.get_shape(), numpy_dtype(kind.element_type).itemsize, argument))
        return self._numbers[value]

    def _result(self, initial: SSAValue, result: SSAValue) -> int:
        """Return the tensor of a result, which is that of its initial value if it is updated in place."""
        # A value that other ops read as well cannot be overwritten.
        holds = isinstance(initial.owner, GenericOp) or initial in self._numbers
        if holds and len(list(initial.uses)) == 1:
            self._numbers[result] = self._number(initial)
        return self._number(result)

    def _generic(self, op: GenericOp) -> LoopNest:
        """Read a `linalg.generic`."""
        extents, maps = loop_extents(op), op.maps
        reads = [
            Access(self._number(operand), mapping) for operand, mapping in zip(op.inputs, maps, strict=False)
        ]
        # Reads at computed indices may touch any element.
        captured = [
            Access(self._number(inner.tensor), None)
            for inner in op.body.block.ops
            if isinstance(inner, tensor.ExtractOp)
        ]
        outputs = maps[len(op.inputs) :]
        writes = [
            Access(self._result(initial, result), mapping, writes=True)
            for initial, result, mapping in zip(op.outputs, op.results, outputs, strict=True)
        ]
        carried: set[int] = set()
        for argument, mapping in zip(op.body.block.args[len(op.inputs) :], outputs, strict=True):
            if argument.uses:
                carried |= set(carried_loops(extents, mapping))
        result_loops = {loop for mapping in outputs for loop in mapping.used_dims()}
        work, arith_ops = body_work(op.body.block)
        return LoopNest(
            extents=extents,
            carried=tuple(sorted(carried)),
            scanned=tuple(sorted(carried & result_loops)),
            accesses=(*reads, *captured, *writes),
            work=work,
            arith_ops=arith_ops,
            wide=any(numpy_dtype(tensor_of(result).element_type).itemsize > 2 for result in op.results),
        )

    def _call(self, op: CallOp) -> LoopNest:
        """Read a call; the elements that it touches depend on data."""
        function = self._functions[op.callee.root_reference.data]
        extents, kind, name = _extern(function)
        reads = [Access(self._number(operand), None) for operand in op.operands]
        writes = [Access(self._number(result), None, writes=True) for result in op.results]
        wide = any(self._values[access.value].element_bytes > 2 for access in writes)
        work = ITERATION_WORK[kind]
        carried = dependent_loops(kind, len(extents))
        return LoopNest(
            extents, carried, (), (*reads, *writes), work, sum(times for _, times in work), wide, name
        )


def _is_start_of_sum(op: FillOp) -> bool:
    """Return True if an op only fills in the initial value of reductions."""
    readers = [use.operation for use in op.results[0].uses]
    return all(
        isinstance(reader, GenericOp) and op.results[0] in reader.outputs and reads_outputs(reader)
        for reader in readers
    )


def _extern(function: FuncOp) -> tuple[tuple[int, ...], str, str]:
    """Return the loops, the kind of work and the mnemonic of a declared function."""
    extents, work = function.attributes[DOMAIN], function.attributes[WORK]
    name = function.attributes[OP]
    assert isinstance(extents, DenseArrayBase)
    assert isinstance(work, StringAttr)
    assert isinstance(name, StringAttr)
    return (
        tuple(int(extent) for extent in extents.get_values()),
        work.data,
        name.data.removeprefix("cirh."),
    )


def body_work(block: Block) -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the kinds of work of one iteration with their amounts, and the number of its operations."""
    kinds: Counter[str] = Counter()
    number = 0
    for op in block.ops:
        kind = _KINDS.get(op.name, ("simple", 1))
        if kind is not None:
            kinds[kind[0]] += kind[1]
            number += 1
    return tuple(sorted((kinds or Counter(stream=1)).items())), number


def _each(kind: str, names: Iterable[str], times: int = 1) -> dict[str, tuple[str, int] | None]:
    return dict.fromkeys(names, (kind, times))


# Kind and amount of work of an op of a body; None for no work, one `simple` for ops that are not listed.
_KINDS: dict[str, tuple[str, int] | None] = {
    "arith.constant": None,
    IndexOp.name: None,
    YieldOp.name: None,
    "arith.index_cast": None,
    "arith.bitcast": None,
    **_each("stream", ["tensor.extract"]),
    **_each("transcendental", [f"math.{name}" for name in ("exp", "expm1", "log", "log1p", "sin", "cos")]),
    **_each("transcendental", ["math.tanh", "math.erf"]),
    **_each("transcendental", ["math.powf", "math.ipowi", "math.atan2"], 2),
    **_each(
        "divide",
        ["arith.divf", "arith.divsi", "arith.floordivsi", "arith.divui", "arith.remsi", "arith.remui"],
    ),
    **_each("divide", ["math.sqrt", "math.rsqrt", CallOp.name]),
}
