"""`with Session(...)`: the loop over batches in it runs on the CS system."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from types import TracebackType
from typing import Any

import torch

from cs_runtime.session import next_run
from cs_runtime.tasks import current
from cs_runtime.worker import run_worker
from csrun.tasks.roles import TaskInfo
from cstorch.config import change_configuration, configuration
from cstorch.errors import InputError, SessionError
from cstorch.input import loader
from cstorch.input.analysis import hand_over
from cstorch.job import reading_as
from cstorch.loop.execution import settings_of
from cstorch.v1.session.core import appliance, modes
from cstorch.v1.session.environment import env, is_worker_alone, use_cs
from cstorch.v1.session.preparing import optimizer
from cstorch.v1.session.rendezvous import count_place, wait_for_next_place
from cstorch.v1.session.steps import Steps, current_steps, enter, leave, step_closure

log = logging.getLogger("cstorch")


class Session:
    """The loop of a training or an evaluation; a context manager.

    What the program does between two batches of its loader is a step. With `cm.set_run_config` the body of
    the loop runs for the steps whose outputs the program gets; without it, for every batch. A worker streams
    its batches where the loop begins, and sees none: its program ends there, unless the chief comes to
    another loop or rendezvous.

    Where this process computes on its own CPU a session changes nothing.

    Args:
        given: the loader, or model, optimizer and criterion as release 1.2 first announced it; then the mode.
            Optimizers among them are prepared as `cbtorch.optimizer` does.
        dataloader: the loader.
        mode: "train" or "eval".
        objects: others by name, as `given`.

    Attributes:
        streamed: this is a worker, which has come to the loop.

    Raises:
        SessionError: no such mode, or a session inside of another one.
    """

    def __init__(self, *given: Any, dataloader: Any = None, mode: str | None = None, **objects: Any) -> None:
        words = [x for x in given if isinstance(x, str)]
        self.mode = mode or (words[0] if words else modes.TRAIN)
        if not modes.is_valid(self.mode):
            raise SessionError(f"mode is '{self.mode}', expected one of {', '.join(modes.get_modes())}")
        for x in (*given, *objects.values()):
            if isinstance(x, torch.optim.Optimizer):
                optimizer(x)
        loaders = [x for x in (dataloader, *given) if isinstance(x, DataLoader)]
        self.dataloader: DataLoader | None = loaders[0] if loaders else None
        self._steps: Steps | None = None
        self._loader: DataLoader | None = None
        self.streamed = False

    def __enter__(self) -> Session:
        if _sessions:
            raise SessionError("a session begins inside of another one, expected one after the other")
        _sessions.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            _sessions.remove(self)

    def add_step_closure(
        self, closure: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Runs a function behind the step; tensors of the device have values in it."""
        step_closure(closure)(*args, **(kwargs or {}))

    def mark_step(self) -> None:
        """Ends the step, as the next batch does."""
        mark_step()

    def steps_of(self, loader: DataLoader) -> Steps:
        """The steps of a loop over a loader: a training goes on from one epoch to the next."""
        same = self._steps is not None and self._loader is loader
        if same and self.mode == modes.TRAIN and self._steps is not None:
            self._steps.finish()
            self._steps.add(loader.epoch_steps(counted=False))
            return self._steps
        self._end(None)
        count_place()
        self._loader = loader
        steps = loader.epoch_steps(counted=self.mode != modes.TRAIN)
        self._steps = Steps(loader, self.mode, steps)
        enter(self._steps)
        return self._steps

    def stream(self, loader: DataLoader) -> None:
        """Stream the batches of a worker until the chief has done its steps; then end its program, or go on.

        A training gets batches of all workers in turn, an evaluation those of worker 0, in their order. The
        program goes on only where the chief comes to another loop or rendezvous: what follows the loop needs
        batches, such as a mean of losses.
        """
        task = current()
        again, self.streamed = self.streamed, True
        if self.mode == modes.TRAIN:
            if again:
                return
            count_place()
            run_worker(loader, settings_of(loader, "train"), task, next_run())
        else:
            count_place()
            self._stream_evaluation(loader, task, next_run())
        if not wait_for_next_place():
            log.info("worker %d has streamed all that the chief has asked for", task.index)
            sys.exit(0)

    def _stream_evaluation(self, loader: DataLoader, task: TaskInfo, run: int) -> None:
        if task.index == 0:
            with reading_as(1, 0):
                run_worker(loader, settings_of(loader, "eval"), replace(task, num_workers=1), run)
        else:
            log.info("nothing to do for worker %d: worker 0 reads the whole input", task.index)

    def _end(self, error: BaseException | None) -> None:
        steps, self._steps = self._steps, None
        if steps is None:
            return
        try:
            if error is None:
                steps.close()
            else:
                steps.abandon(error)
        finally:
            _last[:] = [steps]
            leave(steps)


_sessions: list[Session] = []
_last: list[Steps] = []
"""The steps of the last session that has ended."""


