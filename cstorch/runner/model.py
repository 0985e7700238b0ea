"""A network with what trains it: optimizer, schedule, loss scale, as the parameters say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cstorch import optim
from cstorch.amp.gradients import clip_by_norm, clip_by_value, gradients
from cstorch.session import module
from cstorch.session.amp import GradScaler
from cstorch.session.preparing import optimizer as prepared

_SCALER_KEYS = {
    "loss_scaling_factor": "loss_scale",
    "initial_loss_scale": "init_scale",
    "steps_per_increase": "steps_per_increase",
    "min_loss_scale": "min_loss_scale",
    "max_loss_scale": "max_loss_scale",
}


class Model:
    """What a runner trains; programs may derive from it.

    Args:
        network: its call with a batch returns the loss.
        params: `optimizer` has `optimizer_type`, its arguments, `learning_rate` (a number or schedules, see
            `cstorch.optim.configure_lr_scheduler`), `max_gradient_norm`, `max_gradient_value` and
            `loss_scaling_factor`; `model` may have `mixed_precision`. Without `optimizer` it only evaluates.

    Attributes:
        network: on the CS system's device where there is one.
        optimizer: None without parameters for it.
        lr_scheduler: as `optimizer`.
        scaler: as `optimizer`.
    """

    def __init__(self, network: torch.nn.Module, params: Mapping[str, Any]) -> None:
        self.network = module(network)
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.scaler: GradScaler | None = None
        settings = dict(params.get("optimizer") or {})
        self._max_norm = settings.pop("max_gradient_norm", None)
        self._max_value = settings.pop("max_gradient_value", None)
        if settings:
            self._configure(settings, bool((params.get("model") or {}).get("mixed_precision")))

    def _configure(self, settings: dict[str, Any], mixed_precision: bool) -> None:
        scaling = {to: settings.pop(key) for key, to in _SCALER_KEYS.items() if key in settings}
        rate = settings.pop("learning_rate", settings.pop("lr", None))
        groups = optim.configure_param_groups(self.network, settings)
        for name in ("weight_decay", "weight_decay_rate"):
            settings.pop(name, None)
        made = optim.configure_optimizer(params=groups, lr=1.0, **settings)
        self.optimizer = prepared(made)
        if rate is not None:
            self.lr_scheduler = optim.configure_lr_scheduler(made, rate)
        self.scaler = GradScaler(mixed_precision=mixed_precision, **scaling)

    def __call__(self, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        loss: torch.Tensor = self.network(batch)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Computes the gradients."""
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler(loss).backward()

    def step(self) -> None:
        """Clips, updates the parameters, and goes on in the schedule."""
        with torch.no_grad():
            if self._max_norm:
                clip_by_norm(gradients(self.optimizer), self._max_norm)
            if self._max_value:
                clip_by_value(gradients(self.optimizer), self._max_value)
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield "model", self.network
        for name in ("optimizer", "lr_scheduler", "scaler"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name)

    def state_dict(self) -> dict[str, Any]:
        """All that a training needs to go on, by part."""
        return {name: part.state_dict() for name, part in self._parts()}

    def load_state_dict(self, state: Mapping[str, Any], *, weights_only: bool = False) -> None:
        """Takes a state over.

        Args:
            state: what `state_dict` gave.
            weights_only: leave optimizer, schedule and loss scale as they are.
        """
        for name, part in self._parts():
            if name == "model" or (name in state and not weights_only):
                part.load_state_dict(state[name])
