"""The choice of the engine for a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cs_system.engine.base import ExternalEngine
from cs_system.errors import ArtifactRefusedError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.server.engine_process import EngineProcess, RemoteEngine
from cs_system.swarmx.group import GroupEngine
from cs_system.swarmx.hosts import HostPool
from cs_toolkit.layered_step import Schedule, ScheduleError, schedule_from_json
from cs_toolkit.step import CompiledStep


def make_engine(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int,
    host_pool: HostPool | None,
    start_process: Callable[[], EngineProcess],
) -> ExternalEngine:
    """Make the engine for the execution mode of a step.

    Args:
        step: The step to run.
        data: Bytes of its executables, by their names.
        chunk_batches: Maximum number of batches stacked in a chunk.
        memoryx: Where the weights of weight streaming are stored.
        wafers: Number of wafers that share a batch.
        host_pool: Where these are started; None: on this machine.
        start_process: Returns the process for the engine of a single wafer; several have their own.

    Raises:
        ArtifactRefusedError: this system has no engine for the mode, or the engine needs other executables.
    """
    schedule = check_step(step, wafers)
    if schedule is not None and wafers != 1:
        return GroupEngine(step, schedule, data, memoryx, wafers, host_pool)
    return RemoteEngine(start_process(), step, data, 1 if schedule else chunk_batches, memoryx)


def check_step(step: CompiledStep, wafers: int = 1) -> Schedule | None:
    """Check that there is an engine for a step; return its schedule, None for a pipelined one.

    Raises:
        ArtifactRefusedError: there is none.
    """
    check = _CHECKS.get(step.execution)
    if check is None:
        raise ArtifactRefusedError(
            f"the artifact is compiled for execution {step.execution!r}, this system has "
            f"{', '.join(_CHECKS)}; compile it for one of them"
        )
    return check(step, wafers)


def _check_pipelined(step: CompiledStep, wafers: int) -> None:
    if wafers != 1:
        raise ArtifactRefusedError(
            f"{wafers} wafers share a batch with execution 'pipelined', expected 1: a wafer holds the whole "
            "model; several share a batch by weight streaming (execution: weight_streaming, or auto)"
        )
    names = [executable.name for executable in step.executables]
    if len(names) != 1 or step.executables[0].interface != step.interface:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(names)} executable(s) ({', '.join(names)}), execution "
            "'pipelined' expects exactly one, with the interface of the whole step; compile it again"
        )


def _check_weight_streaming(step: CompiledStep, wafers: int) -> Schedule:
    try:
        schedule = schedule_from_json(step.schedule)
    except ScheduleError as error:
        raise ArtifactRefusedError(f"artifact {step.key[:12]}: {error}") from error
    expected = (1 + max((call.function for call in schedule.calls()), default=-1), set(schedule.state))
    if (len(step.executables), {spec.name for spec in step.interface.state}) != expected:
        raise ArtifactRefusedError(
            f"artifact {step.key[:12]} has {len(step.executables)} executables and "
            f"{len(step.interface.state)} state tensors, its schedule has {expected[0]} and "
            f"{len(expected[1])}; compile it again"
        )
    return schedule


_CHECKS: dict[str, Callable[[CompiledStep, int], Schedule | None]] = {
    "pipelined": _check_pipelined,
    "weight_streaming": _check_weight_streaming,
}
