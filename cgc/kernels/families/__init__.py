"""The kernel families, in the order in which their rules take ops."""

from __future__ import annotations

from functools import lru_cache

from cgc.errors import KernelGraphError
from cgc.kernels.assignment import Family, Rule
from cgc.kernels.configurations import Configurations
from cgc.kernels.families import (
    attention,
    embedding,
    loops,
    loss,
    nlin,
    normalization,
    products,
    rows,
    scalars,
)
from cgc.kernels.families.grouping import match_rest
from cgc.kernels.graph import Kernel
from cgc.kernels.nest_cost import nest_configurations

# An op goes to the first rule that takes it; `match_rest` takes the remaining ones. Bare rules add ops to
# existing kernels, or open kernels of a family before its own turn.
ORDER: tuple[Family | Rule, ...] = (
    attention.ATTENTION,
    products.FULLY_CONNECTED,
    products.CONVOLUTION,
    normalization.LAYER_NORM,
    normalization.NORMALIZATION,
    loops.POOLING,
    loss.LOSS,
    embedding.EMBEDDING,
    scalars.match_ranges,
    products.MATMUL,
    rows.DROPOUT,
    rows.match_sums_of_images,
    loops.DATA_MOVEMENT,
    nlin.NLIN,
    rows.POS_ENCODING,
    rows.ADD,
    scalars.match_gradient_norms,
    scalars.CONTROL,
    match_rest,
    loops.ELEMENTWISE,
    loops.REDUCTION,
    loops.OPTIMIZER,
)

FAMILIES: dict[str, Family] = {entry.name: entry for entry in ORDER if isinstance(entry, Family)}
RULES: tuple[Rule, ...] = tuple(
    rule for entry in ORDER if (rule := entry.match if isinstance(entry, Family) else entry) is not None
)


def configurations(kernel: Kernel) -> Configurations:
    """Return all layouts of a kernel; equal kernels share one result.

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
    return _family_configurations(kernel.family, tuple(sorted(kernel.parameters.items())))


_POSITIVE = frozenset(
    {"rows", "row_elements", "inputs", "passes", "element_bytes", "batch", "keys", "heads", "width"}
)


@lru_cache(maxsize=4096)
def _family_configurations(family: str, parameters: tuple[tuple[str, int], ...]) -> Configurations:
    return FAMILIES[family].cost(dict(parameters))
