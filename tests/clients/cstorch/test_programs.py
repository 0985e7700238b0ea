"""Programs of releases 1.8, 1.9 and 2, unmodified, on a CS system, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from cstorch.utils.tensorboard import SummaryReader
from tests.systems import RunningSystem


def values_by_step(events: Iterable[Any]) -> dict[int, float]:
    """The values of a scalar that `SummaryReader.read_scalar` has read."""
    return {event.step: event.value for event in events}


Run = Callable[..., Any]


def flow_params(folder: Path, system: RunningSystem, **changes: Any) -> Path:
    """The parameter file of the program of release 1.8."""
    warm_up = {
        "scheduler": "Linear",
        "initial_learning_rate": 0.0,
        "end_learning_rate": 0.02,
        "total_iters": 4,
    }
    decay = {
        "scheduler": "CosineDecay",
        "initial_learning_rate": 0.02,
        "end_learning_rate": 0.001,
        "total_iters": 16,
    }
    params = {
        "model_dir": str(folder),
        "compile_dir": str(folder / "compile"),
        "mgmt_address": system.address,
        "model": {"hidden": 16, "dropout": 0.1},
        "optimizer": {
            "optimizer_type": "AdamW",
            "weight_decay": 0.01,
            "correct_bias": True,
            "learning_rate": [warm_up, decay],
        },
        "max_gradient_norm": 1.0,
        "runconfig": {"seed": 1, "num_epochs": 2, "steps_per_epoch": 6, "checkpoint_steps": 4},
        "train_input": {"data_seed": 1, "num_examples": 96, "batch_size": 16},
        "eval_input": {"data_seed": 2, "num_examples": 64, "batch_size": 16},
        **changes,
    }
    path = folder / "params.json"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(params))
    return path


def test_a_flow_of_release_1_8(run_program: Run, system: RunningSystem, tmp_path: Path) -> None:
    """Two loops of an epoch each, summaries of every step, a resumed run that equals it, evaluation."""
    whole = run_program("flow_1_8", "--mode", "train", "--params", flow_params(tmp_path / "whole", system))
    history = whole["history"]
    assert [(epoch, step) for epoch, step, _ in history] == [(step > 6, step) for step in range(1, 13)]
    assert sum(loss for *_, loss in history[-4:]) < 0.9 * sum(loss for *_, loss in history[:4])
    events = SummaryReader(tmp_path / "whole" / "train")
    rates = values_by_step(events.read_scalar("lr"))
    assert list(rates.values()) == whole["rates"]
    assert [rates[step] for step in (1, 2, 3)] == pytest.approx([0.005, 0.01, 0.015], rel=1e-6)
    assert set(values_by_step(events.read_scalar("loss_scale")).values()) == {1024.0}
    assert values_by_step(events.read_scalar("loss")) == pytest.approx(
        {step: loss for _, step, loss in history}, rel=1e-6
    )

    resumed = flow_params(
        tmp_path / "resumed",
        system,
        checkpoint_path=str(tmp_path / "whole" / "checkpoint_8.mdl"),
        runconfig={"seed": 1, "max_steps": 12, "checkpoint_steps": 4},
    )
    again = run_program("flow_1_8", "--mode", "train", "--params", resumed)["history"]
    assert [entry[1:] for entry in again] == [entry[1:] for entry in history[8:]]

    evaluated = flow_params(
        tmp_path / "eval", system, checkpoint_path=str(tmp_path / "whole" / "checkpoint_12.mdl")
    )
    found = run_program("flow_1_8", "--mode", "eval", "--params", evaluated)
    assert found["steps"] == 4
    assert found["eval/accuracy"] > 0.4
    assert found["loss"] < 1.3


def test_a_trainer_of_release_1_9(run_program: Run, system: RunningSystem, tmp_path: Path) -> None:
    """Trains and evaluates alternately; the same program on the CPU has the same numbers and files."""
    flags = ("--mgmt_address", system.address)
    found = run_program("trainer_1_9", "--artifact_dir", tmp_path / "csx", *flags)
    eager = run_program("trainer_1_9", "--backend", "cpu", "--artifact_dir", tmp_path / "cpu", *flags)
    assert len(found["losses"]) == 20
    assert found["losses"] == pytest.approx(eager["losses"], rel=1e-4, abs=1e-6)
    assert found["accuracies"] == eager["accuracies"] == [1.0, 1.0]
    assert found["running"] == eager["running"] == [1.0] * 6
    expected = [0.1 - 0.09 * step / 20 for step in range(1, 21)]
    assert found["learning_rates"] == pytest.approx(expected, rel=1e-5)
    assert found["saved"] == eager["saved"]
    assert found["saved"] == [f"checkpoint_{step}.mdl" for step in (4, 8, 10, 14, 18, 20)]
    assert all(rate > 0 for rate in found["rates"][1:10])
    for backend in ("csx", "cpu"):
        left = {path.name for path in (tmp_path / backend).glob("*.mdl")}
        assert left == {"checkpoint_18.mdl", "checkpoint_20.mdl"}, "max_checkpoints is 2"
        events = SummaryReader(tmp_path / backend / "events")
        rates = values_by_step(events.read_scalar("lr"))
        assert values_by_step(events.read_scalar("seen_lr")) == rates
        assert list(rates) == list(range(1, 21))
        assert [rates[1], rates[20]] == pytest.approx([0.1 - 0.09 / 20, 0.01], rel=1e-5)
    folders = sorted(path.name for path in (tmp_path / "csx" / "executors").iterdir())
    assert folders == ["000001", "000002", "000003", "000004", "latest"]
    assert (tmp_path / "csx" / "executors" / "latest").resolve().name == "000004"


def test_a_gpt_of_release_2(
    run_program: Run, system: RunningSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Own groups and schedule, checkpoints, evaluation, the numbers of the CPU; resumed in 16 bits."""
    flags = ("--mgmt_address", system.address, "--num_workers_per_csx", 1)
    found = run_program("gpt_2", "--out_dir", tmp_path / "csx", *flags)
    eager = run_program("gpt_2", "--out_dir", tmp_path / "cpu", "--backend", "CPU", *flags)
    assert found["saved"] == eager["saved"] == [4, 8, 12]
    assert found["losses"] == pytest.approx(eager["losses"], rel=1e-5)
    assert found["eval"] == pytest.approx(eager["eval"], rel=1e-5)
    assert found["losses"][12] < 0.995 * found["losses"][1]
    assert "| Step=12, Loss=" in capsys.readouterr().out
    events = SummaryReader(tmp_path / "csx" / "train")
    assert values_by_step(events.read_scalar("loss")) == pytest.approx(found["losses"], rel=1e-6)
    assert list(values_by_step(events.read_scalar("eval_loss"))) == [12]

    with_dropout = (*flags, "--dropout", 0.2, "--half", "bfloat16")
    whole = run_program("gpt_2", "--out_dir", tmp_path / "whole", *with_dropout)
    resumed = run_program(
        "gpt_2",
        *("--out_dir", tmp_path / "resumed", *with_dropout),
        *("--checkpoint_path", tmp_path / "whole" / "checkpoint_8.mdl"),
    )
    assert resumed["losses"] == {step: whole["losses"][step] for step in range(9, 13)}
    assert resumed["eval"] == whole["eval"]
