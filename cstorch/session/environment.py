"""What `initialize` has said of this process, and its place among the tasks of a job."""

from __future__ import annotations

import atexit
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cs_runtime.options import default_execution, local_compile_dir
from cs_runtime.tasks import current
from cs_toolkit.replicas import ReplicaChoice
from cs_toolkit.step import ExecutionChoice
from cstorch.backends import on_cpu
from cstorch.config import (
    Configuration,
    change_configuration,
    is_configured,
    keep_configuration,
)
from cstorch.job import leave_to_chief
from cstorch.precision import name_half_dtype
from cstorch.session.process import state
from cstorch.session.rendezvous import announce_end
from cstorch.start import start_process, start_session


@dataclass
class Environment:
    """Where a run works.

    Attributes:
        service_workdir: for files of the run; a program's `model_dir` in most cases.
        compile_dir: for artifacts of the compiler; `service_workdir` when None.
        weight_streaming_mode: whether `python-ws` runs this process: programs ask before they say more.
        appliance: the program drives the appliance, see `core.appliance`.
    """

    service_workdir: str = field(default_factory=lambda: str(Path.cwd()))
    compile_dir: str | None = None
    weight_streaming_mode: bool = field(default_factory=lambda: default_execution() == "weight_streaming")
    appliance: bool = False


_environment = Environment()
_on_cs = [False]


def initialize(
    cs_ip: str | None = None,
    service_workdir: str | Path | None = None,
    compile_dir: str | Path | None = None,
    compile_only: bool = False,
    appliance: bool = False,
    use_cbfloat16: bool = False,
    use_appliance_data: bool = False,
    log_initialization: bool = True,
) -> None:
    """Says where this process computes. Call it before the model is made, once.

    With neither an address nor `compile_only` everything stays on this CPU, with PyTorch itself. In a job
    that is the chief's CPU, and workers end here.

    Args:
        cs_ip: IP or IP:PORT of the CS system.
        service_workdir: where files of the run go; the current directory when None.
        compile_dir: where artifacts of the compiler go; `service_workdir` when None, or where it cannot be
            made here.
        compile_only: compile the step of a session, and run nothing.
        appliance: the program drives its steps by `core.appliance.ApplianceMode`, which names the system.
            Workers are started with the program's input function, and do not go through the program.
        use_cbfloat16: what mixed precision computes in; float16 otherwise.
        use_appliance_data: where the appliance keeps tensors; without effect, as programs give it always.
        log_initialization: without effect; the toolkit logs unless the program has configured logging.

    Raises:
        ConfigureError: called twice.
    """
    if use_cbfloat16:
        name_half_dtype("cbfloat16")
    workdir = Path.cwd() if service_workdir is None else Path(service_workdir)
    _environment.service_workdir = str(workdir)
    _environment.compile_dir = None if compile_dir is None else str(compile_dir)
    _environment.appliance = appliance
    if cs_ip is None and not compile_only and not appliance:
        leave_to_chief()
        return
    keep_configuration(
        Configuration(
            workdir,
            local_compile_dir(compile_dir),
            compile_only=compile_only,
            mgmt_address=cs_ip,
        ),
        "initialize()",
    )
    _on_cs[0] = True
    if appliance:
        state().queues_closures = True
        start_process(start_system=False)
        return
    start_session()
    atexit.register(announce_end)


def env() -> Environment:
    """What was said to `initialize`."""
    return _environment


def use_cs() -> bool:
    """Whether this process computes on a CS system, or compiles for one, whichever API has said so."""
    return is_configured() and not on_cpu()


def is_initialized() -> bool:
    """Whether `initialize` has said so: then the workers of a job run the program too."""
    return _on_cs[0]


def choose_seed(seed: int) -> None:
    """Of random operations on the system."""
    change_configuration(seed=seed)


def choose_execution(execution: ExecutionChoice, **streaming: Any) -> None:
    """How the CS system executes a step, and what holds where weights stream; see `cstorch.configure`."""
    change_configuration(execution=execution, **streaming)


def choose_replicas(num_replicas: ReplicaChoice) -> None:
    """How many copies of the model stand on a wafer."""
    change_configuration(num_replicas=num_replicas)


def is_streamer() -> bool:
    """Whether this task streams batches; the only task of a job does all."""
    task = current()
    return task.role == "worker" or task.in_process_worker


def is_receiver() -> bool:
    """Whether this task drives the CS system: the chief."""
    return current().role == "chief"


def is_worker_alone() -> bool:
    """Whether this task streams, and does nothing else."""
    return is_initialized() and current().role == "worker"
