"""Programs in 16 bits learn as in float32."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import graph_function, step_interface
from cgc.cirh.module import verify_module
from cgc.cirh.ops import BroadcastInDimOp, CastOp, ReshapeOp, TransposeOp
from cgc.cirh.types import dtype_name, tensor_of
from cgc.execution.compilation import CompileOptions
from cgc.lowering.interpret import step_function
from cgc.passes.pipeline import run_pipeline
from cs_toolkit.step import Precision
from estimator import CSRunConfig
from estimator.cs.program import TensorFlowFrontEnd
from estimator.input.dataset import InputSource

LAST = 20


@dataclass(frozen=True)
class Program:
    """A traced step, its first state, and batches."""

    module: ModuleOp
    state: Mapping[str, np.ndarray]
    batches: list[tuple[np.ndarray, ...]]

    def rewritten(self, precision: Precision) -> ModuleOp:
        module = self.module.clone()
        run_pipeline(module, CompileOptions(precision=precision).pipeline)
        verify_module(module)
        return module

    def last_loss(self, precision: Precision) -> float:
        """Mean loss of the last steps of a training on all batches."""
        module = self.rewritten(precision)
        interface = step_interface(module)
        step = jax.jit(step_function(module), donate_argnums=0)
        state: Any = tuple(np.array(self.state[spec.name]) for spec in interface.state)
        loss = [spec.name for spec in interface.outputs].index("output_loss")
        losses = []
        for batch in self.batches:
            state, outputs = step(state, batch)
            losses.append(outputs[loss])
        return float(np.mean(losses[-LAST:]))


@pytest.fixture
def program(example: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Traces an example with its default parameters: (name, group -> changes, steps) -> Program."""
    with ExitStack() as stack:

        def make(name: str, changes: Mapping[str, Mapping[str, Any]], steps: int) -> Program:
            run = stack.enter_context(example(name))["run"].PROGRAM
            params = run.merge_params(run.parse_arguments(["-m", "train"]))
            for group, values in changes.items():
                params[group].update(values)
            functions = run.functions()
            config = CSRunConfig(tf_random_seed=1)
            source = InputSource(functions.train_input_fn, "train", params, config, {})
            end = TensorFlowFrontEnd(functions.model_fn, source, params, config, tmp_path)
            stack.callback(end.close)
            batches = list(itertools.islice(end.batches(0), steps))
            return Program(end.program().module, end.initial_state(), batches)

        yield make


ACTIVATIONS = {
    "cirh.FusedBatchNorm": {0, 5},
    "cirh.FusedBatchNormGrad": {0, 1, 5},
    "cirh.LayerNorm": {0, 3},
    "cirh.LayerNormGrad": {0, 1, 5},
}
"""Norms: which of their operands, followed by results, are activations or their gradients."""

COMPUTED_IN_16_BITS = re.compile(
    r"cirh\.(Cast|Const|MatMul|Convolution|Attention|AttentionGrad|Add|Mul|Div|Neg|Select|Gather|Pool"
    r"|MaxPoolGrad|BiasAdd|Composite|Relu|ReluGrad|Gelu|GeluGrad|Tanh|TanhGrad|Reshape|Transpose"
    r"|BroadcastInDim|Slice|pad|Concat)"
)
"""Everything else has nothing of 16 bits: sums of samples, losses, optimizers among it."""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"num_hidden_layers": 1}),
        ("bert", {"num_hidden_layers": 1}),
        ("resnet", {}),
        ("fc_mnist", {}),
    ],
)
def test_mixed_precision_keeps_state_losses_and_sums_in_float32(
    program: Callable[..., Program], name: str, changes: Any
) -> None:
    traced = program(name, {"model": changes}, 1)
    module = traced.rewritten("cbfloat16")
    assert step_interface(module) == step_interface(traced.module)
    check_exact_parts(module)
    check_values_are_rounded_once(module)


def check_exact_parts(module: ModuleOp) -> None:
    """State, results, losses, sums, optimizers and the statistics and parameters of norms are float32."""
    assert {spec.dtype for spec in step_interface(module).state} == {"float32", "int64"}
    for value in graph_function(module).get_return_op().operands:
        assert dtype_name(tensor_of(value)) != "float16"
    found = set()
    for op in graph_function(module).body.block.ops:
        if isinstance(op, CirhOp):
            found.add(op.name)
            values = [*op.operands, *op.results]
            activations = ACTIVATIONS.get(op.name)
            if activations is None and not COMPUTED_IN_16_BITS.fullmatch(op.name):
                assert all(dtype_name(tensor_of(value)) != "float16" for value in values), op
            elif activations is not None:
                are_half = [dtype_name(tensor_of(value)) == "float16" for value in values]
                assert are_half == [index in activations for index in range(len(values))], op
    assert "cirh.MatMul" in found
    assert not found.isdisjoint({"cirh.Adam", "cirh.AdamW", "cirh.Momentum"})


def check_values_are_rounded_once(module: ModuleOp) -> None:
    """No value is widened and rounded again on its way."""
    narrowing = [
        op
        for op in graph_function(module).body.block.ops
        if isinstance(op, CastOp) and dtype_name(tensor_of(op.result)) == "float16"
    ]
    assert narrowing
    assert len({op.x for op in narrowing}) == len(narrowing), "a value is cast twice"
    for op in narrowing:
        source: Any = op.x.owner
        while isinstance(source, ReshapeOp | TransposeOp | BroadcastInDimOp):
            source = source.x.owner
        if isinstance(source, CastOp):
            assert dtype_name(tensor_of(source.x)) != "float16", op


@pytest.mark.parametrize(
    ("name", "changes", "steps"),
    [
        ("fc_mnist", {"model": {"hidden_sizes": [100]}}, 60),
        ("gpt2", {"model": {"num_hidden_layers": 1}}, 40),
    ],
)
def test_a_short_training(program: Callable[..., Program], name: str, changes: Any, steps: int) -> None:
    trained = program(name, changes, steps)
    expected = trained.last_loss("float32")
    assert trained.last_loss("cbfloat16") == pytest.approx(expected, rel=0.02)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["fc_mnist", "resnet", "unet", "bert", "gpt2", "transformer"])
def test_two_hundred_steps(program: Callable[..., Program], name: str) -> None:
    trained = program(name, {}, 200)
    expected = trained.last_loss("float32")
    found = {precision: trained.last_loss(precision) for precision in ("mixed_float16", "cbfloat16")}
    for precision, loss in found.items():
        print(f"{name} {precision}: {loss:.5f}, float32 {expected:.5f}, {loss / expected - 1:+.3%}")
    assert found == pytest.approx(dict.fromkeys(found, expected), rel=0.02)
