"""The base class of schedules of learning rates and weight decays.

A step is recorded once, so a schedule is a formula of its epoch: a tensor that each `step()` increments in
place. The value is written into the parameter groups of the optimizer, in place too. So the epoch and the
groups' values are state of the step, and Python decides nothing about a schedule while steps run.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from cs_toolkit.step import OPTIMIZER_STATE
from cstorch.errors import ScheduleError
from cstorch.optim.optimizer import SCHEDULES
from cstorch.optim.registry import check_optimizer
from cstorch.tracing.device import DeviceTensor, is_tracing, to_device
from cstorch.tracing.state import place_with_models, register

Tags = str | list[str] | set[str] | None
"""Tags of parameter groups; None means all groups."""

_OF_THIS_OBJECT = frozenset({"optimizer"})
_BOOKKEEPING = frozenset({"_get_called_within_step", "_last_value", "_step_count"})


class Scheduler(ABC):
    """A schedule of one entry of an optimizer's parameter groups.

    A subclass names the entry in `param_group_key` and computes its value in `_get_closed_form_value`.

    Attributes:
        optimizer: the optimizer whose groups get the values. An entry that is a Python number becomes a
            float32 scalar on the device of the group's parameters.
        total_iters: length of the schedule in steps; None if it has no end.
        last_epoch: steps taken so far, an int64 scalar.
        param_group_tags: only groups whose `tags` have one of these get values; None for all groups.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: float | None = None,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        check_optimizer(optimizer)
        self._refuse_infinities()
        self.optimizer = optimizer
        self.total_iters: Any = total_iters
        self.param_group_tags = _tags(param_group_tags)
        if not list(self._groups()):
            known = sorted(
                {tag for group in optimizer.param_groups for tag in _tags(group.get("tags")) or ()}
            )
            raise ScheduleError(
                f"{type(self).__name__}: no parameter group has one of the param_group_tags "
                f"{sorted(self.param_group_tags or ())}, expected some of {known}; tag the groups, or leave "
                "the tags out to schedule all of them"
            )
        for group in self._groups():
            given = group[self.param_group_key]
            given = 0.0 if given is None else given  # replaced before the first step
            group[self.param_group_key] = _move_to_group(
                group, torch.as_tensor(given, dtype=torch.float32).clone()
            )
        self.last_epoch = _move_to_group(
            optimizer.param_groups[0], torch.tensor(last_epoch, dtype=torch.int64)
        )
        self._step_count = 1
        self._get_called_within_step = False
        with torch.no_grad():
            self._go_to(self.last_epoch + 1)
            # These are separate tensors: an enclosing schedule writes other values into the groups.
            self._last_value: list[torch.Tensor | None] = self.get()
            self.update_groups(self._last_value)
        register(f"{OPTIMIZER_STATE}{self.param_group_key}_scheduler.", self)
        vars(optimizer).setdefault(SCHEDULES, []).append(weakref.ref(self))

    @property
    @abstractmethod
    def param_group_key(self) -> str:
        """Name of the entry of a parameter group that is scheduled, such as `lr`."""

    def _get_closed_form_value(self) -> torch.Tensor:
        """Return the value at `last_epoch`, a float32 scalar, computed only with torch operations."""
        raise NotImplementedError(
            f"{type(self).__name__} has no schedule: expected a method that returns the value at "
            "self.last_epoch as a tensor"
        )

    def _refuse_infinities(self) -> None:
        """Check the values that the constructor of a schedule of this package has set."""
        if type(self).__module__.startswith(f"{__package__}."):  # others may set whatever they need
            for name, value in vars(self).items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ScheduleError(
                        f"{type(self).__name__} got {name} = {value}, expected a finite number"
                    )

    def _closed_form(self) -> torch.Tensor:
        """Return the value at `last_epoch`, from the method that a program may override."""
        return self._get_closed_form_value()

    def _initial(self) -> float:
        """Return the value at which the schedule begins; a chain divides by it."""
        initial = getattr(self, "initial_val", None)
        if initial is not None:
            return float(initial)
        raise ScheduleError(
            f"{type(self).__name__} has no initial value, so it can only be the first of a chain; put it "
            "first, or let its constructor set self.initial_val"
        )

    def _group_values(self) -> list[torch.Tensor]:
        """Return the value of each scheduled group."""
        return [self._closed_form()] * len(list(self._groups()))

    def step(self) -> None:
        """Count a step and write the next values into the parameter groups; also inside a traced step.

        A step that a dynamic `GradScaler` has undone does not count.
        """
        with torch.no_grad():
            self._step_count += 1
            self.increment_last_epoch()
            self.update_last_value()

    def increment_last_epoch(self) -> None:
        """Count one step, unless a dynamic `GradScaler` has undone the optimizer's last one."""
        applied = getattr(self.optimizer, "step_applied", None)
        self._go_to(self.last_epoch + (1 if applied is None else applied.to(self.last_epoch.dtype)))

    def get(self) -> list[torch.Tensor | None]:
        """Return the value at `last_epoch` for each parameter group; None for groups with other tags."""
        values = iter(self._group_values())
        return [next(values) if self._is_for(group) else None for group in self.optimizer.param_groups]

    def update_groups(self, values: Sequence[torch.Tensor | None]) -> None:
        """Write values, one for each parameter group, into the groups in place; skip those that are None."""
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            if value is not None:
                group[self.param_group_key].copy_(value)

    def update_last_value(self) -> None:
        """Write the values at `last_epoch` into the groups."""
        self.update_groups(self.get())
        self._last_value = self._entries()

    def get_last_value(self) -> list[torch.Tensor | None]:
        """Return the values that this schedule wrote last; None for groups that it does not schedule.

        In a step these are separate from the tensors of the groups, which a later `step` writes in place.
        """
        if is_tracing():
            return self.get()
        return [
            value if value is None or isinstance(value, DeviceTensor) else value.clone()
            for value in self._last_value
        ]

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that `step` writes outside of the groups: `last_epoch`, of inner ones too."""
        yield "last_epoch", self.last_epoch
        for name, inner in self._inner():
            for path, tensor in inner.named_state():
                yield f"{name}.{path}", tensor

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes but the optimizer, by the names of the constructor's arguments.

        Tensors are not copied. `_step_count` counts calls of `step` on this object: it starts again in the
        process that loads the state.
        """
        return {name: _to_state(value) for name, value in vars(self).items() if name not in _OF_THIS_OBJECT}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved schedule, and write its value into the groups.

        Raises:
            ScheduleError: the state has other entries, so it was saved by a schedule of another kind.
        """
        saved = [x for x in state_dict.get("_last_value") or () if x is not None]
        with torch.no_grad():
            self._load(state_dict)
            self._write_values(saved)

    def follow(self, epoch: int) -> None:
        """Continue after `epoch` steps, with the values that the groups were loaded with."""
        self.go_to(epoch, [group[self.param_group_key].clone() for group in self._groups()])

    def go_to(self, epoch: int, saved: Sequence[Any] | None = None) -> None:
        """Continue after a number of steps, and write the value into the groups.

        Args:
            epoch: steps taken.
            saved: the values of the groups at that step, if they are known.
        """
        with torch.no_grad():
            self._go_to(torch.full_like(self.last_epoch, epoch))
            self._write_values(saved or ())

    def _write_values(self, saved: Sequence[Any]) -> None:
        # Saved values are written as they are: this CPU may round a cosine differently than the system did.
        groups = list(self._groups())
        values = saved if len(saved) == len(groups) else self._group_values()
        for group, value in zip(groups, values, strict=True):
            group[self.param_group_key].copy_(torch.as_tensor(value))
        self._last_value = self._entries()

    def _load(self, state: Mapping[str, Any]) -> None:
        self._check_entries(state)
        for name, kept in vars(self).items():
            if name in state and name not in _BOOKKEEPING | _OF_THIS_OBJECT:
                self.__dict__[name] = _from_state(kept, state[name])
        last = state.get("_last_value", self._last_value)
        self._last_value = [None if x is None else torch.as_tensor(x).clone() for x in last]

    def _check_entries(self, state: Mapping[str, Any]) -> None:
        expected = self.state_dict().keys() - _BOOKKEEPING
        got = state.keys() - _BOOKKEEPING
        if got != expected:
            raise ScheduleError(
                f"{type(self).__name__}: the state has {sorted(got)}, expected {sorted(expected)}; "
                "make the schedule that saved the state, with the same arguments, and load it into that"
            )

    def _go_to(self, epoch: torch.Tensor) -> None:
        """Set the epoch of this schedule, and of its inner schedules."""
        self._set_epoch(epoch)

    def _set_epoch(self, epoch: torch.Tensor) -> None:
        """Set the epoch on behalf of an enclosing schedule."""
        self.last_epoch.copy_(epoch)

    def _inner(self) -> Iterator[tuple[str, Scheduler]]:
        """Return the inner schedules by name."""
        return iter(())

    def _epoch(self) -> torch.Tensor:
        """Return `last_epoch` in float32, which counts up to 2**24 steps exactly."""
        return self.last_epoch.float()

    def _constant(self, value: float) -> torch.Tensor:
        return torch.full_like(self._epoch(), value)

    def _entries(self) -> list[torch.Tensor | None]:
        return [
            group[self.param_group_key] if self._is_for(group) else None
            for group in self.optimizer.param_groups
        ]

    def _groups(self) -> Iterator[dict[str, Any]]:
        return filter(self._is_for, self.optimizer.param_groups)

    def _is_for(self, group: Mapping[str, Any]) -> bool:
        if self.param_group_tags is None:
            return True
        return bool(self.param_group_tags & (_tags(group.get("tags")) or set()))


def stored_as(name: str) -> Any:
    """Return a property that is stored, and saved, under another name.

    A learning rate schedule has `initial_learning_rate` where the formula reads `initial_val`.
    """

    def read(scheduler: Scheduler) -> Any:
        try:
            return vars(scheduler)[name]
        except KeyError:
            raise AttributeError(f"{type(scheduler).__name__} has no attribute {name!r}") from None

    def write(scheduler: Scheduler, value: Any) -> None:
        vars(scheduler)[name] = value

    return property(read, write, doc=f"The same as `{name}`.")


def _tags(tags: Tags) -> set[str] | None:
    if tags is None:
        return None
    listed = [tags] if isinstance(tags, str) else list(tags)
    if len(set(listed)) < len(listed):
        raise ScheduleError(f"param_group_tags: got {listed}, expected every tag once; drop repeated ones")
    return set(listed)


def _move_to_group(group: Mapping[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor to the device of a group's parameters; of an empty group, to that of the models."""
    parameters: Sequence[torch.Tensor] = group["params"]
    if any(isinstance(x, DeviceTensor) for x in parameters):
        return to_device(tensor)
    return tensor.to(parameters[0].device) if parameters else place_with_models(tensor)


def _to_state(value: Any) -> Any:
    if isinstance(value, Scheduler):
        return value.state_dict()
    if isinstance(value, list) and value and isinstance(value[0], Scheduler):
        return [inner.state_dict() for inner in value]
    return value


def _from_state(kept: Any, stored: Any) -> Any:
    """Load a saved attribute; tensors and inner schedules stay the same objects."""
    if isinstance(kept, torch.Tensor):
        return kept.copy_(torch.as_tensor(stored))
    if isinstance(kept, Scheduler):
        kept._load(stored)
        return kept
    if isinstance(kept, list) and kept and isinstance(kept[0], Scheduler):
        if len(stored) != len(kept):
            raise ScheduleError(
                f"the state has a sequence of {len(stored)} schedules, expected {len(kept)}; make the "
                "schedule with the arguments with which it was saved"
            )
        for inner, saved in zip(kept, stored, strict=True):
            inner._load(saved)
        return kept
    return set(stored) if isinstance(kept, set) else stored  # files may hold sets as lists
