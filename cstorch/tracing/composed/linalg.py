"""Functions of matrices that PyTorch computes with limits in float64, or in its own way on a CPU."""

from __future__ import annotations

from typing import Any

import torch

_pinv = torch.linalg.pinv


def frobenius_norm(x: torch.Tensor, dim: tuple[int, ...] = (), keepdim: bool = False) -> torch.Tensor:
    """What `torch.norm` calls on devices that it does not know; PyTorch warns that its own goes away."""
    return torch.linalg.vector_norm(x, 2, dim or None, keepdim)


def lstsq(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.linalg.lstsq`: the shortest of the solutions with the least squares, by singular values.

    Args:
        a: `[..., M, N]`.
        b: `[..., M, K]`, or a vector for each matrix, `[..., M]`.
        rcond: singular values up to this share of the largest count as zero.
        driver: of LAPACK; it decides which of the other results have elements.

    Returns:
        solution, sums of the squares that are left, ranks, singular values.
    """
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    least = max(a.shape[-2:]) * torch.finfo(a.dtype).eps if rcond is None else rcond
    kept = s > least * s.amax(-1, keepdim=True)
    inverse = torch.where(kept, 1 / torch.where(kept, s, 1.0), 0.0)
    solution = vt.mT @ (inverse.unsqueeze(-1) * (u.mT @ right))
    left = a.new_empty(0)
    if driver in ("gels", "gelss", "gelsd") and a.size(-2) > a.size(-1):
        left = (right - a @ solution).square().sum(-2)
    rank = torch.empty(0, dtype=torch.int64, device=a.device) if driver == "gels" else kept.sum(-1)
    values = s if driver in ("gelss", "gelsd") else a.new_empty(0)
    return solution.squeeze(-1) if is_vector else solution, left, rank, values


def matrix_rank(
    A: torch.Tensor,  # noqa: N803 - as torch calls it
    tol: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> torch.Tensor:
    """`torch.linalg.matrix_rank`: the number of singular values above a limit.

    Args:
        A: `[..., M, N]`.
        tol: the limit, in the older signature.
        hermitian: A is symmetric; its lower triangle is read.
        atol: the limit.
        rtol: the limit as a share of the largest one, by default the precision times the size without `atol`.
    """
    values = torch.linalg.eigvalsh(A).abs() if hermitian else torch.linalg.svdvals(A)
    if tol is not None:
        atol, rtol = tol, 0.0
    if rtol is None:
        default = max(A.shape[-2:]) * torch.finfo(A.dtype).eps
        given = torch.as_tensor(0.0 if atol is None else atol, device=A.device)
        rtol = torch.where(given > 0, 0.0, default)
    relative = _of_each_matrix(rtol, values) * values.amax(-1, keepdim=True)
    return (values > torch.maximum(relative, _of_each_matrix(0.0 if atol is None else atol, values))).sum(-1)


def _of_each_matrix(limit: Any, values: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(limit, dtype=values.dtype, device=values.device).unsqueeze(-1)


def pinv(
    A: torch.Tensor,  # noqa: N803
    rcond: Any = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> torch.Tensor:
    """`torch.linalg.pinv`, with its limits in the element type of the matrices."""
    rtol = rcond if rtol is None else rtol
    limits = {
        name: torch.as_tensor(limit, dtype=A.dtype, device=A.device)
        for name, limit in (("atol", atol), ("rtol", rtol))
        if limit is not None
    }
    if hermitian:  # PyTorch reads the lower triangle
        A = A + (A.tril() + A.tril(-1).mT - A).detach()  # noqa: N806
    with torch._C.DisableTorchFunctionSubclass():
        return _pinv(A, **limits)


def pinverse(input: torch.Tensor, rcond: float = 1e-15) -> torch.Tensor:  # noqa: A002
    """`torch.pinverse`."""
    return pinv(input, rcond)


def householder_product(A: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """`torch.linalg.householder_product`, by the compact WY form `I - V T V^T`.

    Source: R. Schreiber and C. Van Loan, A storage-efficient WY representation for products of Householder
    transformations, 1989.

    Args:
        A: `[..., M, N]`, whose first K columns have the reflectors below the diagonal.
        tau: `[..., K]`, the scale of each reflector.
    """
    (rows, columns), count = A.shape[-2:], tau.size(-1)
    options = {"dtype": A.dtype, "device": A.device}
    reflectors = A[..., :count].tril(-1) + torch.eye(rows, count, **options)
    scale = tau.unsqueeze(-1)
    one = torch.eye(count, **options)
    products = (reflectors.mT @ reflectors).triu(1)
    t = torch.linalg.solve_triangular(one + scale * products, scale * one, upper=True, unitriangular=True)
    first = reflectors[..., :columns, :].mT
    return torch.eye(rows, columns, **options) - reflectors @ (t @ first)
