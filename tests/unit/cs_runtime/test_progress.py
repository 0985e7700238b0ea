from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cs_runtime.progress
from cs_runtime.errors import NonFiniteLossError
from cs_runtime.progress import (
    HostProgress,
    Progress,
    RecentRate,
    StepEvents,
    begin_training,
    end_training,
    log_how_to_resume,
    log_unsaved_steps,
    record_step,
    report_checkpoint,
    report_wait,
)
from cs_system.client import StepOutputs
from csrun.jobs.progress import read_progress

STEP_S = 0.5


@pytest.fixture(autouse=True)
def no_training_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cs_runtime.progress, "_current", None)
    monkeypatch.setattr(cs_runtime.progress, "_newest", None)
    monkeypatch.setattr(cs_runtime.progress, "_ended", None)


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
    found = (re.match(pattern, record.getMessage()) for record in caplog.records)
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


def test_a_line_shows_the_progress_of_a_training_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    begin_training(tmp_path, 7, 107)
    progress = Progress(7, 8, 10, tmp_path)
    for outputs in spans([13, 10], 7):
        progress.add(outputs)
        report_checkpoint(20, tmp_path / "model.ckpt-20")
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "continuing at step 7 of 107"
    assert said[1] == (
        "global step 8: loss = 8 (2.00 steps/sec, 16 samples/sec); of 107; checkpoint 7; input keeps up"
    )
    assert said[-1] == (
        "global step 30: loss = 30 (2.00 steps/sec, 16 samples/sec); of 107, 38 s left; checkpoint 20; "
        "input keeps up"
    )


@pytest.mark.parametrize("lengths", [[40], [20, 20], [5, 15, 10, 10]])
def test_time_without_a_batch_makes_a_line_input_bound(
    lengths: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    progress = Progress(0, 8, 20, tmp_path)
    for outputs in spans(lengths):
        progress.add(replace(outputs, waited_s=0.3 * STEP_S * outputs.count))
    ends = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
    assert ends[1:] == ["input-bound: 30% of the time without a batch"] * 2


def test_no_lines_where_none_are_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    for every in (0, None):
        Progress(0, 8, every, tmp_path).add(spans([30])[0])
    assert not lines(caplog)


def test_the_notes_of_a_job_are_next_to_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    begin_training(tmp_path / "model", 0, 100)
    progress = Progress(0, 8, 10, tmp_path)
    for outputs in spans([10, 15]):
        progress.add(outputs)
    report_checkpoint(25, tmp_path / "model/model.ckpt-25")
    noted = read_progress(tmp_path)
    assert noted is not None
    assert (noted.step, noted.last_step, noted.loss, noted.checkpoint_step) == (25, 100, 20.0, 25)
    assert noted.resume_hint() == (
        f"training was at global step 25 of 100; its newest checkpoint is of step 25 ({tmp_path}/model): "
        "the same command resumes from there"
    )


def test_what_a_training_waits_for_stands_in_its_notes_until_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        noted = read_progress(tmp_path)
        assert noted is not None
        return noted.summary()

    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    begin_training(tmp_path / "model", 0, 100)
    progress = Progress(0, 8, 10, tmp_path)
    first, second = spans([10, 1])
    progress.add(first)
    report_wait("MemoryX at 10.0.0.7:9002 has not answered for 8 s")
    assert told().endswith("no step since: MemoryX at 10.0.0.7:9002 has not answered for 8 s")
    assert " left" not in told()
    progress.add(second)
    assert " left" in told()
    assert "no step since" not in told()


@pytest.mark.parametrize("launched", [False, True])
def test_an_interrupted_training_run_prints_how_to_resume(
    launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    monkeypatch.delenv("CSRUN_LOG_DIR", raising=False)
    if launched:  # where the launcher says it
        monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    begin_training(tmp_path, 0, 100)
    record_step(12)
    log_how_to_resume(KeyboardInterrupt())
    told = [r.getMessage() for r in caplog.records]
    assert told == ([] if launched else [
        "training was at global step 12 of 100 and has written no checkpoint: "
        "the same command starts again from the beginning"
    ])  # fmt: skip
    caplog.clear()
    log_how_to_resume(ValueError("a bug of the program"))
    assert not caplog.records


def test_progress_on_this_cpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    now_s = 100.0
    monkeypatch.setattr(cs_runtime.progress.time, "perf_counter", lambda: now_s)
    progress = HostProgress(tmp_path, 7, None, 10)
    for step in range(8, 21):
        now_s += STEP_S
        progress.add(step, 8)
        if step == 12:
            assert progress.scalars(3.0) == {"loss": 3.0, "global_step/sec": 2.0, "samples/sec": 16.0}
        if progress.is_line_due:
            progress.log_line(float(step))
    assert lines(caplog) == [(8, 8.0, 2.0, 16.0), (10, 10.0, 2.0, 16.0), (20, 20.0, 2.0, 16.0)]
    progress.log_end(20.0)
    assert [record.getMessage() for record in caplog.records[-2:]] == [
        "Training finished with 104 samples in 6.500 seconds, 16.00 samples/second.",
        "Loss for final step: 20.",
    ]


def test_steps_between_two_lines_are_recorded_with_their_loss_and_recent_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path))
    monkeypatch.setattr(cs_runtime.progress, "_WRITE_EVERY_S", 0.0)
    begin_training(tmp_path / "model", 0, 100)
    progress = Progress(0, 8, 1000, tmp_path)
    for outputs in spans([10, 15]):
        progress.add(replace(outputs, waited_s=0.3 * STEP_S * outputs.count))
    noted = read_progress(tmp_path)
    assert noted is not None
    assert (noted.step, noted.loss, noted.steps_per_s, noted.samples_per_s) == (25, 25.0, 2.0, 16.0)
    assert noted.input_wait == pytest.approx(0.3)
    assert not noted.ended
    end_training(25)
    noted = read_progress(tmp_path)
    assert noted is not None
    assert noted.ended


