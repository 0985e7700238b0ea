"""Schedules as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cs_toolkit.layered_step import Call, LayerCalls, Round, Schedule, ScheduleError, schedule_from_json
from cs_toolkit.step import TensorSpec

WEIGHT, STEP, BATCH, RATE, LOSS, GRADIENT, NORM, NEW = range(8)


def schedule() -> Schedule:
    return Schedule(
        inputs=(BATCH,),
        state={"state.model.w": WEIGHT, "state.global_step": STEP},
        replacements={WEIGHT: NEW},
        outputs=(LOSS,),
        values={number: TensorSpec(str(number), "float32", (2, 3)) for number in range(8)},
        before=Call(0, (STEP,), (), (RATE,)),
        layers=(
            LayerCalls(
                Call(1, (BATCH, WEIGHT), ((1, 2**32 - 1),), (LOSS, GRADIENT)),
                None,
                Call(3, (WEIGHT, GRADIENT, RATE, NORM), (), (NEW,)),
            ),
        ),
        rounds=(Round((Call(2, (GRADIENT,), (), (NORM,)),), None),),
    )


def test_a_schedule_is_read_as_it_was_written() -> None:
    assert schedule_from_json(schedule().to_json()) == schedule()
    assert [call.function for call in schedule().calls()] == [0, 1, 2, 3]
    assert [call.function for call in schedule().wafer_calls()] == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.pop("layers"), "not a schedule of a step in layers"),
        (lambda fields: fields.update(inputs=7), "not a schedule of a step in layers"),
        (lambda fields: fields.update(rounds=[]), "function 3 reads value 6 before it is computed"),
        (lambda fields: fields.update(outputs=[99]), "no function computes value 99"),
    ],
)
def test_invalid_schedules_are_refused(change: Callable[[dict[str, Any]], object], message: str) -> None:
    fields = json.loads(schedule().to_json())
    change(fields)
    with pytest.raises(ScheduleError, match=message):
        schedule_from_json(json.dumps(fields))
