"""Objects that a program loops over: a `DataLoader`, or a `DataExecutor` with a number of steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cs_runtime.files import check_writable
from cstorch.appliance import performance
from cstorch.chosen_backend import current_backend
from cstorch.compatibility import log_unused
from cstorch.config import MbsSetting as MbsSetting
from cstorch.config import micro_batch_size_of
from cstorch.distributed.cluster import CSConfig
from cstorch.errors import InputError, LoaderError
from cstorch.input.loader import InputLoader
from cstorch.iterations import Schedule, checkpoint_steps_of
from cstorch.loop.on_cs import current_loop, run_loop
from cstorch.loop.rates import Rate, RateTracker
from cstorch.loop.resources import start_workers
from cstorch.program import Program

_FOLDERS = "executors"
_LATEST = "latest"


@dataclass
class Profiler:
    """The throughput of an executor.

    Attributes:
        rate_tracker: The tracker of the loop that runs, or ran last.
    """

    rate_tracker: RateTracker

    @property
    def rate(self) -> Rate:
        """Samples per second, smoothed."""
        return self.rate_tracker.rate

    @property
    def global_rate(self) -> Rate:
        """Samples per second since the first step."""
        return self.rate_tracker.global_rate

    @property
    def total_samples(self) -> Rate:
        """Samples of all steps; rates and `total_time` exclude the first step, which is compiled."""
        return Rate(self.rate_tracker.total_count)

    @property
    def total_time(self) -> Rate:
        """Seconds since the first step."""
        return self.rate_tracker.elapsed_seconds


class DataLoader(InputLoader):
    """Batches of an input function: `for batch in loader` is the loop of a training or an evaluation.

    Inside the loop a batch has no values: workers stream them to the CS system. A loop runs all steps. After
    a program has read `num_epochs`, it loops over the epochs itself, and each loop runs one epoch.

    Args:
        input_fn: Returns a `torch.utils.data.DataLoader`; every worker calls it with the other arguments.
        initial_step: Step number of the checkpoint that the program resumes from. A loaded optimizer state
            with a step number takes precedence.
        num_steps: Steps to run.
        max_steps: Step number to end at, counted from the very first step. If it is the only limit, it is the
            number of steps. An evaluation runs that many steps.
        num_epochs: Steps to run, in epochs; not together with `num_steps`.
        steps_per_epoch: Steps of an epoch; None for the length of the loader.

    Attributes:
        first_batch_s: Seconds until the first batch was available.
        id: Number of this loader in the program, from 0.
        batches_ahead: Batches that a training run skips in addition to its completed steps; negative if the
            loaded position is before the step.

    Raises:
        InputError: Both `num_steps` and epochs are given, or a number is not positive.
    """

    def __iter__(self) -> Iterator[Any]:
        return run_loop(self, self.steps_of_loop())


class DataExecutor:
    """Batches for a number of steps: `for batch in executor` is the loop.

    A process may have several in sequence, or an evaluation within a training run. Each has a folder for the
    files of its run, `<artifact_dir>/executors/000001` and so on; `latest` points to the newest.

    Args:
        dataloader: The input; it is repeated when it ends.
        num_steps: Number of steps; None for those of the loader.
        checkpoint_steps: When checkpoint closures run, and the state may be read: an interval of steps, which
            includes the last step; or a `Schedule` of iterations counted from 0, after which only they run.
            None or 0: never.
        activation_steps: Accepted and ignored: values are available after every step.
        cs_config: `utils.CSConfig` or `distributed.ClusterConfig`: the system of this loop only, and the
            workers of this loop and of later ones, if none were started before.
        writer: Event writer for the summaries of every step.
        profiler_activities: Accepted and ignored: throughput is always measured.
        micro_batch_size: With weight streaming, samples that go through the layers together, see `configure`;
            `backends.csx.performance.micro_batch_size` when None.
        listeners: Accepted and ignored: listeners of `experimental.listener` are registered when they are
            created.

    Raises:
        LoaderError: The input is no `cstorch.utils.data.DataLoader`.
        InputError: The number of steps is invalid.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        num_steps: int | None = None,
        checkpoint_steps: int | Schedule | None = None,
        activation_steps: int | Schedule | None = None,
        cs_config: Any = None,
        writer: Any = None,
        profiler_activities: Any = None,
        micro_batch_size: Any = None,
        listeners: Any = None,
    ) -> None:
        if not isinstance(dataloader, DataLoader):
            raise LoaderError(type(dataloader).__name__)
        if num_steps is not None and num_steps < 1:
            raise InputError(f"num_steps is {num_steps}, expected 1 or more")
        log_unused(
            "DataExecutor",
            {"activation_steps": activation_steps, "profiler_activities": profiler_activities},
        )
        self.dataloader = dataloader
        self.num_steps = dataloader.steps if num_steps is None else num_steps
        self.writer = writer
        self.cs_config = CSConfig() if cs_config is None else cs_config  # models of release 2.2 read it
        self._profiler = Profiler(RateTracker())
        self._artifact_dir: Path | None = None
        self._stack = ExitStack()
        checkpoint_steps_of(checkpoint_steps)  # raise errors here, not in the loop
        self._checkpoints = checkpoint_steps or 0
        self._batches = 0
        given = {} if cs_config is None else CSConfig.of(cs_config).settings()
        self._changes = {name: value for name, value in given.items() if value is not None}
        if micro_batch_size is None:
            micro_batch_size = performance.micro_batch_size
        size = micro_batch_size_of(micro_batch_size)
        if size is not None:
            self._changes["micro_batch_size"] = size

    def __len__(self) -> int:
        return self.num_steps

    @property
    def iteration(self) -> int:
        """Number of the current iteration, from 0."""
        return max(0, self._batches - 1)

    @property
    def user_iteration(self) -> int:
        """Number of the current iteration, from 1, as its closures see it."""
        return self._batches

    @property
    def is_initial_step(self) -> bool:
        """True in the first iteration."""
        return self._batches <= 1

    @property
    def on_final_iteration(self) -> bool:
        """True in the last iteration."""
        return self._batches == self.num_steps

    @property
    def profiler(self) -> Profiler:
        """The throughput of its loop."""
        return self._profiler

    @property
    def artifact_dir(self) -> Path | None:
        """Folder for the files of its run; None before its loop, and without a backend."""
        return self._artifact_dir

    def __enter__(self) -> DataExecutor:
        """Make this the current executor within the block, which may loop over it."""
        self._stack.enter_context(self._running())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Any]:
        running_executors = Program.current().part(_RunningExecutors).stack
        with nullcontext() if self in running_executors else self._running():
            for batch in run_loop(self.dataloader, self.num_steps, self._checkpoints, self.writer):
                loop = current_loop()
                if loop is not None:
                    self.profiler.rate_tracker = loop.rates
                self._batches += 1
                yield batch

    @contextmanager
    def _running(self) -> Iterator[None]:
        backend = current_backend(raise_exception=False)
        changes = dict(self._changes)
        if backend is not None:
            self._artifact_dir = _new_folder(Path(backend.artifact_dir) / _FOLDERS)
            if not backend.is_cpu:
                changes["run_dir"] = self._artifact_dir
        running_executors = Program.current().part(_RunningExecutors).stack
        running_executors.append(self)
        try:
            with Program.current().adjust_configuration(**changes):
                if not Program.current().on_cpu:
                    start_workers()
                yield
        finally:
            running_executors.remove(self)


@dataclass
class _RunningExecutors:
    """The executors whose loops the program is in, innermost last."""

    stack: list[DataExecutor] = field(default_factory=list)


def current_executor() -> DataExecutor | None:
    """Return the innermost executor whose loop the program is in."""
    running_executors = Program.current().part(_RunningExecutors).stack
    return running_executors[-1] if running_executors else None


def _new_folder(folder: Path) -> Path:
    """Create the next numbered folder, and the link to it."""
    check_writable(folder)
    numbers = (int(path.name) for path in folder.iterdir() if path.name.isdigit())
    new = folder / f"{max(numbers, default=0) + 1:06d}"
    new.mkdir()
    link = folder / _LATEST
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    return new
