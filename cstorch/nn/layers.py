"""Layers, a loss and selective gradients that the original adds to `torch.nn`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cstorch.utils.helpers import FilterCallable, make_param_filter

_HOOKED = "_cstorch_selective_grad"
"""Attribute of parameters whose gradients are masked."""
Mask = Callable[[torch.Tensor], torch.Tensor]


class Scope(nn.Module):
    """Names the following operations; returns its input.

    Args:
        scope_name: the name.
    """

    def __init__(self, scope_name: str) -> None:
        super().__init__()
        self.scope_name = scope_name

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the original's name
        """Return the input; operations on it have the name."""
        return input

    def exit(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as above
        """Return the input; operations on it do not have the name."""
        return input

    def extra_repr(self) -> str:
        """Return the arguments for `print`."""
        return f"scope_name={self.scope_name!r}"


class StripPadding(nn.Module):
    """Marks a tensor that may be padded; no tensor is padded here, so it returns its input."""

    def forward(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        """Return the input."""
        return x


class DiceCELoss(nn.Module):
    """Mean cross entropy plus one minus the mean Dice coefficient of the classes.

    The Dice coefficient of a class is `2 sum(p y) / (sum(p) + sum(y))` over all pixels of the batch, with the
    softmax p of the logits and the labels y as 0 and 1 (Milletari et al., V-Net, 2016, with sums instead of
    squares; 1e-6 is added to both parts of the fraction).

    Args:
        num_classes: number of classes.
        input_shape: accepted for programs that pass it, without effect.
        weight_dice: factor of the Dice part.
        weight_ce: factor of the cross entropy.

    Raises:
        ValueError: there are fewer than two classes.
    """

    def __init__(
        self, num_classes: int, input_shape: Any = None, weight_dice: float = 1.0, weight_ce: float = 1.0
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"got num_classes={num_classes}, expected 2 or more")
        self.num_classes, self.input_shape = num_classes, input_shape
        self.weight_dice, self.weight_ce = weight_dice, weight_ce

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute the loss.

        Args:
            logits: [batch, classes, ...].
            labels: classes, [batch, ...] or [batch, 1, ...].
        """
        if labels.dim() == logits.dim():
            labels = labels.squeeze(1)
        labels = labels.long()
        ce = functional.cross_entropy(logits, labels)
        p = torch.softmax(logits, 1).transpose(0, 1).reshape(self.num_classes, -1)
        y = (labels.reshape(1, -1) == torch.arange(self.num_classes).reshape(-1, 1)).to(p.dtype)
        dice = (2 * (p * y).sum(1) + 1e-6) / (p.sum(1) + y.sum(1) + 1e-6)
        return self.weight_ce * ce + self.weight_dice * (1 - dice.mean())


def _outliers(parameter: torch.Tensor) -> torch.Tensor:
    """Return True for elements that are more than 3 standard deviations from the mean."""
    return (parameter - parameter.mean()).abs() > 3 * parameter.std()


class SelectiveGrad:
    """Trains only chosen elements of parameters: `model.apply(SelectiveGrad("fc.*"))`.

    The others have no gradient and keep their values in the updates of all optimizers.

    Args:
        param_filter: Names of parameters with wildcards, or a function of name and parameter.
        init_method: "outlier", elements more than 3 standard deviations from the mean of their parameter, or
            a function that returns the mask of a parameter.

    Raises:
        ValueError: `init_method` is neither.
    """

    def __init__(
        self, param_filter: str | list[str] | FilterCallable, init_method: str | Mask = "outlier"
    ) -> None:
        if init_method != "outlier" and not callable(init_method):
            raise ValueError(f"init_method is {init_method!r}, expected 'outlier' or a function of a tensor")
        self.param_filter = make_param_filter(param_filter)
        self.init_method = init_method
        self._masks: dict[tuple[int, str], tuple[nn.Module, torch.Tensor]] = {}
        self._before: dict[int, torch.Tensor] = {}

    def __call__(self, obj: nn.Module) -> None:
        """Apply this to a module; `nn.Module.apply` calls it for each module, the whole model last."""
        self.apply(obj)

    def apply(self, obj: nn.Module) -> None:
        """Choose elements of a module's parameters by their present values."""
        choose: Mask = self.init_method if callable(self.init_method) else _outliers
        first = not self._masks
        for prefix, module in obj.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                path = f"{prefix}.{name}".strip(".")
                if (id(module), name) in self._masks or not self.param_filter(path, parameter):
                    continue
                mask = choose(parameter.detach()).to(parameter.dtype)
                self._masks[id(module), name] = module, mask
                module.register_forward_pre_hook(self._mask_gradients)
        if self._masks and first:
            register_optimizer_step_pre_hook(self._keep)
            register_optimizer_step_post_hook(self._put_back)

    def _mask_gradients(self, module: nn.Module, args: Any) -> None:
        """Hook the gradients of a module's parameters, which `cstorch.compile` replaces."""
        for parameter, mask in self._chosen(module.parameters(recurse=False)):
            if getattr(parameter, _HOOKED, None) is not mask:
                setattr(parameter, _HOOKED, mask)
                parameter.register_hook(lambda gradient, mask=mask: gradient * mask)

    def _keep(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, _ in self._chosen(_parameters(optimizer)):
            self._before[id(parameter)] = parameter.detach().clone()

    def _put_back(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for parameter, mask in self._chosen(_parameters(optimizer)):
                before = self._before.pop(id(parameter))
                parameter.copy_(torch.where(mask > 0, parameter, before))

    def _chosen(self, parameters: Iterable[nn.Parameter]) -> list[tuple[nn.Parameter, torch.Tensor]]:
        """Return the parameters that have a mask, with their masks."""
        wanted = {id(parameter) for parameter in parameters}
        found = ((module._parameters[name], mask) for (_, name), (module, mask) in self._masks.items())
        return [(p, mask) for p, mask in found if p is not None and id(p) in wanted]


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
