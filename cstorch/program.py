"""The state of the program that this process runs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn

from cs_runtime.requeue import CheckpointRequests
from csrun.tasks.roles import TaskInfo
from cstorch.config import BackendType, Configuration
from cstorch.errors import ConfigureError

if TYPE_CHECKING:
    from cs_runtime.embedded_system import EmbeddedSystem

Part = TypeVar("Part")


class ChosenBackend(Protocol):
    """The backend of a program (`cstorch.backends.Backend`)."""

    @property
    def backend_type(self) -> BackendType:
        """Its kind."""
        ...


class WorkerGroup(Protocol):
    """Workers that a program has started itself (`cstorch.input.workers.LocalWorkers`)."""

    @property
    def task(self) -> TaskInfo:
        """This process as their chief."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """Return the error that ends the program, given the one that was caught."""
        ...


class StateHolder(Protocol):
    """An object with tensors that a step may replace: an optimizer, a schedule, a loss scale, a metric."""

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield its tensors with their names."""
        ...


@dataclass(frozen=True)
class Hooks:
    """Functions that a program has registered, by the number of their handle."""

    before_step: OrderedDict[int, Callable[[], object]] = field(default_factory=OrderedDict)
    after_step: OrderedDict[int, Callable[[], object]] = field(default_factory=OrderedDict)
    traced_tensor: OrderedDict[int, Callable[[torch.Tensor, str], object]] = field(
        default_factory=OrderedDict
    )
    tensor_to_cpu: OrderedDict[int, Callable[[torch.Tensor, str], object]] = field(
        default_factory=OrderedDict
    )


