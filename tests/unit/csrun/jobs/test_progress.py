"""The progress of a training run as text, and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from csrun.jobs.progress import Epochs, ProgressFile, TrainingProgress, read_progress, write_progress

BOUND = TrainingProgress(
    step=1200,
    first_step=0,
    last_step=10_000,
    model_dir="m",
    loss=0.213456,
    steps_per_s=44.0,
    samples_per_s=12_700.0,
    input_wait=0.3,
    checkpoint_step=1000,
)
WHOLE = "step 1200/10000  loss 0.2135  12,700 samples/s  3:20 left  checkpoint 1000"


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (120, f"{WHOLE}  input-bound 30%"),
        (80, "step 1200/10000  loss 0.2135  12,700 samples/s  3:20 left  input-bound 30%"),
        (40, "step 1200/10000  loss 0.2135  3:20 left"),
        (20, "step 1200/10000"),
        (5, "step 1200/10000"),
    ],
)
def test_the_live_line_leaves_out_what_does_not_fit(columns: int, text: str) -> None:
    shown = BOUND.live_text(columns)
    assert shown == text
    assert len(shown) < columns or shown == "step 1200/10000"


def test_an_input_that_keeps_up_is_the_least_important() -> None:
    running = replace(BOUND, input_wait=0.01)
    assert running.live_text(120) == f"{WHOLE}  input keeps up"
    assert running.live_text(80) == WHOLE


def test_metrics_follow_the_loss() -> None:
    progress = replace(BOUND, metrics={"accuracy": 0.9375, "auc": 0.5})
    assert progress.line().startswith("global step 1200: loss = 0.213456, accuracy = 0.9375, auc = 0.5 (")
    assert "  loss 0.2135  accuracy 0.9375  auc 0.5  12,700 samples/s  " in progress.live_text(120)
    assert "auc" not in progress.live_text(80)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (100, "epoch 1 of 3, step 1 of 8"),
        (101, "epoch 1 of 3, step 1 of 8"),
        (108, "epoch 1 of 3, step 8 of 8"),
        (109, "epoch 2 of 3, step 1 of 8"),
        (120, "epoch 3 of 3, step 4 of 4"),
    ],
)
def test_a_step_has_a_place_in_the_epochs(step: int, text: str) -> None:
    assert Epochs(3, 8, 100, 120).text(step) == text


def test_epochs_are_shown() -> None:
    progress = replace(BOUND, epoch="epoch 2 of 5, step 120 of 938")
    assert "; of 10000, 3 min 20 s left; epoch 2 of 5, step 120 of 938; checkpoint 1000;" in progress.line()
    assert "  epoch 2 of 5  " in progress.live_text(100)
    assert "epoch" not in progress.live_text(80)


def test_a_run_that_waits_shows_why() -> None:
    text = replace(BOUND, waits_for="worker 2 has sent no batch for 9 s").live_text(80)
    assert text == "step 1200/10000  no step since: worker 2 has sent no batch for 9 s"


def test_long_times_have_hours() -> None:
    assert "  55:33 left" in replace(BOUND, steps_per_s=2.64).live_text(80)
    assert "  2:26:40 left" in replace(BOUND, steps_per_s=1.0).live_text(80)


def test_a_run_to_the_end_of_its_input_has_no_time_left() -> None:
    assert TrainingProgress(3, 0, None, "m").live_text(80) == "step 3"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"step": "7"},
        {"loss": "nan"},
        {"metrics": ["accuracy"]},
        {"metrics": {"accuracy": None}},
        {"steps_per_s": 1e-320},
        {"epoch": 2},
    ],
)
def test_a_damaged_file_is_no_progress(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = {"step": 7, "first_step": 0, "last_step": 100, "model_dir": "m", "loss": 0.5} if fields else {}
    (tmp_path / "progress.json").write_text(json.dumps({**whole, **fields}))
    assert read_progress(tmp_path) is None


def test_the_file_of_an_earlier_start_is_not_shown(tmp_path: Path) -> None:
    write_progress(tmp_path, BOUND)
    file = ProgressFile(tmp_path)
    assert file.read() is None
    write_progress(tmp_path, replace(BOUND, step=1300))
    assert file.read() == file.read() == replace(BOUND, step=1300)
    (tmp_path / "progress.json").unlink()
    assert file.read() == replace(BOUND, step=1300)
