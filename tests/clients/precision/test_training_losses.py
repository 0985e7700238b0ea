"""Programs in 16 bits learn what they learn in float32."""

from __future__ import annotations

import itertools
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
from cgc.cirh.ops import BroadcastInDimOp, CastOp, ReshapeOp, TransposeOp
from cgc.cirh.types import dtype_name, tensor_of
from cgc.cirh.verify import verify_module
from cgc.driver import CompileOptions
from cgc.lowering.interpret import step_function
from cgc.passes.pipeline import run_pipeline
from cgc.precision import Precision
from estimator import CSRunConfig
from estimator.front_end import TensorFlowFrontEnd
from estimator.input import InputSource

LAST = 20
SLOW_FC_MNIST = {"optimizer": {"learning_rate": 1e-4}}
"""At the program's own rate the loss falls to 0.02, and moves by 3 % when the weights change by 0.1 %."""


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
            params = run.merged_params(run.parse_arguments(["-m", "train"]))
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


def halves(module: ModuleOp) -> dict[str, set[str]]:
    """Op name -> element types of its results, floats alone."""
    found: dict[str, set[str]] = {}
    for op in graph_function(module).body.block.ops:
        if isinstance(op, CirhOp):
            types = {dtype_name(tensor_of(result)) for result in op.results}
            found.setdefault(op.name, set()).update(types & {"float32", "float16"})
    return found


def test_what_has_to_be_exact_stays_in_float32(program: Callable[..., Program]) -> None:
    gpt2 = program("gpt2", {"model": {"num_hidden_layers": 1}}, 1)
    module = gpt2.rewritten("cbfloat16")
    types = halves(module)
    interface = step_interface(module)
    assert interface == step_interface(gpt2.module)
    assert {spec.dtype for spec in interface.state} == {"float32", "int64"}
    for name in ("cirh.SparseSoftmaxCrossEntropyWithLogits", "cirh.Reduce", "cirh.BiasAddGrad", "cirh.Sqrt"):
        assert types.get(name, {"float32"}) == {"float32"}, name
    assert types["cirh.MatMul"] == {"float16"}
    for value in graph_function(module).get_return_op().operands:
        assert dtype_name(tensor_of(value)) != "float16"


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_no_value_is_widened_and_rounded_again(program: Callable[..., Program], name: str) -> None:
    module = program(name, {}, 1).rewritten("cbfloat16")
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
        ("fc_mnist", {"model": {"hidden_sizes": [100]}, **SLOW_FC_MNIST}, 60),
        ("gpt2", {"model": {"num_hidden_layers": 1}}, 40),
    ],
)
def test_a_short_training(program: Callable[..., Program], name: str, changes: Any, steps: int) -> None:
    trained = program(name, changes, steps)
    expected = trained.last_loss("float32")
    assert trained.last_loss("cbfloat16") == pytest.approx(expected, rel=0.02)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "changes"), [("fc_mnist", SLOW_FC_MNIST), ("resnet", {}), ("bert", {}), ("gpt2", {})]
)
def test_two_hundred_steps(program: Callable[..., Program], name: str, changes: Any) -> None:
    trained = program(name, changes, 200)
    expected = trained.last_loss("float32")
    found = {precision: trained.last_loss(precision) for precision in ("mixed_float16", "cbfloat16")}
    for precision, loss in found.items():
        print(f"{name} {precision}: {loss:.5f}, float32 {expected:.5f}, {loss / expected - 1:+.3%}")
    assert found == pytest.approx(dict.fromkeys(found, expected), rel=0.02)
