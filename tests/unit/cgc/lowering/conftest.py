"""Runs single CIRH ops through their lowerings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from xdsl.ir import Block

from cgc.cirh.base import CirhOp
from cgc.cirh.types import tensor_type
from cgc.lowering.base import narrow_to_device, result_dtype, result_shape
from cgc.lowering.jax_table import lower

RunOp = Callable[..., Any]


@pytest.fixture(scope="session")
def run_op() -> RunOp:
    """`run_op(build, *arrays)`: the results of the op that `build` makes of values of the arrays' types.

    Also checks that every result has the shape and type that the op declares.
    """

    def run(build: Callable[..., CirhOp], *arrays: Any) -> Any:
        operands = [np.asarray(array) for array in arrays]
        block = Block(arg_types=[tensor_type(array.shape, array.dtype) for array in operands])
        op = build(*block.args)
        op.verify()
        values = [narrow_to_device(array, "an operand") for array in operands]
        results = [np.asarray(r) for r in jax.jit(lambda *v: lower(op, *v))(*values)]
        for index, result in enumerate(results):
            assert result.shape == result_shape(op, index)
            assert result.dtype == result_dtype(op, index)
        return results[0] if len(results) == 1 else tuple(results)

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