def mark_step() -> None:
    """Ends the step that is recorded, and runs it; nothing where none is."""
    steps = current_steps()
    if steps is not None:
        steps.finish()


def is_in_steps() -> bool:
    """Whether a session of this task has come to its loop, and has not ended: tasks are apart there."""
    return current_steps() is not None or any(session.streamed for session in _sessions)


def batches_of(loader: DataLoader) -> Iterator[Any]:
    """The batches of a loop: described ones on the chief, none in a worker, which streams them."""
    if env().appliance:
        return appliance.batches_of(loader)
    session = _sessions[-1] if _sessions else None
    config = configuration()
    only_compiled = config.compile_only or config.validate_only
    if is_worker_alone():
        hand_over(loader)  # ends the process where an analysis of the input has started it
        if only_compiled:
            log.info("nothing to do for worker %d: the program is only compiled", current().index)
            sys.exit(0)
        if session is not None:
            session.stream(loader)
        return iter(())
    if session is not None:
        return _Turns(session.steps_of(loader), loader)
    if not only_compiled:
        raise SessionError(
            "the program loops over a DataLoader of the CS system outside of a session, expected "
            "`with cbtorch.Session(dataloader, mode='train'):` around the loop"
        )
    steps = current_steps()
    if steps is None:
        steps = Steps(loader, None, 1)
        enter(steps)
    return _Turns(steps, loader)


class _Turns:
    """One described batch for each step."""

    def __init__(self, steps: Steps, loader: DataLoader) -> None:
        self._steps = steps
        self._epoch = loader.epoch()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._steps.finish()
        if self._steps.ended or (self._steps.follows_loader and not _has_next(self._epoch)):
            raise StopIteration
        return self._steps.begin()


def _has_next(epoch: Iterator[Any]) -> bool:
    missing = object()
    return next(epoch, missing) is not missing


def compile(fabric_config_file: str | None = None, validate_only: bool = False) -> bool:  # noqa: A001
    """Compiles the step that the program has just gone through, where `initialize` said `compile_only`.

    Args:
        fabric_config_file: YAML file of a fabric, or its name; that of the CS system, or "cs2", when None.
        validate_only: check that the step can be compiled, and stop there.

    Returns:
        True.

    Raises:
        SessionError: nothing was recorded.
        cgc.errors.CompileError: the step cannot be compiled.
    """
    if is_worker_alone():
        return True
    steps = current_steps()
    if steps is None and _last and _last[0].compiled:
        return True  # the end of the session has compiled it
    if not use_cs() or steps is None or not (steps.recording or steps.compiled):
        raise SessionError(
            "compile() is called before a step, expected initialize(compile_only=True) and one turn of the "
            "loop over the DataLoader before it"
        )
    if fabric_config_file is not None:
        change_configuration(fabric=str(fabric_config_file))
    if validate_only:
        change_configuration(compile_only=False, validate_only=True)
    steps.close()
    leave(steps)
    return True


_MANY_STEPS = 1 << 20
"""Of an epoch whose end is not known; the program's loop ends where its own loader does."""


class DataLoader(loader.DataLoader):
    """A loader whose batches are described in the loop of a session, and streamed by the workers.

    Where this process computes on its own CPU its batches are those of the loader.

    Args:
        loader: a `torch.utils.data.DataLoader`, or what gives batches each time it is iterated over.
        use_parallel_loader: workers always stream beside the steps; kept for the program, without effect.
    """

    handed_over = False

    def __init__(self, loader: Any, use_parallel_loader: bool = True) -> None:
        if not hasattr(loader, "__iter__"):
            raise InputError(
                f"dataloader() got a {type(loader).__name__}, expected a torch.utils.data.DataLoader"
            )
        super().__init__(_given, loader)
        self.use_parallel_loader = use_parallel_loader

    def __iter__(self) -> Iterator[Any]:
        return batches_of(self) if use_cs() else iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_args":
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._args[0], name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def steps(self) -> int:
        """Batches of one epoch; many where the loader does not know."""
        return self.epoch_steps(counted=False)

    def epoch(self) -> Iterator[Any]:
        """As many entries as the loader has batches; it is read itself where it does not know its length."""
        try:
            return iter(repeat(None, len(self)))
        except TypeError:  # of an iterable dataset
            return iter(self._loader)

    def epoch_steps(self, *, counted: bool) -> int:
        """Batches of one epoch.

        Args:
            counted: read a loader that does not know its length once to its end; else many are assumed.
        """
        try:
            return len(self)
        except TypeError:
            return sum(1 for _ in self._loader) if counted else _MANY_STEPS


def _given(loader: Any) -> Any:
    """The input function: the same in all tasks, whatever their loaders are."""
    return loader


def dataloader(loader: Any, use_parallel_loader: bool = True) -> DataLoader:
    """A loader for the loop of a session; see `DataLoader`."""
    return loader if isinstance(loader, DataLoader) else DataLoader(loader, use_parallel_loader)
