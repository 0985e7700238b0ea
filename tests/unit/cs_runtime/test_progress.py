from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from cs_runtime.errors import NonFiniteLossError
from cs_runtime.progress import Progress
from cs_system.client import StepOutputs

STEP_S = 0.5


def spans(lengths: list[int], first_step: int = 0) -> list[StepOutputs]:
    """Outputs of consecutive calls of these lengths; every step takes 0.5 s, its loss is its number."""
    outputs = []
    for length in lengths:
        losses = np.arange(first_step + 1, first_step + length + 1, dtype=np.float32)
        times = (100 + first_step * STEP_S, 100 + (first_step + length) * STEP_S)
        outputs.append(StepOutputs(first_step, length, {"output_loss": losses}, 8 * length, *times))
        first_step += length
    return outputs


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, float, float, float]]:
    """(step, loss, steps a second, samples a second) of every line."""
    pattern = r"global step (\d+): loss = (\S+) \((\S+) steps/sec, (\S+) samples/sec\)"
    found = (re.fullmatch(pattern, record.getMessage()) for record in caplog.records)
    return [(int(m[1]), float(m[2]), float(m[3]), float(m[4])) for m in found if m]


@pytest.mark.parametrize("lengths", [[45], [1] * 45, [30, 15], [7, 13, 25], [9, 1, 1, 34]])
@pytest.mark.parametrize("first_step", [0, 7])
def test_lines_do_not_depend_on_how_steps_are_grouped(
    lengths: list[int], first_step: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    progress = Progress(first_step, 8, 10, tmp_path)
    for outputs in spans(lengths, first_step):
        progress.add(outputs)
    steps = [first_step + 1, *range(10, first_step + 46, 10)]
    assert lines(caplog) == [(step, step, 2.0, 16.0) for step in steps]
    assert progress.step == first_step + 45
    assert progress.samples == 8 * 45


def test_a_pause_is_in_the_rate_of_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    progress = Progress(0, 8, 10, tmp_path)
    first, second, third = spans([10, 10, 10])
    progress.add(first)
    # A checkpoint of 5 s before step 11.
    for outputs in (second, third):
        later = StepOutputs(
            outputs.first_step, 10, outputs.outputs, 80, outputs.began_s + 5, outputs.ended_s + 5
        )
        progress.add(later)
    assert [rate for _, _, rate, _ in lines(caplog)] == [2.0, 2.0, 1.0, 2.0]


def test_lines_before_a_bad_loss_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    [outputs] = spans([30])
    outputs.outputs["output_loss"][24] = np.nan
    with pytest.raises(NonFiniteLossError, match="at global step 25"):
        Progress(0, 8, 10, tmp_path).add(outputs)
    assert [step for step, *_ in lines(caplog)] == [1, 10, 20]


def test_no_lines_where_none_are_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    for every in (0, None):
        Progress(0, 8, every, tmp_path).add(spans([30])[0])
    assert not lines(caplog)
