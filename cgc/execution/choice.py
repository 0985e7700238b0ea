"""Compile a step for the requested mode of execution, or choose the mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cgc.cirh.interface import graph_function
from cgc.cirh.ops import UpdateTokenLoopOp
from cgc.errors import CompileError, PlacementError, ReplicaError
from cgc.execution import pipelined, weight_streaming
from cgc.execution.compilation import COMMON_STAGES, Progress, Stages, rewrite_step
from cgc.kernels import match_kernels
from cgc.lowering.base import describe
from cgc.performance.prediction import predict_interval
from cs_toolkit.execution_options import AUTO, ReplicaChoice
from cs_toolkit.figures import format_percent, format_rate

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.cirh.op_table import OpTable
    from cgc.execution.compilation import Compiled, CompileOptions
    from cgc.performance.replicas import Replicated
    from cs_toolkit.execution_options import Streaming
    from cs_toolkit.fabric import Fabric
    from cs_toolkit.step import StepInterface


def compile_for(
    options: CompileOptions,
    module: ModuleOp,
    scanned: OpTable | None,
    interface: StepInterface,
    fabric: Fabric,
    progress: Progress | None,
) -> tuple[Stages, Compiled]:
    """Compile a step for its mode of execution.

    Args:
        options: with execution "auto" the step is pipelined if it fits, else its weights are streamed.
        module: the step; it is not changed.
        scanned: the same as integers.
        interface: of the step.
        fabric: target of the compile.
        progress: called when a stage begins.

    Returns:
        The stages so far, all but the last, and the content of the artifact.

    Raises:
        CompileError: the step is invalid, cannot be executed or placed.
    """
    choice = options.execution
    own = weight_streaming.STAGES if choice == "weight_streaming" else pipelined.STAGES
    stages = Stages(COMMON_STAGES + own, progress)
    optimized = rewrite_step(module, scanned, options.pipeline, stages)
    ops = graph_function(optimized).body.block.ops
    loop = next((op for op in ops if isinstance(op, UpdateTokenLoopOp)), None)
    if loop is not None and choice == "weight_streaming":
        raise CompileError(
            f"{describe(loop)}: a loop over tokens with execution 'weight_streaming', expected 'pipelined': "
            "each round would stream all weights"
        )
    if choice == "weight_streaming":
        notices = _check_replicas(options.replicas)
        rate = None if options.streaming.num_csx > 1 else _predict_pipelined(optimized, interface, fabric)
        return stages, weight_streaming.compile_streamed(
            optimized, fabric, stages, options.streaming, notices, options.precision, rate
        )
    # Pipelined, or auto: weight streaming is only tried when the kernels do not fit the wafer.
    graph = pipelined.match_step(optimized, stages)
    try:
        copies, tried = pipelined.place_replicas(graph, fabric, stages, options.replicas)
    except PlacementError as error:
        if options.replicas not in (1, AUTO):
            raise ReplicaError(
                f"num_replicas is {options.replicas}, "
                f"but one copy of the model does not fit the wafer: {error}"
            ) from None
        if loop is not None:  # weight streaming cannot run it
            raise
        if options.execution == "pipelined":
            stages.expect(weight_streaming.ESTIMATE_STAGES)
            raise _add_other_mode(error, optimized, fabric, stages, options.streaming) from None
        stages.expect(weight_streaming.STAGES + COMMON_STAGES - 1)
        return stages, _stream_instead(
            error,
            lambda why: weight_streaming.compile_streamed(
                optimized, fabric, stages, options.streaming, (why,), options.precision
            ),
        )
    notices = (_fits(copies.performance.overall.active_pes, fabric),) if options.execution == "auto" else ()
    if loop is not None:
        notices += (
            f"rates are for one round of the loop over tokens ({describe(loop)}): a sample takes one round "
            f"per generated token, at most {loop.rounds}",
        )
    if options.replicas == AUTO:
        notices += (_replica_notice(copies, tried),)
    return stages, pipelined.compile_pipelined(
        optimized, interface, copies, tried, fabric, stages, notices, options.precision
    )


def _predict_pipelined(module: ModuleOp, interface: StepInterface, fabric: Fabric) -> float | None:
    """Predict the rate of a step with all layers on the wafer at once; None if they do not fit."""
    if sum(spec.nbytes for spec in interface.state) > fabric.memory_bytes:
        return None  # matching the kernels of a very large step takes long
    interval = predict_interval(match_kernels(module), fabric)
    return None if interval is None else fabric.clock_hz / interval


def _add_other_mode(
    error: PlacementError, module: ModuleOp, fabric: Fabric, stages: Stages, streaming: Streaming
) -> PlacementError:
    """Extend an error by the rate of the step with weight streaming, or why that fails too."""
    try:
        _, report = weight_streaming.estimate_streamed(module, fabric, stages, streaming)
    except CompileError as other:
        text = f"{error}. Weight streaming cannot run it either: {other}"
    else:
        text = (
            f"{error}. Weight streaming holds one layer at a time and would run it at "
            f"{format_rate(report.samples_per_s)} samples/s (batch {report.batch_size}, estimated): "
            "compile it with execution weight_streaming, or auto"
        )
    return PlacementError(text, error.shortage, error.kernel, error.source)


def _check_replicas(replicas: ReplicaChoice) -> tuple[str, ...]:
    """Return a notice why a step whose weights are streamed has no replicas.

    Raises:
        ReplicaError: the user requests some.
    """
    if replicas == AUTO:
        return (
            "num_replicas auto: one copy of the model, because with weight streaming each layer has the "
            "whole wafer to itself",
        )
    if replicas != 1:
        raise ReplicaError(
            f"num_replicas is {replicas} with execution 'weight_streaming', expected 1: replicas are copies "
            "of a whole model on one wafer; leave one of the two out"
        )
    return ()


def _replica_notice(best: Replicated, tried: Sequence[Replicated]) -> str:
    """Return a notice why auto chose a number, with the rates of one copy and of the adjacent numbers."""
    at = tried.index(best)
    single = best.per_replica
    start = (
        f"num_replicas auto: {best.count:,}, the best predicted rate of the numbers that fit and divide the "
        f"batch: {format_rate(best.samples_per_s)} samples/s. One copy takes {single.active_pes:,} PEs"
    )
    if best.exchange.cycles:
        percent = 100 * best.exchange.cycles / best.step_cycles
        start += f", draining and exchange of gradients take {format_percent(percent)} of a step"
    others = [
        f"{other.count:,} copies would reach {format_rate(other.samples_per_s)} samples/s"
        for other in (*tried[max(0, at - 1) : at], *tried[at + 1 : at + 2])
    ]
    return "; ".join([start, *others])


def _stream_instead(error: PlacementError, compiled: Callable[[str], Compiled]) -> Compiled:
    """Use weight streaming for a step that does not fit pipelined; report both errors if that fails too."""
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
    """Return a notice why auto chose weight streaming."""
    start = "execution auto: weight streaming, because the layers do not fit the wafer together"
    lacks = error.shortage
    if lacks is None:
        return f"{start}: {error}"
    return (
        f"{start}: their kernels take at least {lacks.needed_pes:,} PEs, available are "
        f"{lacks.available_pes:,}; the largest is {lacks.largest_kernel} with {lacks.largest_kernel_pes:,}"
    )


def _fits(active_pes: int, fabric: Fabric) -> str:
    """Return a notice why auto chose pipelined execution."""
    share = 100 * active_pes / fabric.processing_elements
    return (
        f"execution auto: pipelined, because all layers fit the wafer together: they take {active_pes:,} of "
        f"{fabric.processing_elements:,} PEs ({format_percent(share)})"
    )
