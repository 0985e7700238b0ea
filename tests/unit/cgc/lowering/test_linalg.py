"""Factorizations of batches of matrices: those of numpy, and one matrix at a time for LAPACK."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from xdsl.utils.test_value import create_ssa_value

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.types import element_type, tensor_type
from cgc.lowering.jax_table import lower

BATCH, SIZE = (2, 3), 4
OPS: dict[str, Callable[..., CirhOp]] = {
    "cholesky": ops.CholeskyOp,
    "triangular": lambda a, b: ops.TriangularSolveOp(a, b, lower=True),
    "lu": ops.LuOp,
    "qr": ops.QrOp,
    "svd": ops.SvdOp,
    "eigh": ops.EighOp,
}


def _product(name: str, x: Any, found: Any) -> Any:
    """The matrices again, of their factors."""
    if name == "cholesky":
        return found @ found.swapaxes(-1, -2)
    if name == "triangular":
        return np.tril(x) @ found
    if name == "lu":
        factors, _, permutation = found
        rows = np.tril(factors, -1) + np.eye(SIZE)
        return np.take_along_axis(rows @ np.triu(factors), permutation.argsort(-1)[..., None], -2)
    if name == "qr":
        return found[0] @ found[1]
    if name == "svd":
        return (found[0] * found[1][..., None, :]) @ found[2]
    return (found[1] * found[0][..., None, :]) @ found[1].swapaxes(-1, -2)


@pytest.mark.parametrize("batch", [BATCH, (1,), ()], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_factors_make_the_matrix_again(
    name: str, batch: tuple[int, ...], run_op: Any, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(*batch, SIZE, SIZE)).astype(np.float32)
    x = x @ x.swapaxes(-1, -2) + np.eye(SIZE, dtype=np.float32)
    found = run_op(OPS[name], *[x] * (2 if name == "triangular" else 1))
    np.testing.assert_allclose(_product(name, x, found), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPS)
def test_no_operation_shares_its_batch_among_threads(name: str) -> None:
    # jaxlib's operations on batches deadlock where two of them run at the same time.
    x = np.zeros((*BATCH, SIZE, SIZE), np.float32)
    operands = [x] * (2 if name == "triangular" else 1)
    op = OPS[name](*(create_ssa_value(tensor_type(x.shape, element_type("float32"))) for _ in operands))
    text = jax.jit(lambda *v: lower(op, *v)).lower(*operands).as_text()
    calls = re.findall(r"custom_call @lapack_\S+?\(.*-> .*", text)
    assert calls
    for call in calls:
        shapes = re.findall(r"tensor<([\dx]*)x[fi]\d+>", call)
        assert all(shape.count("x") < 2 for shape in shapes), call
