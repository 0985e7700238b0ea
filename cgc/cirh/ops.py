"""The CIRH dialect: all ops and their constructors.

Constructors take values or single-result ops as operands and infer the result types; they raise
`InvalidOpError` when something does not fit. dtypes are numpy names, dtypes, or element types of the IR.
Negative axes count from the end. Attributes are read as Python values under the name of the constructor's
argument (`op.transpose_a -> bool`, `op.permutation -> tuple[int, ...]`); single results are `op.result`.
Every op has `set_origin(node_name=None, source=None, layer=None)`, which returns the op, and reads them back
as `op.node_name`, `op.source` and `op.layer`.

The modules are imported with all their names, so that an op is added only in its own file.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Dialect
from xdsl.traits import Commutative

from cgc.cirh.activation import *
from cgc.cirh.base import CirhOp, set_quick_accessors
from cgc.cirh.convolution import *
from cgc.cirh.elementwise import *
from cgc.cirh.indexing import *
from cgc.cirh.linear import *
from cgc.cirh.normalization import *
from cgc.cirh.optimizer import *
from cgc.cirh.random import *
from cgc.cirh.reduction import *
from cgc.cirh.shape import *
from cgc.cirh.softmax import *
from cgc.cirh.token_loop import *

ALL_OPS: tuple[type[CirhOp], ...] = tuple(
    value
    for value in dict(globals()).values()
    if isinstance(value, type) and issubclass(value, CirhOp) and "TRAITS" in vars(value)
)

CIRH = Dialect("cirh", list(ALL_OPS), [])

for _op_type in ALL_OPS:
    set_quick_accessors(_op_type)


def ops_where(holds: Callable[[type[CirhOp]], bool]) -> frozenset[type[CirhOp]]:
    """Return all ops that satisfy a predicate, for instance on their `TRAITS`."""
    return frozenset(op for op in ALL_OPS if holds(op))


# Ops of two operands whose order does not matter.
COMMUTATIVE = ops_where(lambda op: op.has_trait(Commutative))
