"""Descriptions of a compiled step: its schedule, its floorplan, and the model at MemoryX."""

from __future__ import annotations

from cs_system.errors import MemoryxError
from cs_system.memoryx.protocol import ModelDescription
from cs_system.memoryx.store import file_layouts
from cs_toolkit.floorplan import Floorplan, FloorplanError, PlacedKernel, read_floorplan
from cs_toolkit.layered_step import (
    Call,
    LayerCalls,
    MicroBatches,
    Round,
    Schedule,
    ScheduleError,
    Sweep,
    schedule_from_json,
    shards,
)
from cs_toolkit.step import StepInterface, TensorSpec
from tests.fuzz.target import Target

WEIGHT, STEP, BATCH, RATE, LOSS, GRADIENT, NORM, NEW, BIAS, BIAS_GRADIENT, NEW_BIAS = range(11)
LARGE = (64, 3)


def example_schedule(micro: MicroBatches | None = None) -> Schedule:
    """A step with a layer, a call and a sweep that update it, and a round."""
    small = {STEP, RATE, LOSS, NORM}
    return Schedule(
        inputs=(BATCH,),
        state={"state.model.w": WEIGHT, "state.model.b": BIAS, "state.global_step": STEP},
        replacements={WEIGHT: NEW, BIAS: NEW_BIAS},
        outputs=(LOSS,),
        values={
            number: TensorSpec(str(number), "float32", () if number in small else LARGE)
            for number in range(11)
        },
        before=Call(0, (STEP,), (), (RATE,)),
        layers=(
            LayerCalls(
                Call(1, (BATCH, WEIGHT, BIAS), ((1, 2**32 - 1),), (LOSS, GRADIENT, BIAS_GRADIENT)),
                None,
                Call(3, (WEIGHT, GRADIENT, RATE, NORM), (), (NEW,)),
                (Sweep(4, ((BIAS,), (BIAS_GRADIENT,), (RATE,)), ((NEW_BIAS,),)),),
            ),
        ),
        rounds=(Round((Call(2, (GRADIENT,), (), (NORM,)),), None),),
        micro=micro or MicroBatches(),
    )


SCHEDULES = (
    example_schedule(),
    example_schedule(
        MicroBatches(2, (BATCH,), {}, None, {GRADIENT: "sum", BIAS_GRADIENT: "sum", LOSS: "max"})
    ),
)
FLOORPLAN = Floorplan(
    "layer 1", 40, 30, (PlacedKernel("matmul", 0, 0, 20, 30, 0.5),), ((20, 0),), ("matmul",), "", 12.5
)


def use_schedule(schedule: Schedule, count: int) -> None:
    """Compute what system and MemoryX derive from a schedule."""
    for shard in shards(schedule, count):
        file_layouts(shard)


def parse_schedule(data: bytes) -> None:
    schedule = schedule_from_json(data.decode("utf-8", "replace"))
    assert schedule_from_json(schedule.to_json()) == schedule
    use_schedule(schedule, 2)


def parse_model(data: bytes) -> None:
    model = ModelDescription.from_json(data)
    use_schedule(model.schedule, model.shards)


def model_seeds() -> list[bytes]:
    spec = (TensorSpec("x", "float32", (2,)),)
    return [
        ModelDescription(schedule, {0: StepInterface(spec, spec, spec, ())}, "name", 1, 0, 2).to_json()
        for schedule in SCHEDULES
    ]


TARGETS = [
    Target(
        "schedules.schedule",
        parse_schedule,
        (ScheduleError,),
        lambda: [schedule.to_json().encode() for schedule in SCHEDULES],
    ),
    Target("schedules.model", parse_model, (MemoryxError,), model_seeds),
    Target(
        "schedules.floorplan",
        lambda data: read_floorplan(data.decode("utf-8", "replace")),
        (FloorplanError,),
        lambda: [FLOORPLAN.to_json().encode()],
    ),
]
