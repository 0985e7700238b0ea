"""The kernel families by name, and the one entry to their cost functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from cgc.errors import KernelGraphError
from cgc.kernels import attention_cost, loop_cost, loss_cost, matmul_cost, row_cost, table_cost
from cgc.kernels.configurations import Configurations
from cgc.kernels.graph import Kernel
from cgc.kernels.nest_cost import nest_configurations
from cgc.kernels.stream_cost import LINES

CostFunction = Callable[[Mapping[str, int]], Configurations]


class Family(NamedTuple):
    """A kind of kernel.

    Attributes:
        doc: what its kernels do, one line.
        cost: all layouts of a kernel from its parameters.
        parameters: the keys that `cost` reads.
        optional: keys that it reads where they are given.
    """

    doc: str
    cost: CostFunction
    parameters: frozenset[str]
    optional: frozenset[str] = frozenset()


def _loop(doc: str) -> Family:
    return Family(doc, loop_cost.loop_configurations, loop_cost.PARAMETERS, LINES)


def _matmul(doc: str) -> Family:
    return Family(doc, matmul_cost.matmul_configurations, matmul_cost.PARAMETERS, matmul_cost.OPTIONAL)


def _row(kind: str, doc: str) -> Family:
    return Family(doc, row_cost.row_configurations(kind), row_cost.PARAMETERS, LINES)


FAMILIES: dict[str, Family] = {
    "fully_connected": _matmul("product with weights, bias, activation, their gradients and weight update"),
    "convolution": _matmul("convolution, bias, activation, their gradients and weight update"),
    "attention": Family(
        "projections of query, key and value, softmax of products, the projection behind, all gradients",
        attention_cost.attention_configurations,
        attention_cost.PARAMETERS,
        attention_cost.OPTIONAL,
    ),
    "matmul": _matmul("product of two activations and its gradients"),
    "layer_norm": _row("layer_norm", "layer normalization, its gradient, update of gamma and beta"),
    "nlin": _row("nlin", "an activation that stands alone, such as GELU, and its gradient"),
    "add": _row("add", "sum of two streams: a residual connection, or gradients that meet"),
    "pos_encoding": _row("pos_encoding", "sum with a position code, and its update where it is learned"),
    "normalization": _loop("batch normalization, an activation, their gradients, update of the vectors"),
    "pooling": _loop("largest elements or means of windows, and the gradient"),
    "loss": Family(
        "softmax cross entropy, its gradient and the reduction to the loss",
        loss_cost.loss_configurations,
        loss_cost.PARAMETERS,
        LINES,
    ),
    "embedding": Family(
        "rows of a table, and the update of the table",
        table_cost.table_configurations,
        table_cost.PARAMETERS,
    ),
    "dropout": _row("dropout", "random numbers, the mask, and its use forward and backward"),
    "reduction": _loop("elementwise ops with sums, maxima or scans"),
    "elementwise": _loop("ops on elements at one place"),
    "data_movement": _loop("ops that only move elements"),
    "optimizer": _loop("update of parameters whose users are in no other kernel"),
    "control": _loop("scalars of the step: learning rate, counters, scales"),
}


def configurations(kernel: Kernel) -> Configurations:
    """All layouts of a kernel, of a generated one from its loop nests; equal kernels share one result.

    Raises:
        KernelGraphError: an unknown family, or parameters that its cost function cannot use.
    """
    family = FAMILIES.get(kernel.family)
    if family is None:
        raise KernelGraphError(
            f"kernel {kernel.name}: family is {kernel.family!r}, expected one of {', '.join(FAMILIES)}"
        )
    if kernel.loops is not None:
        return nest_configurations(kernel.loops, kernel.parameters)
    if set(kernel.parameters) - family.optional != family.parameters:
        odd = sorted((set(kernel.parameters) - family.optional) ^ family.parameters)
        raise KernelGraphError(
            f"kernel {kernel.name}: parameters {', '.join(odd)} are missing or unknown; "
            f"family {kernel.family} takes {', '.join(sorted(family.parameters))}"
        )
    for name, value in kernel.parameters.items():
        if value < (1 if name in _POSITIVE else 0):
            raise KernelGraphError(
                f"kernel {kernel.name}: parameter {name} is {value}, expected a positive size"
            )
    return _cached(kernel.family, tuple(sorted(kernel.parameters.items())))


_POSITIVE = frozenset(
    {"rows", "row_elements", "inputs", "passes", "element_bytes", "batch", "keys", "heads", "width"}
)


@lru_cache(maxsize=4096)
def _cached(family: str, parameters: tuple[tuple[str, int], ...]) -> Configurations:
    return FAMILIES[family].cost(dict(parameters))
