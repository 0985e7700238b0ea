"""`cbtorch.core.cb_model`, which programs call `cm`: tasks of a job, steps, progress and checkpoints.

A job has one receiver, the chief, which drives the CS system, and streamers, its workers. In a job of one
task, and on this CPU, the only task is both.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch.utils import _pytree as pytree

from cs_runtime.files import write_failure_cause
from cs_runtime.progress import report_checkpoint
from cs_runtime.tasks import is_chief
from cs_toolkit.files import replacing
from cstorch import job
from cstorch.distributed.cluster_resolver import get_streaming_batch_size, service_resolver
from cstorch.distributed.workers import WORKER_CACHE_ROOT, hit_worker_cache_limit
from cstorch.errors import CheckpointError, SessionError
from cstorch.job import task
from cstorch.loop.rates import RateTracker
from cstorch.program import Program
from cstorch.tracing.device import DEVICE, DeviceTensor, to_device
from cstorch.tracing.state import steps_done
from cstorch.v1.session.environment import (
    RunConfig,
    choose_seed,
    env,
    is_initialized,
    is_receiver,
    is_streamer,
    state,
    use_cs,
)
from cstorch.v1.session.rendezvous import rendezvous as _meet
from cstorch.v1.session.session import ApplianceSteps, appliance_steps, is_in_steps, mark_step
from cstorch.v1.session.steps import recording_steps, step_closure

__all__ = [
    "METRIC_NAME_PREFIX",
    "WORKER_CACHE_ROOT",
    "RateTracker",
    "device",
    "get_ordinal",
    "get_run_step",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "hit_worker_cache_limit",
    "is_appliance",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "is_sync_mode",
    "is_wse_device",
    "make_constant",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "metrics_counter_value",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "print_metrics_report",
    "print_update",
    "rendezvous",
    "run_step_closures",
    "save",
    "service_resolver",
    "set_attribute",
    "set_metric_state_names",
    "set_rng_state",
    "set_run_config",
    "set_state_names",
    "set_target_num_replicas",
    "step_closure",
    "to_cpu",
    "use_cs",
    "write_to_summary",
]

log = logging.getLogger("cstorch")

T = TypeVar("T")

METRIC_NAME_PREFIX = "metric"
"""Prefix of the names of metric state."""

# Tasks


def is_wse_device() -> bool:
    """Return True if models of this process compute on a CS system."""
    return use_cs()


def device() -> torch.device:
    """Return the device that tensors of the CS system report, or this CPU without one."""
    return DEVICE if use_cs() else torch.device("cpu")


def is_master_ordinal(local: bool = False) -> bool:
    """Return True if this task writes files and prints; `local` asks for its node, without effect."""
    return not use_cs() or is_receiver()


def get_ordinal() -> int:
    """Return the number of this task in its job; 0 is the chief."""
    return task().rank if use_cs() else 0


def num_tasks() -> int:
    """Return the number of tasks of the job."""
    return task().num_tasks if use_cs() else 1


def num_streamers() -> int:
    """Return the number of tasks that stream batches."""
    return job.num_streamers() if use_cs() else 1


def num_receivers() -> int:
    """Return the number of tasks that drive the CS system: one."""
    return 1


def get_streaming_rank() -> int:
    """Return the number of this task among those that stream; 0 on the chief."""
    return job.get_streaming_rank() if use_cs() else 0


def is_sync_mode() -> bool:
    """Return False: with `set_run_config` the system runs ahead of the program."""
    return False


def is_appliance() -> bool:
    """Return True if the program drives its steps by `core.appliance.ApplianceMode`."""
    return env().appliance


def rendezvous(name: str, payload: bytes = b"", replicas: Any = None) -> list[bytes]:
    """Wait for all tasks of the job, and return the data of each, by rank.

    Within the loop of a session this returns immediately, with the data of this task.

    Raises:
        RendezvousError: A task did not come within ten minutes.
    """
    # Within a loop workers stream while the chief runs the steps, so they do not reach the same places.
    if not is_initialized() or is_in_steps():
        return [payload]
    return _meet(name, payload)


def mesh_reduce(tag: str, data: T, reduce_fn: Callable[[list[T]], T]) -> T:
    """Return a function's result for the data of all tasks, which may be tensors and plain data."""
    buffer = io.BytesIO()
    torch.save(to_cpu(data), buffer)
    found = rendezvous(tag, buffer.getvalue())
    return reduce_fn([torch.load(io.BytesIO(item), weights_only=True) for item in found if item])


# Steps


def set_run_config(total_steps: int, checkpoint_steps: int, fetch_steps: int) -> None:
    """Set the steps of the loop of the next session, and those for which its body runs.

    The body always runs for the last step.

    Args:
        total_steps: Number of steps of this run.
        checkpoint_steps: Interval of steps for which the body runs and the state can be read; 0 for none.
        fetch_steps: Interval of further steps for which the body runs; 0 for none.

    Raises:
        SessionError: A number is negative, or there is no step.
    """
    if total_steps < 1 or (checkpoint_steps or 0) < 0 or (fetch_steps or 0) < 0:
        raise SessionError(
            f"set_run_config() got total_steps={total_steps}, checkpoint_steps={checkpoint_steps} and "
            f"fetch_steps={fetch_steps}, expected 1 or more, and twice 0 or more"
        )
    state().run_config = RunConfig(total_steps, checkpoint_steps or 0, fetch_steps or 0)
    steps = recording_steps()
    if steps is not None:
        steps.number_step()


