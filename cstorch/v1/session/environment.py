"""What `initialize` has said of this process, and its place among the tasks of a job."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cs_runtime.options import default_execution, local_compile_dir
from cs_runtime.tasks import current
from cs_toolkit.execution_options import ReplicaChoice
from cs_toolkit.messages import Message
from cs_toolkit.step import ExecutionChoice
from cstorch.compatibility import log_unused
from cstorch.config import Configuration
from cstorch.job import leave_to_chief
from cstorch.loop.rates import RateTracker
from cstorch.precision import name_half_dtype
from cstorch.program import Program
from cstorch.startup import start_process, start_session
from cstorch.utils.nest import named_leaves
from cstorch.v1.session.rendezvous import announce_end


@dataclass
class Environment:
    """Where a run works.

    Attributes:
        service_workdir: for files of the run; a program's `model_dir` in most cases.
        compile_dir: for artifacts of the compiler; `service_workdir` when None.
        weight_streaming_mode: whether `python-ws` runs this process: programs ask before they say more.
        appliance: the program drives the appliance, see `core.appliance`.
        initialized: `initialize` has chosen the CS system.
    """

    service_workdir: str = field(default_factory=lambda: str(Path.cwd()))
    compile_dir: str | None = None
    weight_streaming_mode: bool = field(default_factory=lambda: default_execution() == "weight_streaming")
    appliance: bool = False
    initialized: bool = False


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
    environment = env()
    environment.service_workdir = str(workdir)
    environment.compile_dir = None if compile_dir is None else str(compile_dir)
    environment.appliance = appliance
    if cs_ip is None and not compile_only and not appliance:
        leave_to_chief()
        return
    Program.current().configure(
        Configuration(
            workdir,
            local_compile_dir(compile_dir),
            compile_only=compile_only,
            mgmt_address=cs_ip,
        ),
        "initialize()",
    )
    environment.initialized = True
    if appliance:
        state().queues_closures = True
        start_process(start_system=False)
        return
    start_session()
    atexit.register(announce_end)


def env() -> Environment:
    """What was said to `initialize`."""
    return Program.current().part(Environment)


def use_cs() -> bool:
    """Whether this process computes on a CS system, or compiles for one, whichever API has said so."""
    program = Program.current()
    return program.is_configured and not program.on_cpu


def is_initialized() -> bool:
    """Whether `initialize` has said so: then the workers of a job run the program too."""
    return env().initialized


def choose_seed(seed: int) -> None:
    """Of random operations on the system."""
    Program.current().change_configuration(seed=seed)


def choose_execution(execution: ExecutionChoice, **streaming: Any) -> None:
    """How the CS system executes a step, and what holds where weights stream; see `cstorch.configure`."""
    Program.current().change_configuration(execution=execution, **streaming)


def choose_replicas(num_replicas: ReplicaChoice) -> None:
    """How many copies of the model stand on a wafer."""
    Program.current().change_configuration(num_replicas=num_replicas)


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


log = logging.getLogger("cstorch")


@dataclass(frozen=True)
class RunConfig:
    """Steps of a session, and those whose outputs the program gets: for these the body of its loop runs.

    Attributes:
        total_steps: Steps of this run.
        checkpoint_steps: Programs write checkpoints behind every so many; 0 for the last one alone.
        fetch_steps: Programs look at values behind every so many steps; 0 for the last one alone.
    """

    total_steps: int
    checkpoint_steps: int
    fetch_steps: int

    @property
    def state_steps(self) -> int:
        """The state can be read behind every so many steps, among them all where step closures run."""
        return gcd(self.checkpoint_steps, self.fetch_steps)

    def next_fetch(self, step: int) -> int:
        """Return the first step after `step` whose outputs the program gets.

        These are the multiples of `fetch_steps`, those of `checkpoint_steps`, and the last step.
        """
        multiples = (step - step % n + n for n in (self.fetch_steps, self.checkpoint_steps) if n)
        return min((self.total_steps, *multiples))


class Tracker:
    """Logs, at the level of debugging, how long parts of a program take."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Begin a part."""
        self._started[name] = time.monotonic()

    def stop(self, name: str) -> None:
        """End a part that has begun."""
        began = self._started.pop(name, None)
        if began is not None:
            log.debug("%s took %.3f s", name, time.monotonic() - began)

    @contextmanager
    def entry(self, name: str) -> Iterator[None]:
        """The body is a part."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)


@dataclass
class SessionState:
    """What programs find in `state()`.

    Attributes:
        full_config: options of the original compiler; kept for the program to read, without effect here.
        rate_tracker: counts the samples of the steps that were done, since the system was programmed.
        modules: models that were passed to `module`.
        optimizers: those that were passed to `optimizer`.
        metrics: those that were registered.
        tracked: objects that were passed to `track_object`.
        outputs: tensors by name that the program gets of every step, see `track_object`.
        activation_callbacks: called behind each step whose outputs the appliance receives.
        queues_closures: calls of step closures wait until the step is compiled.
        queued_closures: calls that wait.
        scaler: the last `amp.GradScaler` that was made.
        scaler_state: what `amp.load_state_dict` was given before there was one.
        mixed_precision: activations are computed in 16 bits.
        is_inside_execution_loop: step closures are running behind a step.
        run_config: None where the program's own loop runs the steps.
        run_step: number of the step of this session whose body or step closures run; 0 before the first.
        counters: figures of the run by the names of the original.
        init_tracker: notes how long parts of the program take that it names.
        progress_tracker: None: progress is in the log.
    """

    full_config: Message = field(default_factory=Message)
    rate_tracker: RateTracker = field(default_factory=RateTracker)
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    tracked: list[Any] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    scaler: Any = None
    scaler_state: dict[str, Any] | None = None
    mixed_precision: bool = False
    is_inside_execution_loop: bool = False
    run_config: RunConfig | None = None
    run_step: int = 0
    num_csx: int = 1
    counters: dict[str, float] = field(default_factory=dict)
    init_tracker: Tracker = field(default_factory=lambda: Tracker())
    progress_tracker: None = None
    activation_callbacks: list[Callable[[], Any]] = field(default_factory=list)
    queues_closures: bool = False
    queued_closures: list[Callable[[], Any]] = field(default_factory=list)

    def track_object(self, obj: Any, force: bool = False) -> Any:
        """Keeps an object with the session, so that it lives as long; returns it.

        Args:
            obj: anything.
            force: its tensors are outputs of the step, however large they are.
        """
        if all(obj is not kept for kept in self.tracked):
            self.tracked.append(obj)
        if force:
            self.outputs.update(
                {name: x for name, x in named_leaves(obj).items() if isinstance(x, torch.Tensor)}
            )
        return obj

    def register_metric(self, metric: Any) -> None:
        """Notes a metric of the program."""
        if all(metric is not kept for kept in self.metrics):
            self.metrics.append(metric)

    def set_num_csx(self, num_csx: int) -> None:
        """Notes for how many CS systems the program asks; it gets one."""
        log_unused("set_num_csx()", {"num_csx": num_csx}, {"num_csx": 1})
        self.num_csx = num_csx

    def register_activation_callback(self, callback: Callable[[], Any]) -> None:
        """Calls a function behind each step whose outputs the appliance receives."""
        self.activation_callbacks.append(callback)

    def get_activation_for_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor behind the step that has computed it, on this CPU."""
        return tensor.cpu()


def state() -> SessionState:
    """That of this process."""
    return Program.current().part(SessionState)
