"""Sparse matrices, as adjacencies of graphs: the device has dense tensors only."""

from __future__ import annotations

from typing import Any

import torch

_sparse_coo_tensor = torch.sparse_coo_tensor


def mm(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """`torch.sparse.mm`."""
    return _dense(mat1) @ _dense(mat2)


def addmm(
    mat: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> torch.Tensor:
    """`torch.sparse.addmm`."""
    return torch.addmm(mat, _dense(mat1), _dense(mat2), beta=beta, alpha=alpha)


def sparse_coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, device: Any = None, **settings: Any
) -> torch.Tensor:
    """`torch.sparse_coo_tensor`: a dense tensor where its elements are of the device.

    Raises:
        ValueError: the step computes the elements, and the size is missing.
    """
    given = [x for x in (indices, values) if isinstance(x, torch.Tensor)]
    if all(x.device.type == "cpu" for x in given):
        sizes = () if size is None else (size,)
        made = _sparse_coo_tensor(indices, values, *sizes, **settings)
        return made if device is None else made.to_dense().to(device)
    if size is None:
        raise ValueError(
            "the size of a sparse tensor depends on its indices, which only the step knows; "
            "expected torch.sparse_coo_tensor(indices, values, size)"
        )
    values = torch.as_tensor(values)
    dense = torch.zeros(size, dtype=settings.get("dtype") or values.dtype, device=values.device)
    return dense.index_put(tuple(torch.as_tensor(indices)), values.to(dense.dtype), accumulate=True)


def _dense(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if matrix.layout is torch.strided else matrix.to_dense()
