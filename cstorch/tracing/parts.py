"""Parts of a tensor whose numbers of rows only a step knows: `x.split(counts.tolist())`, as of experts.

Each part is a selection of the rows of the tensor. `torch.cat` of all of them, in order, is the tensor again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cstorch.tracing.composed.assertions import require
from cstorch.tracing.selections import Part, Rows, select
from cstorch.tracing.statements import asking_frame, nodes_at

SPLITTING = frozenset(
    {torch.split, torch.Tensor.split, torch.split_with_sizes, torch.Tensor.split_with_sizes}
)
"""Functions of `parts_of`."""
_MOST_PARTS = 1024


def sizes_of(counts: torch.Tensor) -> Any:
    """Answer `counts.tolist()`, where a program names the list or calls `split` with it.

    Args:
        counts: A tensor without a value.

    Returns:
        The tensors in it. They have no values either, so anything but `split` that reads one is refused.
        NotImplemented where the program does something else with the list.
    """
    frame = asking_frame()
    if frame is None or counts.dim() != 1 or counts.numel() > _MOST_PARTS:
        return NotImplemented
    if counts.is_floating_point() or counts.dtype == torch.bool:
        return NotImplemented
    around = [node for node in nodes_at(frame) if not isinstance(node, ast.Tuple | ast.List)]
    if len(around) < 2 or not isinstance(around[0], ast.Call):
        return NotImplemented
    user = around[1]
    splits = isinstance(user, ast.Call) and ast.unparse(user.func).rpartition(".")[2] == "split"
    return list(counts.unbind()) if splits or isinstance(user, ast.Assign) else NotImplemented


def parts_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Callable[[torch.Tensor], Any]
) -> tuple[torch.Tensor, ...]:
    """`torch.split` along the first dimension by sizes that are tensors.

    Args:
        args: The arguments of the function.
        kwargs: Its named arguments.
        key: Gives what is equal for tensors of equal values.

    Returns:
        NotImplemented for sizes that are numbers, and along other dimensions.
    """
    x, *others = (*args, *(kwargs[name] for name in ("tensor",) if name in kwargs))
    sizes = others[0] if others else kwargs.get("split_size", kwargs.get("split_sizes"))
    dim = others[1] if len(others) > 1 else kwargs.get("dim", 0)
    listed = isinstance(sizes, list | tuple) and any(isinstance(size, torch.Tensor) for size in sizes)
    if not listed or dim % x.dim():
        return NotImplemented
    counts = torch.stack([torch.as_tensor(size, device=x.device).reshape(()) for size in sizes])
    ends = counts.cumsum(0)
    error = f"split expects sizes that sum up to {x.size(0)}, the number of rows"
    require(ends[-1] == x.size(0), RuntimeError(error))
    whole = key(counts), x.size(0)
    places, found = torch.arange(x.size(0), device=x.device), []
    for number in range(len(sizes)):
        inside = places < ends[number]
        if number:
            inside = inside.logical_and(places >= ends[number - 1])
        part = Part(whole, number, len(sizes))
        found.append(select(x, Rows(inside, part, part=part), 1))
    return tuple(found)
