"""All that the lowering emits is on the list of the CS system (`cs_system.engine.allowed_ops`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax import export, lax
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.execution.compilation import CompileOptions
from cgc.lowering.interpret import PLATFORMS, export_step
from cgc.passes.pipeline import run_pipeline
from cs_system.engine.allowed_ops import check_exported
from tests.programs.steps import LINEAR
from tests.unit.cgc.kernels.every_op import CASES
from tests.unit.cgc.kernels.test_every_op import single_op_module


def check(module: ModuleOp) -> None:
    check_exported(export.deserialize(bytearray(export_step(module, step_interface(module)))))


@pytest.mark.parametrize("name", CASES)
def test_an_op_is_allowed(name: str) -> None:
    check(single_op_module(*CASES[name]))


# JAX chooses kernels by the size of a matrix, and by whether it is wide or tall.
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (300, 300), (2000, 5), (5, 2000), (1500, 1600)])
@pytest.mark.parametrize("full", [False, True])
def test_linear_algebra_of_any_size_is_allowed(shape: tuple[int, int], full: bool) -> None:
    def factorize(x: jax.Array) -> tuple[object, ...]:
        found = [
            lax.linalg.lu(x),
            lax.linalg.qr(x, full_matrices=full),
            lax.linalg.svd(x, full_matrices=full),
        ]
        if shape[0] == shape[1]:
            lower = lax.linalg.cholesky(x, symmetrize_input=False)
            found += [
                lower,
                lax.linalg.eigh(x, symmetrize_input=False),
                lax.linalg.triangular_solve(
                    lower, x, left_side=True, lower=full, transpose_a=full, unit_diagonal=full
                ),
            ]
        return tuple(found)

    exporter = export.export(jax.jit(factorize), platforms=PLATFORMS)
    data = exporter(jax.ShapeDtypeStruct(shape, np.float32)).serialize()
    check_exported(export.deserialize(data))


@pytest.mark.parametrize("precision", ["float32", "mixed_float16", "mixed_bfloat16", "cbfloat16"])
def test_a_step_in_any_precision_is_allowed(precision: str) -> None:
    module = parse_module((LINEAR.parent / "mlp_train.mlir").read_text())
    run_pipeline(module, CompileOptions(precision=precision).pipeline)
    check(module)


@pytest.mark.parametrize(
    "name",
    [
        "fc_mnist",
        "gpt2",
        "resnet",
        *(pytest.param(n, marks=pytest.mark.soak) for n in ("bert", "transformer", "unet")),
    ],
)
def test_an_example_is_allowed(name: str, step_of: Callable[[str], ModuleOp]) -> None:
    module = step_of(name)
    run_pipeline(module)
    check(module)
