"""What takes from the trust in measurements is said of those that it holds for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from input_analyzer import analyze
from input_analyzer.analysis import Measurement
from input_analyzer.analyze import Examined
from input_analyzer.measure.rates import Effort, Plan
from input_analyzer.notes import unsettled_notes
from input_rules.pace import StageCost


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
    assert Examined({"stages": costs, "may_read_files": files}, 0).may_speed_up is expected


def test_measurements_that_needed_more_time_are_told_apart() -> None:
    tight = Measurement(1, 1, 88.89, 88.43, 89.35, batches=200)
    few = Measurement(1, 1, 88.89, 88.43, 89.35, settled=False, batches=9)
    wide = Measurement(1, 1, 100.0, 90.0, 110.0, settled=False, batches=200)
    restless = Measurement(1, 1, 100.0, 99.0, 101.0, settled=False, batches=200)
    assert unsettled_notes([tight], 0.05) == []
    (one,) = unsettled_notes([few], 0.05)
    assert one.startswith(
        "The only measurement had fewer than 10 batches of each copy, too few to trust its "
    )
    assert unsettled_notes([wide, tight, restless, wide, few, few], 0.05) == [
        "2 of 6 measurements did not become as tight as asked for, see their confidence intervals. More "
        "time: --seconds.",
        "1 of 6 measurements had not come to rest by the middle of its time, so what counts is the last part "
        "only. More time: --seconds.",
        "2 of 6 measurements had fewer than 10 batches of each copy, too few to trust their confidence "
        "intervals. More time: --seconds.",
    ]


@pytest.mark.parametrize(
    ("ended_with", "said", "all_ended"),
    [
        ((), "No epoch ended while it was measured: the rates are", False),
        ((2,), "No epoch ended while it was measured with 1 or 4 CPUs per task: these rates are", False),
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
