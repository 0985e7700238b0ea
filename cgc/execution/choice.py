"""Compiles a step for the mode of execution that was asked for, or for the one that suits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cgc.errors import PlacementError
from cgc.execution import pipelined, weight_streaming
from cgc.execution.stages import COMMON_STAGES, Progress, Stages, rewritten
from cgc.performance import with_streaming_rate

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.execution.compiled import Compiled
    from cs_toolkit.fabric import Fabric
    from cs_toolkit.step import ExecutionChoice, StepInterface


def compile_for(
    choice: ExecutionChoice,
    module: ModuleOp,
    pipeline: str,
    interface: StepInterface,
    fabric: Fabric,
    progress: Progress | None,
    *,
    activation_bytes: int | None = None,
) -> tuple[Stages, Compiled]:
    """What a mode of execution makes of a step, and the stages so far: all but the last.

    Args:
        choice: the mode; with "auto" the pipelined one where the step fits, else weight streaming.
        module: the step; it is not changed.
        pipeline: the rewrites.
        interface: of the step.
        fabric: what the step is for.
        progress: told when a stage begins.
        activation_bytes: with weight streaming, of the wafer for activations; by default what layers leave.

    Raises:
        CompileError: the step is invalid, cannot be executed or placed.
    """
    own = weight_streaming.STAGES if choice == "weight_streaming" else pipelined.STAGES
    stages = Stages(COMMON_STAGES + own, progress)
    optimized = rewritten(module, pipeline, stages)
    if choice == "weight_streaming":
        return stages, weight_streaming.compile_streamed(
            optimized, fabric, stages, activation_bytes=activation_bytes
        )
    graph = pipelined.matched(optimized, stages)
    try:
        placement = pipelined.placed(graph, fabric, stages)
    except PlacementError as error:
        if choice == "pipelined":
            raise with_streaming_rate(error, graph) from None
        stages.expect(weight_streaming.STAGES + 1)
        return stages, _streamed_instead(
            error,
            lambda why: weight_streaming.compile_streamed(
                optimized, fabric, stages, (why,), activation_bytes=activation_bytes
            ),
        )
    notices = (_fits(placement.active_pes, fabric),) if choice == "auto" else ()
    return stages, pipelined.compile_pipelined(
        optimized, interface, graph, placement, fabric, stages, notices
    )


def _streamed_instead(error: PlacementError, compiled: Callable[[str], Compiled]) -> Compiled:
    """Weight streaming for a step that does not fit pipelined; the error of both where neither works."""
    try:
        return compiled(_does_not_fit(error))
    except PlacementError as other:
        raise PlacementError(
            f"the step fits in no mode of execution. Weight streaming: {other}. Pipelined: {error}",
            other.shortage,
            other.kernel,
            other.source,
        ) from None


def _does_not_fit(error: PlacementError) -> str:
    start = "execution auto: weight streaming, because the layers do not fit the wafer together"
    lacks = error.shortage
    if lacks is None:
        return f"{start}: {error}"
    return (
        f"{start}: their kernels take at least {lacks.needed_pes:,} PEs, available are "
        f"{lacks.available_pes:,}; the largest is {lacks.largest_kernel} with {lacks.largest_kernel_pes:,}"
    )


def _fits(active_pes: int, fabric: Fabric) -> str:
    share = 100 * active_pes / fabric.processing_elements
    return (
        f"execution auto: pipelined, because all layers fit the wafer together: they take {active_pes:,} of "
        f"{fabric.processing_elements:,} PEs ({share:.1f}%)"
    )
