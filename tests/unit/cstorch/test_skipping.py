"""A continued input gives the batches that an unbroken one would, and makes no more than it has to."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

from cstorch.input.skipping import why_made
from cstorch.loop.loaders import DataLoader


class Numbers(data.Dataset[Any]):
    """Samples that say which they are; `made` counts them."""

    def __init__(self, draw: Callable[[], float] = lambda: 0.0) -> None:
        self.draw, self.made = draw, 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        self.made += 1
        return torch.tensor(index + self.draw())


class Own(Numbers):
    """Random numbers of a private generator."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        super().__init__(lambda: float(generator.random()))


class Stream(data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(map(torch.tensor, range(20)))


DRAWS = "batches that draw random numbers"


def masked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) * (torch.rand(()) < 0.5)


def first_batches(input_fn: Callable[[], Any], skip: int, by_reading: bool) -> list[Any]:
    loader = DataLoader(input_fn)
    loader.seed = 3
    batches = islice(loader.endless(), skip, None) if by_reading else loader.endless(skip)
    return [batch.tolist() for batch in islice(batches, 9)]


@pytest.mark.parametrize("skip", [1, 7, 16])
@pytest.mark.parametrize(
    "input_fn",
    [
        lambda: data.DataLoader(Numbers(), 3),
        lambda: data.DataLoader(Numbers(), 3, shuffle=True, drop_last=True),
        lambda: data.DataLoader(Numbers(), batch_sampler=data.BatchSampler(range(20), 3, True)),
        lambda: data.DataLoader(Numbers(), 3, sampler=data.WeightedRandomSampler([1.0] * 20, 20)),
    ],
)
def test_positions_that_are_reached_without_samples(input_fn: Callable[[], Any], skip: int) -> None:
    assert why_made(input_fn()) == ""
    assert first_batches(input_fn, skip, by_reading=False) == first_batches(input_fn, skip, by_reading=True)


@pytest.mark.parametrize(
    ("input_fn", "why"),
    [
        (
            lambda: data.DataLoader(Numbers(random.random), 3, shuffle=True),
            DRAWS,
        ),
        (lambda: data.DataLoader(Numbers(np.random.rand), 3), DRAWS),
        (
            lambda: data.DataLoader(Numbers(lambda: float(torch.rand(()))), 3),
            DRAWS,
        ),
        (lambda: data.DataLoader(Own(), 3), DRAWS),
        (lambda: data.DataLoader(Numbers(), 3, collate_fn=masked), DRAWS),
        (lambda: data.DataLoader(Stream(), 3), "a dataset without indices"),
        (lambda: list(data.DataLoader(Numbers(), 3)), "a loader of the class list"),
    ],
)
def test_positions_that_are_reached_by_making_all(input_fn: Callable[[], Any], why: str) -> None:
    assert why_made(input_fn()) == why
    assert first_batches(input_fn, 8, by_reading=False) == first_batches(input_fn, 8, by_reading=True)


def test_samples_that_are_left_out_are_not_made() -> None:
    datasets: list[Numbers] = []

    def input_fn() -> Any:
        datasets.append(Numbers())
        return data.DataLoader(datasets[-1], 3, drop_last=True)

    batches = DataLoader(input_fn).endless(1000)
    assert next(batches).tolist() == [12, 13, 14]  # 1000 = 166 epochs of 6 batches, and 4
    assert datasets[-1].made == 3


def test_where_it_goes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cs_runtime")
    next(DataLoader(lambda: data.DataLoader(Numbers(), 3)).endless(5))
    next(DataLoader(lambda: data.DataLoader(Own(), 3)).endless(5))
    without, reads, done = (record.getMessage() for record in caplog.records)
    assert without == "the input skips its first 5 batches without producing them"
    assert reads.startswith(
        "the input produces its first 5 batches again and drops them, because of batches that"
    )
    assert done.startswith("the input dropped its first 5 batches in ")
