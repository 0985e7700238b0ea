"""Training steps of the example models: every op says which layer it is of, before and after passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.base import LAYER, CirhOp, LayerPath
from cgc.execution.compilation import CompileOptions
from cgc.kernels.program import PRODUCTS
from cgc.passes.pipeline import run_pipeline


def ops_of(module: ModuleOp) -> list[CirhOp]:
    return [op for op in module.walk() if isinstance(op, CirhOp)]


def layers_by_node(module: ModuleOp) -> dict[str | None, LayerPath]:
    """Node name -> layer; an op without a name or a layer fails here, and so do two layers of one node."""
    found: dict[str | None, LayerPath] = {}
    for op in ops_of(module):
        assert op.node_name is not None, op
        assert LAYER in op.attributes, op
        assert found.setdefault(op.node_name, op.layer) == op.layer, op
    return found


@pytest.mark.parametrize(
    "name",
    [
        "fc_mnist",
        "gpt2",
        "resnet",
        *(pytest.param(n, marks=pytest.mark.soak) for n in ("bert", "transformer", "unet")),
    ],
)
def test_passes_keep_the_layer_of_every_op(name: str, step_of: Callable[[str], ModuleOp]) -> None:
    module = step_of(name)
    imported = layers_by_node(module)
    assert not any("grad" in scope for path in imported.values() for scope in path)
    # GPT-2 multiplies by its table of embeddings outside of any scope; that has two gradients.
    outside = [op for op in ops_of(module) if type(op) in PRODUCTS and not op.layer]
    assert len(outside) == (3 if name == "gpt2" else 0)
    for module_pass in CompileOptions(precision="cbfloat16").pipeline.split(","):
        run_pipeline(module, module_pass, verify=False)
        assert layers_by_node(module).items() <= imported.items(), module_pass