@dataclass(eq=False)
class Program:
    """The state of a program, from its configuration to its loops.

    A process runs one program. Tests run several in sequence, and call `Program.reset` between them.

    This module imports none of the modules that use it: they keep state of their types with `part`.

    Attributes:
        backend: The backend that the program chose; None before that.
        models: Models that were compiled for the CS system, in that order.
        cpu_models: Models that were compiled for the CPU backend.
        predict_steps: The step that `cstorch.predict` runs, by model.
        state_holders: Optimizers, schedules, loss scales and metrics, each with the prefix of its names.
        metrics: Metrics in use, by their number.
        metric_numbers: Counts the metrics.
        steps_done: Training steps that the state has completed.
        half_dtype: Name of the 16-bit type.
        mixed_precision: Steps without an autocast are computed in the 16-bit type.
        disabled_casts: Number of `disable_casts` blocks that are entered.
        precision_level: The level of `cstorch.pol`.
        hooks: Registered hooks.
        decompositions: Registered rules, by operation.
        running_decompositions: Operations whose rule is running.
        appliance_settings: Values of `backends.csx` settings that the program has set, by group and name.
        loader_numbers: Counts the data loaders.
        local_workers: Workers that the program has started itself.
        value_readers: Functions that return values of tensors that are not on this CPU, of which the last one
            is called. A session ends its step for that.
        output_readers: Functions of the running loops, innermost last, that return outputs of the last step
            to operations between steps.
        embedded_systems: Simulated CS systems that were started for the program, by number of wafers.
        checkpoint_requests: Requests for a checkpoint by SIGUSR1, unless the program handles that itself.
        unfinished_loops: Loops that were left early: code and instruction there, and the function to call if
            the program ends with an error from that instruction.
        cleanup: Undone by `reset`.
    """

    backend: ChosenBackend | None = None
    models: list[nn.Module] = field(default_factory=list)
    cpu_models: list[nn.Module] = field(default_factory=list)
    predict_steps: WeakKeyDictionary[nn.Module, Callable[[Any], Any]] = field(
        default_factory=WeakKeyDictionary
    )
    state_holders: list[tuple[str, ReferenceType[StateHolder]]] = field(default_factory=list)
    metrics: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)
    metric_numbers: Iterator[int] = field(default_factory=count)
    steps_done: int = 0
    half_dtype: str = "float16"
    mixed_precision: bool = False
    disabled_casts: int = 0
    precision_level: int = 0
    hooks: Hooks = field(default_factory=Hooks)
    decompositions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    running_decompositions: list[Any] = field(default_factory=list)
    appliance_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    loader_numbers: Iterator[int] = field(default_factory=count)
    local_workers: WorkerGroup | None = None
    value_readers: list[Callable[[Any], torch.Tensor | None]] = field(default_factory=list)
    output_readers: list[Callable[[torch.Tensor], torch.Tensor | None]] = field(default_factory=list)
    embedded_systems: dict[int, EmbeddedSystem] = field(default_factory=dict)
    checkpoint_requests: CheckpointRequests = field(default_factory=CheckpointRequests)
    unfinished_loops: list[tuple[CodeType, int, Callable[[BaseException], None]]] = field(
        default_factory=list
    )
    cleanup: ExitStack = field(default_factory=ExitStack)
    _configuration: Configuration | None = None
    _parts: dict[type, Any] = field(default_factory=dict)
    _logged: set[tuple[Any, ...]] = field(default_factory=set)

    _current: ClassVar[Program | None] = None

    @classmethod
    def current(cls) -> Program:
        """Return the program that this process runs."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @classmethod
    def reset(cls) -> None:
        """Forget the current program, so that this process can run another one."""
        ended, cls._current = cls._current, None
        if ended is not None:
            ended.cleanup.close()

    @property
    def configuration(self) -> Configuration:
        """The program's configuration; the default one if it has given none."""
        return self._configuration or Configuration(Path("./"))

    @property
    def is_configured(self) -> bool:
        """True if the program has given a configuration."""
        return self._configuration is not None

    def configure(self, configuration: Configuration, caller: str) -> None:
        """Set the configuration, once, and seed PyTorch.

        Args:
            configuration: The configuration.
            caller: The function that the program has called, for messages.

        Raises:
            ConfigureError: The program is configured already.
        """
        if self._configuration is not None:
            raise ConfigureError(
                f"{caller} is called twice, expected once: a process has one configuration; start another "
                "process for a run with another one"
            )
        self._configuration = configuration
        if configuration.seed is not None:
            torch.manual_seed(configuration.seed)

    def change_configuration(self, **settings: Any) -> None:
        """Change settings and options that programs give after they have configured the run."""
        self._configuration = self.configuration.change(settings)

    @contextmanager
    def adjust_configuration(self, **settings: Any) -> Iterator[None]:
        """Change settings within the body, as a `DataExecutor` does for its loop."""
        before = self._configuration
        self.change_configuration(**settings)
        try:
            yield
        finally:
            self._configuration = before

    def part(self, kind: type[Part]) -> Part:
        """Return this program's instance of a class, which is created at the first call."""
        if kind not in self._parts:
            self._parts[kind] = kind()
        found: Part = self._parts[kind]
        return found

    def log_once(self, log: logging.Logger, level: int, message: str, *args: object) -> None:
        """Log a message unless the program has logged the same one before."""
        if (message, *args) not in self._logged:
            self._logged.add((message, *args))
            log.log(level, message, *args)

    @property
    def on_csx(self) -> bool:
        """True if the program has chosen the CS system."""
        return self.backend is not None and self.backend.backend_type.is_csx

    @property
    def on_cpu(self) -> bool:
        """True if the program has chosen the CPU."""
        return self.backend is not None and self.backend.backend_type.is_cpu

    @property
    def uses_cs(self) -> bool:
        """True if the program has chosen the CS system, or has compiled a model for it."""
        return bool(self.models) or self.on_csx

    @property
    def trains(self) -> bool:
        """False if the program can only evaluate: it has no optimizer, gradients or models to train."""
        known = (*self.models, *self.cpu_models)
        if not known:
            return True
        held = (holder() for _, holder in self.state_holders)
        has_optimizer = any(isinstance(holder, torch.optim.Optimizer) for holder in held)
        return has_optimizer and torch.is_grad_enabled() and any(model.training for model in known)


def use_cs() -> bool:
    """Return True if the program has chosen the CS system, or has compiled a model for it."""
    return Program.current().uses_cs


def configuration() -> Configuration:
    """Return the configuration of the current program."""
    return Program.current().configuration
