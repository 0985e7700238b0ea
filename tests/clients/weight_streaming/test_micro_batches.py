"""Example programs that train in micro-batches compute the numbers of plain TensorFlow and PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import cerebras_pytorch.experimental as cstorch
from cs_runtime.errors import CallError
from estimator import CerebrasEstimator, CSRunConfig
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem, running_system

MODELS = Path(__file__).parents[3] / "models"
STEPS, SEED = 10, 11
CHANGES: dict[str, dict[str, Any]] = {
    "fc_mnist": {"model": {"dropout": 0.0}},
    "gpt2": {
        "model": dict.fromkeys(("dropout_rate", "attention_dropout_rate", "embedding_dropout_rate"), 0.0),
        "optimizer": {"optimizer_type": "sgd", "learning_rate": 0.1},
    },
}

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]
Plain = Callable[..., tuple[list[float], dict[str, Any]]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """Two systems that may share a batch."""
    with running_system(tmp_path_factory.mktemp("pair"), ["--num-csx=2"]) as system:
        yield system


@pytest.fixture
def trained(
    pair: RunningSystem, example: Example, tmp_path: Path
) -> Callable[..., tuple[list[float], dict[str, np.ndarray], Any, Any]]:
    """Trains an example: (losses of all steps, variables after the last, functions, parameters)."""

    def train(name: str, folder: str, changes: dict[str, Any], **streaming: Any) -> Any:
        with example(name) as modules:
            program = modules["run"].PROGRAM
            path = str(program.folder / program.params_file)
            params = program.merge_params(program.parse_arguments(["-m", "train", "-p", path]))
            for group, values in changes.items():
                params[group].update(values)
            functions = program.functions()
            config = CSRunConfig(cs_ip=pair.address, tf_random_seed=SEED, save_summary_steps=1, **streaming)
            model_dir = tmp_path / folder
            made = CerebrasEstimator(functions.model_fn, model_dir, config=config, params=params)
            made.train(functions.train_input_fn, max_steps=STEPS)
        losses = read_losses(model_dir)
        reader = tf.train.load_checkpoint(str(model_dir))
        state = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
        return losses, state, functions, params

    return train


@pytest.mark.parametrize(
    ("name", "count"), [pytest.param("fc_mnist", 1, marks=pytest.mark.soak), ("gpt2", 2)]
)
def test_losses_and_weights_are_those_of_a_plain_session(
    name: str, count: int, trained: Callable[..., Any], plain_session: Plain
) -> None:
    changes = CHANGES[name]
    losses, state, functions, params = trained(
        name, "micro", changes, execution="weight_streaming", num_csx=count, micro_batch_size=4
    )
    expected, variables = plain_session(functions, params, STEPS)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for key, value in variables.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=2e-6, err_msg=key)


def test_dropout_masks_are_those_of_the_whole_batch(trained: Callable[..., Any]) -> None:
    """Adam, clipping and a schedule, as the example has them."""
    whole, expected, *_ = trained("fc_mnist", "whole", {}, execution="pipelined")
    parts, state, *_ = trained("fc_mnist", "micro", {}, execution="weight_streaming", micro_batch_size=64)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    for key, value in expected.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=2e-6, err_msg=key)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["transformer", "bert"])
def test_rows_of_tables_are_updated_as_with_the_whole_batch(name: str, trained: Callable[..., Any]) -> None:
    """The optimizer changes only the rows of tables that the batch has; BERT's are clipped."""
    # Adam makes full steps of gradients that are nothing but rounding errors, as those of the keys' bias.
    changes = {"optimizer": {"epsilon": 1e-3}}
    whole, expected, *_ = trained(name, "whole", changes, execution="weight_streaming")
    for count in (1, 2):
        parts, state, *_ = trained(
            name,
            f"micro_{count}",
            changes,
            execution="weight_streaming",
            num_csx=count,
            micro_batch_size=4,
        )
        np.testing.assert_allclose(parts, whole, rtol=1e-5)
        for key, value in expected.items():
            np.testing.assert_allclose(state[key], value, rtol=1e-5, atol=2e-6, err_msg=key)


def test_impossible_layouts_are_refused_before_anything_starts(trained: Callable[..., Any]) -> None:
    with pytest.raises(CallError, match="micro_batch_size is 7, expected a divisor of the batch of 16"):
        trained("gpt2", "odd", {}, execution="weight_streaming", micro_batch_size=7)
    with pytest.raises(CallError, match="samples flow through the pipeline one by one"):
        trained("gpt2", "pipelined", {}, execution="pipelined", micro_batch_size=4)


def test_a_pytorch_program_equals_itself_on_a_cpu(
    pair: RunningSystem, run_torch_program: Callable[..., str], tmp_path: Path
) -> None:
    program = MODELS / "fc_mnist" / "pytorch" / "run.py"
    plain = (program.parent / "configs" / "params_fc_mnist.yaml").read_text()
    params = tmp_path / "params.yaml"
    params.write_text(
        plain.replace("dropout: 0.2", "dropout: 0.0").replace("log_steps: 20", "log_steps: 1")
        + "  save_losses: true\n  micro_batch_size: 8\n"
        "  execution: weight_streaming\n"
    )
    places = {"cpu": ("--cpu",), "micro": (f"--cs_ip={pair.address}",)}
    for name, flags in places.items():
        words = ("-m=train", f"-p={params}", "--max_steps=10", f"--model_dir={tmp_path / name}", *flags)
        shown = run_torch_program(program, *words)
    assert "in 8 micro-batches of 8 samples (as requested)" in shown
    ours, theirs = (json.loads((tmp_path / name / "losses.json").read_text()) for name in ("micro", "cpu"))
    assert ours == pytest.approx(theirs, rel=1e-5)
    weights = [cstorch.load(tmp_path / name / "checkpoint_10.mdl")["model"] for name in ("micro", "cpu")]
    for key, value in weights[1].items():
        np.testing.assert_allclose(weights[0][key], value, rtol=1e-5, atol=2e-6, err_msg=key)
