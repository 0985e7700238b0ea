"""Reasons to distrust measurements are reported with the measurements that they affect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from input_analyzer import analyze
from input_analyzer.analysis import Measurement
from input_analyzer.analyze import ExaminedInput
from input_analyzer.measure.rates import Effort, Plan
from input_analyzer.report.wording import settling_notes
from input_rules.throughput import StageCost


@pytest.mark.parametrize(
    ("stages", "files", "expected"),
    [
        ((), True, True),
        (("TFRecordDataset",), True, True),
        (("range", "cache"), False, True),
        (("range", "batch"), False, False),
    ],
)
def test_only_what_an_input_has_may_make_later_epochs_faster(
    stages: tuple[str, ...], files: bool, expected: bool
) -> None:
    costs = [asdict(StageCost(op, op, position)) for position, op in enumerate(stages)]
    assert ExaminedInput({"stages": costs, "may_read_files": files}, 0).may_speed_up is expected


def test_measurements_that_needed_more_time_are_reported() -> None:
    settled = Measurement(1, 1, 88.89, 88.43, 89.35, batches=200)
    other = Measurement(1, 1, 88.89, 88.43, 89.35, settled=False, batches=9)
    assert settling_notes([settled]) == []
    (note,) = settling_notes([other, settled, other])
    assert note.startswith(
        "2 of 3 measurements needed more time (--seconds): a copy delivered fewer than 10 "
    )


@pytest.mark.parametrize(
    ("ended_with", "said", "all_ended"),
    [
        ((), "No epoch ended during the measurements, so the rates are", False),
        ((2,), "No epoch ended during the measurements with 1 or 4 CPUs per task, so these rates are", False),
        ((1, 2, 4), None, True),
    ],
)
def test_epochs_that_ended_with_some_numbers_of_cpus(
    monkeypatch: pytest.MonkeyPatch, ended_with: tuple[int, ...], said: str | None, all_ended: bool
) -> None:
    class Seen:
        """Rates, as measured."""

        restarts = 0
        epoch_ended = False

        def __init__(self, *arguments: Any) -> None:
            pass

        def measure(self, launch: Any, plan: Plan, progress: Any) -> Iterator[Measurement]:
            self.epoch_ended = plan.cpus_per_task in ended_with
            self.restarts = 2 * self.epoch_ended
            yield Measurement(1, plan.cpus_per_task, 1.0, 1.0, 1.0)

    monkeypatch.setattr(analyze, "Rates", Seen)
    request: Any = SimpleNamespace(effort=Effort(), cpus=(0,), cold=(), launch=None)
    examined: Any = SimpleNamespace(epoch_of_copy=lambda copies: None, may_speed_up=True)
    todo = [Plan(cpus, (1,)) for cpus in (1, 2, 4)]
    _, notes, ended = analyze._measure(request, examined, todo, lambda doing, part: None)
    assert ended == all_ended
    assert [note.partition(" those of")[0] for note in notes if "No epoch" in note] == (
        [said] if said else []
    )
    assert any("up to 2 times" in note for note in notes) == bool(ended_with)