def test_a_recent_rate_is_that_of_the_last_seconds() -> None:
    recent = RecentRate()
    assert recent.rates() is None
    at_s = 0.0
    for step in range(1000):
        at_s += 0.1 if step < 500 else 0.05
        recent.add(step, at_s)
    rates = recent.rates()
    assert rates is not None
    assert rates == pytest.approx((20.0, 0.0))
    assert len(recent._marks) < 50


def test_the_end_has_steps_checkpoint_input_and_reports(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    begin_training(Path("m"), 7, 32)
    progress = Progress(7, 8, None, tmp_path)
    for outputs in spans([10, 15], 7):
        progress.add(replace(outputs, waited_s=0.3 * STEP_S * outputs.count))
    report_checkpoint(32, "m/model.ckpt-32")
    end_training(32, progress.input_wait, [Path("m/run_summary.json"), Path("m/cs_ab/compile_report.txt")])
    assert caplog.records[-1].getMessage() == (
        "steps 8 to 32; newest checkpoint of step 32: m/model.ckpt-32; input-bound: 30% of the time without "
        "a batch; reports: m/run_summary.json, m/cs_ab/compile_report.txt"
    )
    log_unsaved_steps("save them")
    assert caplog.records[-1].getMessage().startswith("steps 8 to 32")


@pytest.mark.parametrize(
    ("saved", "text"),
    [
        ([], "no checkpoint was written of the 25 steps; save them"),
        ([10], "the last 15 steps are in no checkpoint; save them"),
        ([24], "the last step is in no checkpoint; save them"),
    ],
)
def test_steps_that_are_in_no_checkpoint_are_named_at_the_end(
    saved: list[int], text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    for first, last in ((0, 20), (20, 25)):  # two epochs of a program's own loop
        begin_training(tmp_path, first, last, resumes=False)
        record_step(last)
        for step in saved:
            if first < step <= last:
                report_checkpoint(step, f"ckpt-{step}.mdl")
        end_training(last)
    log_unsaved_steps("save them")
    assert caplog.records[-1].getMessage() == text
    report_checkpoint(25, "last.mdl")  # after the loop
    log_unsaved_steps("save them")
    assert caplog.records[-1].getMessage() == text


def test_a_loop_that_continues_the_one_before_claims_no_checkpoint(tmp_path: Path) -> None:
    begin_training(tmp_path, 0, 20, resumes=False)
    end_training(20)
    begin_training(tmp_path, 20, 40, resumes=False)
    assert cs_runtime.progress._current is not None
    assert cs_runtime.progress._current.checkpoint_step is None


class Events:
    """An event file that keeps its entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.entries.append((step, dict(values)))


@pytest.mark.parametrize("lengths", [[40], [5, 15, 10, 10]])
def test_every_entry_of_an_event_file_is_written_once(lengths: list[int]) -> None:
    events = Events()
    observer = StepEvents(events, 20, 8)
    for outputs in spans(lengths):
        observer.steps(outputs)
    rates = {"global_step/sec": 2.0, "samples/sec": 16.0}
    assert events.entries == [(20, {"loss": 20.0, **rates}), (40, {"loss": 40.0, **rates})]
