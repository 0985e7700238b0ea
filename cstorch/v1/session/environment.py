"""`initialize` of the session API, the roles of the tasks, and the state of the program (`state()`)."""

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

from cs_runtime import terminal
from cs_runtime.destination import choose_destination, given_address, surrounding_address
from cs_runtime.options import local_compile_dir
from cs_runtime.tasks import current
from cs_toolkit.execution_options import default_execution
from cs_toolkit.messages import Message
from cstorch.compatibility import log_unused
from cstorch.config import Configuration
from cstorch.job import leave_to_chief
from cstorch.loop.rates import RateTracker
from cstorch.program import Program
from cstorch.startup import start_process, start_session
from cstorch.tracing.precision import name_half_dtype
from cstorch.utils.helpers import named_leaves
from cstorch.v1.session.rendezvous import announce_end

log = logging.getLogger("cstorch")


@dataclass
class Environment:
    """The arguments of `initialize`.

    Attributes:
        service_workdir: Directory for the files of a run, in most cases the `model_dir` of the program.
        compile_dir: Directory for compile artifacts; None for `service_workdir`.
        weight_streaming_mode: `python-ws` runs this process; programs read this before they configure a run.
        appliance: The program drives the appliance, see `core.appliance`.
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
    use_cs: bool = True,
) -> None:
    """Choose the CS system or this CPU. Call it once, before the model is created.

    With `use_cs=False` everything stays on this CPU, with PyTorch itself. In a job this is the chief's CPU,
    and workers end here.

    Args:
        cs_ip: IP or IP:PORT of the CS system; if None, CS_IP of the environment, else the site's, else an
            embedded system.
        service_workdir: Directory for the files of the run; None for the current directory.
        compile_dir: Directory for compile artifacts; `service_workdir` if None, or if it cannot be created
            here.
        compile_only: Compile the step of a session, and run nothing.
        appliance: The program drives its steps by `core.appliance.ApplianceMode`, which names the system.
            Workers get the program's input function, and do not run the program.
        use_cbfloat16: Compute mixed precision in cbfloat16 instead of float16.
        use_appliance_data: Without effect: where the original's appliance keeps tensors.
        log_initialization: Without effect: the toolkit logs unless the program has configured logging.
        use_cs: False runs everything on this CPU.

    Raises:
        NoSystemError: The process is a task of a job of several, and no address is known.
        ConfigureError: The process is configured already.
    """
    if use_cbfloat16:
        name_half_dtype("cbfloat16")
    workdir = Path.cwd() if service_workdir is None else Path(service_workdir)
    environment = env()
    environment.service_workdir = str(workdir)
    environment.compile_dir = None if compile_dir is None else str(compile_dir)
    environment.appliance = appliance
    # The appliance names its system later, and its workers do not run the program.
    if not appliance:
        place = choose_destination(
            given_address(cs_ip, "cs_ip"),
            surrounding_address(),
            "" if use_cs else "use_cs=False",
            compiles=compile_only,
            num_tasks=current().num_tasks,
        )
        if place.on_cpu:
            leave_to_chief()
            terminal.configure_logging("cstorch")
            log.info("%s", place.describe("run"))
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
    """Return the arguments of `initialize`."""
    return Program.current().part(Environment)


def use_cs() -> bool:
    """Return True if this process computes on a CS system, or compiles for one, by any of the APIs."""
    program = Program.current()
    return program.is_configured and not program.on_cpu


def is_initialized() -> bool:
    """Return True if `initialize` has chosen the CS system; then the workers of a job run the program too."""
    return env().initialized


def choose_seed(seed: int) -> None:
    """Set the seed of random operations on the system."""
    Program.current().change_configuration(seed=seed)


def is_streamer() -> bool:
    """Return True if this task streams batches, as the only task of a job does."""
    task = current()
    return task.role == "worker" or task.in_process_worker


def is_receiver() -> bool:
    """Return True if this task is the chief, which drives the CS system."""
    return current().role == "chief"


def is_worker_alone() -> bool:
    """Return True if this task only streams."""
    return is_initialized() and current().role == "worker"


@dataclass(frozen=True)
class RunConfig:
    """The steps of a session, and those whose outputs the program fetches, for which its loop's body runs.

    Attributes:
        total_steps: Number of steps of this run.
        checkpoint_steps: Interval of checkpoints; 0 for the last step only.
        fetch_steps: Interval of the steps whose outputs are fetched; 0 for the last step only.
    """

    total_steps: int
    checkpoint_steps: int
    fetch_steps: int

    @property
    def state_steps(self) -> int:
        """Interval of steps after which the state can be read, including all with step closures."""
        return gcd(self.checkpoint_steps, self.fetch_steps)

    def next_fetch(self, step: int) -> int:
        """Return the first step after `step` whose outputs the program fetches.

        These are the multiples of `fetch_steps`, those of `checkpoint_steps`, and the last step.
        """
        multiples = (step - step % n + n for n in (self.fetch_steps, self.checkpoint_steps) if n)
        return min((self.total_steps, *multiples))


class Tracker:
    """Logs the duration of parts of a program at debug level."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Start a part."""
        self._started[name] = time.monotonic()

    def stop(self, name: str) -> None:
        """End a part, and log its duration if it was started."""
        start_s = self._started.pop(name, None)
        if start_s is not None:
            log.debug("%s took %.3f s", name, time.monotonic() - start_s)

    @contextmanager
    def entry(self, name: str) -> Iterator[None]:
        """Measure the body as a part."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)


@dataclass
class SessionState:
    """The state of a program of the session API, which it reads with `state()`.

    Attributes:
        full_config: Options of the original's compiler; programs may set and read them, without effect.
        rate_tracker: Throughput since the system was programmed.
        modules: Models that were passed to `module`.
        optimizers: Optimizers that were passed to `optimizer`.
        metrics: Registered metrics.
        tracked: Objects that were passed to `track_object`.
        outputs: Tensors that are outputs of every step, by name, see `track_object`.
        activation_callbacks: Called after each step whose outputs the appliance receives.
        queues_closures: Calls of step closures are queued until the step is compiled.
        queued_closures: The queued calls.
        scaler: The last `amp.GradScaler` that was created.
        scaler_state: Argument of `amp.load_state_dict` before there was a scaler.
        mixed_precision: Activations are computed in 16 bits.
        is_inside_execution_loop: Step closures are running after a step.
        run_config: Result of `set_run_config`; None if the program's own loop runs the steps.
        run_step: Number of the step whose body or step closures run; 0 before the first.
        counters: Figures of the run by the names of the original.
        init_tracker: Measures named parts of the program.
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
        """Keep an object as long as the session, and return it.

        Args:
            obj: The object.
            force: Make its tensors outputs of the step, whatever their sizes.
        """
        if all(obj is not known for known in self.tracked):
            self.tracked.append(obj)
        if force:
            self.outputs.update(
                {name: x for name, x in named_leaves(obj).items() if isinstance(x, torch.Tensor)}
            )
        return obj

    def register_metric(self, metric: Any) -> None:
        """Register a metric of the program."""
        if all(metric is not known for known in self.metrics):
            self.metrics.append(metric)

    def set_num_csx(self, num_csx: int) -> None:
        """Record the number of CS systems that the program asks for; it gets one."""
        log_unused("set_num_csx()", {"num_csx": num_csx}, {"num_csx": 1})
        self.num_csx = num_csx

    def register_activation_callback(self, callback: Callable[[], Any]) -> None:
        """Call a function after each step whose outputs the appliance receives."""
        self.activation_callbacks.append(callback)

    def get_activation_for_output(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value of a tensor after the step that has computed it."""
        return tensor.cpu()


def state() -> SessionState:
    """Return the session state of the current program."""
    return Program.current().part(SessionState)