def get_run_step() -> int:
    """Return the number of the step whose body or step closures run, counted in this session from 1."""
    return state().run_step


def run_step_closures() -> None:
    """End the step that is being recorded, and run its closures."""
    mark_step()


def set_target_num_replicas(num_replicas: int) -> None:
    """Set the number of copies of the model on the wafer that share a batch; -1 for the fastest number.

    It has no effect on this CPU.

    Raises:
        ConfigureError: The number is invalid.
    """
    if use_cs():
        Program.current().change_configuration(num_replicas=num_replicas)


def set_state_names(names: Mapping[str, Any]) -> None:
    """Set the names of the state in checkpoints, for a program that drives the appliance."""
    steps = recording_steps()
    if isinstance(steps, ApplianceSteps):
        steps.add_names(names)


def set_metric_state_names(names: Mapping[str, Any], metric_name: str = "") -> None:
    """Set the names of a metric's state in checkpoints, for a program that drives the appliance."""
    set_state_names({METRIC_NAME_PREFIX: {metric_name.replace("/", "_"): names}})


def set_attribute(tensor: torch.Tensor, name: str, value: Any) -> torch.Tensor:
    """Mark a tensor as "sparse" for a step of the appliance; other hints have no effect."""
    steps = appliance_steps()
    if name == "sparse" and value and steps is not None and steps.recording:
        steps.mark_sparse(tensor)
    return tensor


def make_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this CPU as one of the device, with the same elements in every step."""
    return to_device(tensor) if use_cs() else tensor


def set_rng_state(seed: int) -> None:
    """Seed PyTorch and the random operations of the step."""
    torch.manual_seed(seed)
    if use_cs():
        choose_seed(seed)


# Progress


def master_print(*values: Any, flush: bool = False) -> None:
    """Print on the chief."""
    if is_master_ordinal():
        print(*values, flush=flush)  # noqa: T201 - its purpose


@step_closure
def print_update(
    device: Any, step: int, loss: Any, mode: str = "train", summary_writer: Any = None, rate: Any = None
) -> None:
    """Log loss and throughput of a step, and write them as summaries if there is a writer."""
    tracker, value = state().rate_tracker, float(loss)
    newest, mean = tracker.rate(), tracker.global_rate()
    log.info(
        "| %s Device=%s, Step=%d, Loss=%.5f, Rate=%.2f samples/sec, GlobalRate=%.2f samples/sec",
        mode.capitalize(),
        device,
        step,
        value,
        newest,
        mean,
    )
    if summary_writer is not None:
        write_to_summary(
            summary_writer,
            step,
            {"loss": value, "local_samples_per_sec": newest, "avg_samples_per_sec": mean},
        )


@step_closure
def write_to_summary(
    writer: Any, step: int | None = None, dict_to_write: Mapping[str, Any] | None = None, **more: Any
) -> None:
    """Write scalars for TensorBoard on the chief."""
    if writer is None or not is_master_ordinal():
        return
    for name, value in {**(dict_to_write or {}), **more}.items():
        writer.add_scalar(name, float(value), step)


def metrics_counter_value(name: str) -> float | None:
    """Return a figure of the run by the original's name, such as "CerebrasCompileTimeMs"; None if unknown."""
    return state().counters.get(name)


def _extract_tracker_details(step: int) -> tuple[float, float, float]:
    """Return the rate, the rate since the start, both in samples per second, and the samples of a step."""
    tracker = state().rate_tracker
    done = max(get_run_step(), 1)
    return float(tracker.rate), float(tracker.global_rate), tracker.total_count / done


def print_metrics_report() -> None:
    """Log all figures of the run."""
    for name, value in sorted(state().counters.items()):
        log.info("%s: %g", name, value)


def to_cpu(data: Any) -> Any:
    """Return a nest with copies on this CPU of its tensors of the device."""
    return pytree.tree_map_only(DeviceTensor, lambda tensor: tensor.cpu().clone(), data)


def _elements(tensor: DeviceTensor) -> torch.Tensor:
    """Return the elements of a tensor as a tensor of this CPU, of which `torch.save` writes no others."""
    found = tensor.cpu()
    return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


@step_closure
def save(
    data: Any,
    file_or_path: str | Path | BinaryIO,
    master_only: bool = True,
    post_transfer_callback: Callable[[Any], Any] | None = None,
) -> None:
    """Write a nest of tensors and plain data as `torch.save` does; within a step, after that step.

    The file is written next to its path and renamed, so a checkpoint is complete or absent.

    Args:
        data: Dicts, lists and tensors.
        file_or_path: A path, or a file open for writing.
        master_only: Only the chief writes.
        post_transfer_callback: Called with the nest on this CPU; its return value is written.

    Raises:
        CheckpointError: The directory is not writable, or the disk is full.
        StateUnavailableError: The system has already advanced to a later step.
    """
    if master_only and not is_chief():
        return
    if post_transfer_callback is None:
        held = pytree.tree_map_only(DeviceTensor, _elements, data)
    else:
        held = post_transfer_callback(to_cpu(data))
    if not isinstance(file_or_path, str | Path):
        torch.save(held, file_or_path)
        return
    path = Path(file_or_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as beside, beside.open("wb") as file:
            torch.save(held, file)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot write checkpoint '{path}': {write_failure_cause(error) or error}; older checkpoints are "
            "as they were. Free space or give a writable directory"
        ) from error
    report_checkpoint(steps_done(), path)
