"""Programs of both front ends with several copies of the model on the wafer: the numbers are those of one."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

import cerebras_pytorch.experimental as cstorch
from cs_runtime.errors import CallError
from cs_toolkit.errors import ToolkitError
from cs_toolkit.messages import Message
from cstorch.program import Program
from estimator import CerebrasEstimator, CSRunConfig
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

MODELS = Path(__file__).parents[3] / "models"
STEPS, SEED = 6, 11

Example = Callable[[str], AbstractContextManager[dict[str, ModuleType]]]


def artifact(model_dir: Path) -> dict[str, Any]:
    """The manifest of the only artifact below a folder."""
    (path,) = model_dir.glob("**/cs_*/manifest.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def variables(model_dir: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture
def estimator_of(system: RunningSystem, tmp_path: Path) -> Callable[..., CerebrasEstimator]:
    """(modules of an example, name of the model_dir, run configuration) -> its estimator."""

    def make(modules: dict[str, ModuleType], name: str, **config: Any) -> CerebrasEstimator:
        program = modules["run"].PROGRAM
        path = str(program.folder / program.params_file)
        params = program.merge_params(program.parse_arguments(["-m", "train", "-p", path]))
        fixed = {"cs_ip": system.address, "tf_random_seed": SEED, "save_summary_steps": 1}
        run_config = CSRunConfig(**{**fixed, **config})
        functions = program.functions()
        return CerebrasEstimator(functions.model_fn, tmp_path / name, config=run_config, params=params)

    return make


@pytest.mark.parametrize("name", [pytest.param("fc_mnist", marks=pytest.mark.soak), "resnet"])
def test_losses_and_weights_are_those_of_one_copy(
    name: str,
    estimator_of: Callable[..., CerebrasEstimator],
    example: Example,
    tmp_path: Path,
) -> None:
    """This includes the batch norms of a ResNet, whose statistics are of the whole batch."""
    with example(name) as modules:
        functions = modules["run"].PROGRAM.functions()
        for folder, replicas in (("one", 1), ("two", 2)):
            estimator = estimator_of(modules, folder, num_replicas=replicas)
            estimator.train(functions.train_input_fn, max_steps=STEPS)
    one, two = (read_losses(tmp_path / folder) for folder in ("one", "two"))
    assert len(one) == STEPS
    np.testing.assert_allclose(two, one, rtol=1e-6)
    expected, found = variables(tmp_path / "one"), variables(tmp_path / "two")
    assert found.keys() == expected.keys()
    for variable, value in found.items():
        np.testing.assert_allclose(value, expected[variable], rtol=1e-6, err_msg=variable)
    estimates = [artifact(tmp_path / folder)["estimates"] for folder in ("one", "two")]
    assert [entry["replicas"] for entry in estimates] == [1, 2]
    measured = [json.loads((tmp_path / folder / "performance.json").read_text()) for folder in ("one", "two")]
    assert [entry["num_replicas"] for entry in measured] == [1, 2]
    rates = [entry["est_samples_per_sec"] for entry in measured]
    assert rates == [entry["samples_per_s"] for entry in estimates]
    assert rates[0] < rates[1] < 2 * rates[0]


def test_a_training_continues_with_another_number_bit_for_bit(
    estimator_of: Callable[..., CerebrasEstimator], example: Example, tmp_path: Path
) -> None:
    with example("fc_mnist") as modules:
        functions = modules["run"].PROGRAM.functions()
        estimator_of(modules, "unbroken").train(functions.train_input_fn, max_steps=STEPS)
        for steps, replicas in ((2, 4), (4, "auto"), (STEPS, 1)):
            estimator = estimator_of(modules, "changing", num_replicas=replicas)
            estimator.train(functions.train_input_fn, max_steps=steps)
    expected, found = variables(tmp_path / "unbroken"), variables(tmp_path / "changing")
    for variable, value in found.items():
        np.testing.assert_array_equal(value, expected[variable], err_msg=variable)
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "changing").glob("cs_*/manifest.json")]
    assert len({manifest["estimates"]["replicas"] for manifest in manifests}) == 3


def test_an_evaluation_has_the_rate_of_all_copies(
    estimator_of: Callable[..., CerebrasEstimator], example: Example, tmp_path: Path
) -> None:
    with example("fc_mnist") as modules:
        functions = modules["run"].PROGRAM.functions()
        estimator_of(modules, "trained").train(functions.train_input_fn, max_steps=1)
        checkpoint = tf.train.latest_checkpoint(str(tmp_path / "trained"))
        results = {}
        for replicas in (1, 2):
            estimator = estimator_of(modules, f"eval_{replicas}", num_replicas=replicas)
            results[replicas] = estimator.evaluate(
                functions.eval_input_fn, steps=2, checkpoint_path=checkpoint, use_cs=True
            )
    assert results[1] == results[2]
    one, two = (artifact(tmp_path / f"eval_{n}")["estimates"] for n in (1, 2))
    assert two["deltat_cycles"] == one["deltat_cycles"]
    assert two["samples_per_s"] == pytest.approx(2 * one["samples_per_s"])


def test_the_flag_of_the_original_stack_takes_as_many_as_are_fastest(
    estimator_of: Callable[..., CerebrasEstimator], example: Example, tmp_path: Path
) -> None:
    """`target_num_replicas=-1` in `FullConfig`, as programs of the original write it."""
    options = {"config": Message(target_num_replicas=-1)}
    with example("fc_mnist") as modules:
        functions = modules["run"].PROGRAM.functions()
        estimator = estimator_of(modules, "auto", stack_params=options)
        estimator.compile(functions.train_input_fn)
    manifest = artifact(tmp_path / "auto")
    assert manifest["estimates"]["replicas"] > 1
    assert f"num_replicas auto: {manifest['estimates']['replicas']}," in " ".join(manifest["notices"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_replicas": 7}, "cannot be shared equally by 7 replicas"),
        ({"num_replicas": 2, "execution": "weight_streaming"}, "num_replicas is 2 with execution"),
    ],
)
def test_impossible_layouts_are_refused_before_anything_starts(
    config: dict[str, Any],
    message: str,
    estimator_of: Callable[..., CerebrasEstimator],
    example: Example,
    tmp_path: Path,
) -> None:
    with example("fc_mnist") as modules:
        estimator = estimator_of(modules, "refused", **config)
        with pytest.raises(ToolkitError, match=message) as error:
            estimator.train(modules["run"].PROGRAM.functions().train_input_fn, max_steps=1)
    assert isinstance(error.value, CallError)
    assert not list((tmp_path / "refused").glob("cs_*"))


def trained(model_dir: Path, system: RunningSystem, *flags: str) -> dict[str, torch.Tensor]:
    """The weights that the PyTorch example has after some steps."""
    Program.reset()
    program = MODELS / "fc_mnist" / "pytorch" / "run.py"
    params = program.parent / "configs" / "params_fc_mnist.yaml"
    words = (f"--cs_ip={system.address}", f"--params={params}", f"--max_steps={STEPS}", *flags)
    sys.argv = [str(program), "--mode=train", f"--model_dir={model_dir}", *words]
    runpy.run_path(str(program), run_name="__main__")
    checkpoint: dict[str, Any] = cstorch.load(model_dir / f"checkpoint_{STEPS}.mdl")
    return {key: torch.as_tensor(value) for key, value in checkpoint["model"].items()}


def test_a_torch_program_has_the_weights_of_one_copy(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    flags = {"one": (), "two": ("--num_replicas=2",), "auto": ("--multireplica",)}
    try:
        weights = {name: trained(tmp_path / name, system, *words) for name, words in flags.items()}
        with pytest.raises(CallError, match="cannot be shared equally by 7 replicas"):
            trained(tmp_path / "seven", system, "--num_replicas=7")
    finally:
        Program.reset()
    replicas = {name: artifact(tmp_path / name)["estimates"]["replicas"] for name in flags}
    assert (replicas["one"], replicas["two"]) == (1, 2)
    assert replicas["auto"] > 1
    for name in ("two", "auto"):
        for key, expected in weights["one"].items():
            torch.testing.assert_close(weights[name][key], expected, rtol=1e-6, atol=1e-8)
