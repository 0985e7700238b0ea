"""Training steps as published PyTorch programs write them, each with a network and a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .language_models import RotaryLanguageModel

Step = Callable[..., torch.Tensor]


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1).float()


class ScaledSquare(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, s: float) -> torch.Tensor:  # type: ignore[override]
        return x * x * s

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.s = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * grad * ctx.s, None


class OwnGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        out: torch.Tensor = self.b(ScaledSquare.apply(StraightThrough.apply(h) + h, 0.5))
        return out


class Average(nn.Module):
    """A running average of its weights, in part under no_grad, with a buffer that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)
        self.register_buffer("shadow", torch.zeros(5, 5))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.shadow.mul_(0.9).add_(self.lin.weight, alpha=0.1)
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        out: torch.Tensor = self.lin(x - self.mean) + x @ self.shadow.detach() / self.count
        return out


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2 = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu_(self.bn(self.c1(x))), 2)
        return self.fc(torch.flatten(self.pool(x + self.c2(x)), 1))  # type: ignore[no-any-return]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.w = nn.Linear(5, 4), nn.Parameter(torch.randn(4, 5, 5) * 0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.gate(x).softmax(-1)
        values, places = p.topk(2, -1)
        return torch.einsum("bd,edf,be->bf", x, self.w, torch.zeros_like(p).scatter(-1, places, values))


class Translation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.e, self.o = nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 11)

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        mask = self.t.generate_square_subsequent_mask(tgt.size(1)).to(src.device)
        there = {"src_key_padding_mask": src == 0, "memory_key_padding_mask": src == 0}
        return self.o(self.t(self.e(src), self.e(tgt), tgt_mask=mask, **there))  # type: ignore[no-any-return]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def descend(model: nn.Module, lr: float = 0.05) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad
                p.grad = None


def clipped_by_norm(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(ids, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    descend(model)
    return loss.detach()


def clipped_by_value(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(ids, targets)
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    descend(model)
    return loss.detach()


def accumulated(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), device=ids.device)
    for i in range(2):
        loss = model(ids[i : i + 1], targets[i : i + 1]) / 2
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
    descend(model)
    return total


def regress(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).pow(2).mean()
    loss.backward()
    descend(model)
    return loss.detach()


def hooked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    first, _, last = model.children()
    hooks = [
        first.register_forward_hook(lambda module, args, out: out * 2),
        last.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        last.register_full_backward_hook(lambda module, into, outof: (into[0] * 0.5,)),
        first.weight.register_hook(lambda grad: grad * 3),
    ]
    loss = regress(model, x)
    for hook in hooks:
        hook.remove()
    return loss


def classify(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    loss = F.cross_entropy(logits, y, label_smoothing=0.1)
    accuracy = (logits.argmax(1) == y).float().mean()
    model.zero_grad(set_to_none=False)
    loss.backward()
    descend(model)
    return loss.detach() + accuracy


def penalized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_(True)
    out = model(x).sum()
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    loss = (grad.norm(2, dim=1) - 1).pow(2).mean() + out * 0.01
    loss.backward()
    descend(model)
    return loss.detach()


def functional_gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    params = dict(model.named_parameters())

    def loss_of(given: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(model, given, (x,)).square().mean()
        return found

    grads, loss = torch.func.grad_and_value(loss_of)(params)
    with torch.no_grad():
        for name, p in params.items():
            p -= 0.1 * grads[name]
    return loss  # type: ignore[no-any-return]


def on_lists(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    params = list(model.parameters())
    loss: torch.Tensor = model(x).square().mean()
    grads = list(torch.autograd.grad(loss, params))
    norms = torch._foreach_norm(grads)
    with torch.no_grad():
        torch._foreach_mul_(grads, 1 / (torch.stack(norms).norm() + 1))
        torch._foreach_add_(params, grads, alpha=-0.1)
    return loss.detach()


def by_data(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    norm = nn.utils.parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None]).norm()
    for p in model.parameters():
        assert p.grad is not None
        p.data.add_(p.grad.data.clamp_(-0.1, 0.1), alpha=-0.1)
        p.grad.zero_()
    return loss.detach() + norm


def translate(model: nn.Module, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
    out = model(src, tgt[:, :-1])
    loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), tgt[:, 1:].reshape(-1), ignore_index=0)
    loss.backward()
    descend(model)
    return loss.detach()


def programs() -> Mapping[str, tuple[nn.Module, Step, tuple[torch.Tensor, ...]]]:
    """Models, their steps and batches; the same in every call."""
    torch.manual_seed(0)
    ids, targets = torch.randint(0, 19, (2, 6)), torch.randint(0, 19, (2, 6))
    targets[0, 3:] = -100
    words, x = (ids, targets), torch.randn(4, 5)
    images = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    sentences = (
        torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]),
        torch.tensor([[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]]),
    )
    return {
        "clipped by norm": (RotaryLanguageModel(), clipped_by_norm, words),
        "clipped by value": (RotaryLanguageModel(use_checkpoint=True), clipped_by_value, words),
        "accumulated": (RotaryLanguageModel(), accumulated, words),
        "own gradients": (OwnGradients(), regress, (x,)),
        "hooks": (small(), hooked, (x,)),
        "average": (Average(), regress, (x,)),
        "images": (Images(), classify, images),
        "penalty": (small(), penalized, (x,)),
        "functional": (small(), functional_gradients, (x,)),
        "lists": (small(), on_lists, (x,)),
        "data": (small(), by_data, (x,)),
        "experts": (Experts(), regress, (x,)),
        "translation": (Translation(), translate, sentences),
    }
