"""The choice of the engine for a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cs_system.engine.base import Engine
from cs_system.errors import ArtifactRefusedError
from cs_system.memoryx.config import MemoryxConfig
from cs_system.swarmx.hosts import HostPool
from cs_toolkit.layered_step import ScheduleError, schedule_from_json
from cs_toolkit.step import CompiledStep


def make_engine(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int = 1,
    host_pool: HostPool | None = None,
) -> Engine:
    """Make the engine for the execution mode of a step; imports JAX, which takes a second.

    Args:
        step: The step to run.
        data: Bytes of its executables, by their names.
        chunk_batches: Maximum number of batches stacked in a chunk.
        memoryx: Where the weights of weight streaming are stored.
        wafers: Number of wafers that share a batch.
        host_pool: Where these are started; None: on this machine.

    Raises:
        ArtifactRefusedError: this system has no engine for the mode, or the engine needs other executables.
    """
    make = _ENGINES.get(step.execution)
    if make is None:
        raise ArtifactRefusedError(
            f"the artifact is compiled for execution {step.execution!r}, this system has "
            f"{', '.join(_ENGINES)}; compile it for one of them"
        )
    return make(step, data, chunk_batches, memoryx, wafers, host_pool)


def _make_pipelined(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int,
    host_pool: HostPool | None,
) -> Engine:
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
    from cs_system.engine.pipelined import PipelinedEngine

    return PipelinedEngine(data[names[0]], step.interface, chunk_batches, names[0])


def _make_weight_streaming(
    step: CompiledStep,
    data: Mapping[str, bytes],
    chunk_batches: int,
    memoryx: MemoryxConfig,
    wafers: int,
    host_pool: HostPool | None,
) -> Engine:
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
    if wafers != 1:
        from cs_system.swarmx.group import GroupEngine

        return GroupEngine(step, schedule, data, memoryx, wafers, host_pool)
    from cs_system.memoryx.engine import StreamedEngine

    return StreamedEngine(step, schedule, data, memoryx)


_Make = Callable[[CompiledStep, Mapping[str, bytes], int, MemoryxConfig, int, HostPool | None], Engine]
_ENGINES: dict[str, _Make] = {
    "pipelined": _make_pipelined,
    "weight_streaming": _make_weight_streaming,
}
