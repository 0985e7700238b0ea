"""The kernel families: one file each, in the order in which their rules take ops."""

from __future__ import annotations

from functools import lru_cache

from cgc.errors import KernelGraphError
from cgc.kernels import ranges, statistics
from cgc.kernels.configurations import Configurations
from cgc.kernels.families import (
    add,
    attention,
    control,
    convolution,
    data_movement,
    dropout,
    elementwise,
    embedding,
    fully_connected,
    layer_norm,
    loss,
    matmul,
    nlin,
    normalization,
    optimizer,
    pooling,
    pos_encoding,
    reduction,
)
from cgc.kernels.family import Family, Rule
from cgc.kernels.graph import Kernel
from cgc.kernels.nests import groups
from cgc.kernels.nests.cost import nest_configurations

ORDER: tuple[Family | Rule, ...] = (
    attention.FAMILY,
    fully_connected.FAMILY,
    convolution.FAMILY,
    layer_norm.FAMILY,
    normalization.FAMILY,
    pooling.FAMILY,
    loss.FAMILY,
    embedding.FAMILY,
    ranges.match,
    matmul.FAMILY,
    dropout.FAMILY,
    add.match_images,
    data_movement.FAMILY,
    nlin.FAMILY,
    pos_encoding.FAMILY,
    add.FAMILY,
    statistics.match,
    control.FAMILY,
    groups.match,
    elementwise.FAMILY,
    reduction.FAMILY,
    optimizer.FAMILY,
)
"""An op goes to the first rule that takes it; `groups.match` takes what is left. Bare rules add to kernels of
others, or open kernels of a family before its own turn."""

FAMILIES: dict[str, Family] = {entry.name: entry for entry in ORDER if isinstance(entry, Family)}
RULES: tuple[Rule, ...] = tuple(
    rule for entry in ORDER if (rule := entry.match if isinstance(entry, Family) else entry) is not None
)


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
