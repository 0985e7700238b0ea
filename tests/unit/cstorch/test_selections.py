"""Rows that masks of values select: what eager PyTorch gives, and what cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cs_runtime.program import ProgramCheck
from cstorch.errors import SelectionError, TensorReadError

from .conftest import run_compiled
from .test_tracing import traced

Use = Callable[["Heads", torch.Tensor], torch.Tensor]


class Heads(nn.Module):
    """Parameters that uses of selections depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.table = nn.Embedding(6, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.gate = nn.Linear(4, 3)


def _written(h: Heads, x: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    z[x > 0] = (x * 2)[x > 0]
    z[x[:, 0] > 0] = x.sum()
    z[x[:, 1] > 0, 1:] = 3.0
    return z.mul(x).sum()


def _rows_of_a_tensor(h: Heads, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(6, 4, device=x.device)
    y[torch.arange(6, device=x.device) % 2 == 0] = h.table.weight[:3]
    z = x * 1
    m = (x[:, 0] > x[:, 0].median()).logical_or(x[:, 0] == x[:, 0].max())
    z[m] = h.table.weight[:3]
    return (y * x + z).square().sum()


def _head(h: Heads, x: torch.Tensor) -> torch.Tensor:
    labels = torch.where(x[:, 0] > 0, (x[:, 1].abs() * 3).long() % 5, -100)
    logits = h.norm(h.head(x[labels != -100]))
    return functional.cross_entropy(logits.float(), labels[labels != -100]) + logits.std()


def _angles(h: Heads, x: torch.Tensor) -> torch.Tensor:
    mask = functional.one_hot((x[:, 0].abs() * 3).long() % 5, 5) == 1
    cosines = functional.linear(functional.normalize(x), functional.normalize(h.head.weight))
    there = cosines[mask]
    moved = (
        torch.cos(torch.acos(there.clamp(-0.9, 0.9)) + 0.5)
        + there.atan().sinc()
        - 2 ** torch.lgamma(3 + there)
    )
    return (cosines + mask * (moved - there).unsqueeze(1)).logsumexp(1).sum()


def _weighted(h: Heads, x: torch.Tensor) -> torch.Tensor:
    m = x.sum(1) > 0
    labels = (x[:, 1].abs() * 3).long() % 5
    weight = torch.arange(1.0, 6.0, device=x.device)
    scores = h.head(x)
    ignored = functional.cross_entropy(scores[m], labels[m], weight=weight, ignore_index=2)
    return ignored + functional.mse_loss(scores[m], scores[m].detach() * 0.5, reduction="sum")


def _logarithm(h: Heads, x: torch.Tensor) -> torch.Tensor:
    p = h.head(x)
    positive = p[p > 0]
    return -(positive.log() * positive).sum() / positive.numel() + positive.sqrt().mean()


def _reduced(h: Heads, x: torch.Tensor) -> torch.Tensor:
    rows = h.head(x)[x[:, 0] > 0]
    return (
        rows.mean(0).square().sum()
        + rows.max()
        + rows.amin(0).sum()
        + rows.var(0).sum()
        + rows.softmax(-1).max(-1)[0].mean()
        + rows.sum((0, 1)) / rows.shape[0]
        + torch.logsumexp(rows, 0).sum()
        + rows.norm()
        + rows.norm(2, 1).sum()
        + rows.norm(2)
        + functional.normalize(rows, dim=-1).topk(2)[0].sum()
        + (rows > 0).any().float()
    )


def _experts(h: Heads, x: torch.Tensor) -> torch.Tensor:
    weights, chosen = h.gate(x).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for number, expert in enumerate(h.experts):
        token, place = torch.where(chosen == number)
        out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
    for number, expert in enumerate(h.experts):
        rows, _ = torch.where(chosen[:, :1] == number)
        out[rows] += expert(x[rows]) * weights[rows, :1]
    return out.square().mean()


def _places(h: Heads, x: torch.Tensor) -> torch.Tensor:
    found = (x > 0).nonzero()
    ids = found[:, 1]
    return h.table(ids).sum() + found.float().mean() + x.masked_select(x > 1).sum()


def _filled_in(h: Heads, x: torch.Tensor) -> torch.Tensor:
    images = h.table.weight
    mask = (x[:, :1] > 0).expand_as(x)
    chosen = x[:, 0] > 0
    normed = x.masked_scatter(chosen.unsqueeze(-1), functional.normalize(x[chosen], dim=-1))
    return (x.masked_scatter(mask, images) * x + normed * x.masked_scatter(x > 0, images.flatten())).sum()


def _joined(h: Heads, x: torch.Tensor) -> torch.Tensor:
    high, low = x[:, 0] > 0, x[:, 0] <= 0
    return torch.cat([h.head(x[high]), h.head(x[low]) * 2]).mean()


def _nothing(h: Heads, x: torch.Tensor) -> torch.Tensor:
    none = h.head(x)[x[:, 0] > 100]
    return none.log().sum() + h.head(x).sum()


def _known(h: Heads, x: torch.Tensor) -> torch.Tensor:
    shape = torch.arange(4, device=x.device) % 2 == 0
    return x[:, shape].sum() + x[torch.tensor([True] * 3 + [False] * 3)][0].sum() + h.head(x)[:, 0].sum()


def _numbers(h: Heads, x: torch.Tensor) -> torch.Tensor:
    column, row = x[0].argmax(), x[:, 0].argmin()
    y = torch.zeros(2, 6, 4, device=x.device)
    y[0, row, :] = x[row - 6]  # a negative one counts from the end
    y[1, ..., column] += h.head(x)[..., column + 1]
    y[1, row, column] = x.sum()
    return (y * x).sum() + (x[row, column] * x[None, :, column]).sum() + h.table.weight[row].sum()


def _of_a_known_size(h: Heads, x: torch.Tensor) -> torch.Tensor:
    chosen = x[:, 0] > 0
    both = torch.cat([x > 0, x <= 0], 1)
    halves = torch.cat([x, x * h.table.weight], 1)[both].view(6, 4)
    return (h.head(x)[chosen].view(3, 5)[1] * x[0, 0]).sum() + (halves * x).sum() + x[chosen].reshape(12)[5]


def _rows_added_in_place(h: Heads, x: torch.Tensor) -> torch.Tensor:
    rows = h.head(x)[x[:, 0] > 0]
    rows.add_(h.table.weight[:3, :1])
    rows *= x[3:, :1]
    return rows.square().sum()


def _edges(h: Heads, x: torch.Tensor) -> torch.Tensor:
    edges = (x[:, :2].T.abs() * 3).long() % 6
    other = edges[0] != edges[1]
    rows = torch.arange(6, device=x.device)
    weights = torch.ones(6, device=x.device)
    weights[edges[0][~other]] = x[:, 2][~other]
    weights = torch.cat([x[:, 2][other].abs(), weights])
    edges = torch.cat([edges[:, other], rows.unsqueeze(0).repeat(2, 1)], dim=1)
    source, target = edges[0], edges[1]
    weights[source == target] -= 0.5
    again, _ = edges.flip([0]).unbind(0)
    if edges.numel() == 0 or edges.size(1) == 0 or not again.shape[0] > 0:
        return x.sum()
    equal = torch.ones((edges.size(1),), device=edges.device)
    degree = equal.new_zeros(6).scatter_add_(0, again, equal.new_ones(again.size(0)))
    values = h.head(x).index_select(0, source) * (weights / degree[source]).view(-1, 1)
    sums = values.new_zeros((6, *values.size()[1:]))
    sums.scatter_add_(0, target.view(-1, 1).expand_as(values), values)
    return sums.square().mean() + edges.t()[:, 1].float().mean() + edges[:, edges[0] > 2][1].sum()


def _attention_of_edges(h: Heads, x: torch.Tensor) -> torch.Tensor:
    edges = (x[:, :2].T.abs() * 3).long() % 6
    source, target = edges[:, edges[0] != edges[1]]
    scores = h.head(x)
    logits = scores[source] + scores.index_select(-2, target)
    place = target.view(-1, 1).expand_as(logits)
    largest = logits.new_zeros(6, 5).scatter_reduce_(0, place, logits.detach(), "amax", include_self=False)
    shares = (logits - largest[target]).exp()
    total = torch.zeros_like(scores).scatter_add(0, place, shares)
    shares = shares / total[target]
    means = torch.ones_like(scores).index_reduce(0, target, shares * scores[source], "mean")
    products = torch.ones_like(scores).scatter_reduce_(0, place, shares + 1, "prod")
    marks = torch.zeros(6, device=x.device).scatter_(0, source, 1.0)
    return means.square().sum() + products.mean() + (marks * x[:, 3]).sum()


def _parts(h: Heads, x: torch.Tensor) -> torch.Tensor:
    chosen = h.gate(x).argmax(-1)
    counts = torch.zeros(6, 3, device=x.device).scatter(1, chosen[:, None], 1).long().sum(0)
    sizes = counts.tolist()
    parts = x[chosen.argsort(stable=True)].split(sizes, dim=0)
    found = torch.cat([expert(part) for expert, part in zip(h.experts, parts, strict=True)], dim=0)
    again = [part * number for number, part in enumerate(torch.split(found, counts.tolist()))]
    return (torch.cat(again) * torch.arange(6, device=x.device)[:, None]).sum() + found.square().mean()


def _sequences(h: Heads, x: torch.Tensor) -> torch.Tensor:
    rows, columns = zip(*(x[:, :2] > 0).long(), strict=True)
    y = torch.ones(2, 2, device=x.device)
    y[rows, columns] = 3.0
    counts = torch.ones(6)
    counts[:0] = x[:0, 0]
    return (y * h.table.weight[:2, :2]).sum() + (x[list(rows), 1] * counts.to(x.device)).sum()


USES: list[Use] = [
    _written, _rows_of_a_tensor, _head, _angles, _weighted, _logarithm, _reduced, _experts, _places,
    _filled_in, _joined, _nothing, _known, _numbers, _of_a_known_size, _parts, _sequences,
    _rows_added_in_place, _edges, _attention_of_edges,
]  # fmt: skip


def test_selections_and_their_gradients_are_those_of_eager_torch() -> None:
    def step(model: Heads, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for use in USES:
            model.zero_grad()
            value = use(model, x)
            if value.requires_grad:
                value.backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            found += [
                value.detach(),
                sum((g.square().sum() for g in grads), torch.zeros((), device=x.device)),
            ]
        return found

    torch.manual_seed(3)
    batches = [(torch.randn(6, 4),), (torch.randn(6, 4),)]
    for (x,) in batches:
        x[:, 0] = x[:, 0].abs() * torch.tensor([1.0, 1, -1, 1, -1, -1])
    model = Heads()
    expected = [[float(value) for value in step(model, *batch)] for batch in batches]
    model.zero_grad(set_to_none=True)
    got = run_compiled(model, step, batches).values[:, : 2 * len(USES)]  # checks follow
    names = [use.__name__ for use in USES for _ in range(2)]
    for name, a, b in zip(names, np.asarray(expected).T, got.T, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, err_msg=name)


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "places in a number": lambda x: x.sum().nonzero(),
    "sorted rows": lambda x: x[x > 0].sort()[0],
    "a row": lambda x: x[x > 0][0],
    "a shape": lambda x: x[x > 0].view(-1, 2),
    "a shape of parts of rows": lambda x: x[x[:, 0] > 0].view(2, 3),
    "other masks": lambda x: x[x > 0] + x[x > 1],
    "other rows": lambda x: x[x > 0] + x[:, :1],
    "after another dimension": lambda x: x[None][:, :, x[0] > 0],
    "a write of others": lambda x: torch.zeros_like(x).__setitem__(x > 0, x[x > 1]),
    "a write by number": lambda x: torch.zeros_like(x).__setitem__(slice(2), x[x > 0]),
    "largest rows": lambda x: x[x[:, 0] > 0].topk(1, 0)[0],
    "labels of all": lambda x: functional.cross_entropy(x[x[:, 0] > 0], torch.zeros_like(x[0]).long()),
    "weights of a product": lambda x: functional.linear(x, x[x[:, 0] > 0]),
    "rows made equal": lambda x: functional.normalize(x[x[:, 0] > 0], dim=0),
    "a product": lambda x: x[x[:, 0] > 0].T @ x[x[:, 0] > 0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_of_rows_is_refused_with_a_cure(name: str) -> None:
    with pytest.raises(SelectionError, match=r"test_selections\.py:\d+: .*torch\.where\(mask, x, 0\)"):
        traced(REFUSED[name], 4, 4)
    with pytest.raises(TensorReadError):
        traced(lambda x: range(x[x > 0].shape[0]), 4)


READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "a slice": lambda x: x[: int(x.argmax())],
    "a number": lambda x: x.roll(int(x.argmax())),
    "numbers": lambda x: sum(x.long().tolist()),
    "parts of columns": lambda x: x[None].split(x.long().tolist(), 1),
}


@pytest.mark.parametrize("name", READ)
def test_numbers_that_decide_sizes_are_not_read(name: str) -> None:
    with pytest.raises(TensorReadError, match=r"test_selections\.py:\d+"):
        traced(READ[name], 4)


def test_sizes_of_parts_must_be_those_of_the_tensor() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        first, _ = x.split(x[:, 0].long().tolist()[:2])
        return first.sum()

    with pytest.raises(TensorReadError):  # a list of which the program takes a part
        traced(step, 4, 3)
    (check,) = traced(lambda x: x.split(x[:2, 0].long().tolist())[0].sum(), 4, 3).graph.checks
    assert "RuntimeError: split expects sizes that sum up to 4" in check.error


def test_rows_that_are_written_must_be_as_many_as_the_mask_selects() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[x[:, 0] > 0] = torch.ones(2, 3, device=x.device)
        return y.sum()

    (check,) = traced(step, 4, 3).graph.checks
    assert "ValueError: shape mismatch: the value has 2 rows" in check.error
    assert ProgramCheck("", check.error).error == check.error
