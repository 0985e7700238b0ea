"""Blocked updates: which are, and that they compute the values of the whole step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cgc.layers.pieces import MIN_ELEMENTS, PIECE_ELEMENTS
from cgc.passes.pipeline import run_pipeline
from tests.programs.pytorch.residual_stack import Step, Update, updated_step

from .cut_steps import cut_step, run_cut, run_whole

WIDTH = 384
assert PIECE_ELEMENTS < WIDTH * WIDTH  # more than a piece, and no multiple of it


def linear_step(update: Update, width: int = WIDTH, layers: int = 2) -> Step:
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    batches = [(torch.randn(4, width), torch.randn(4, width)) for _ in range(3)]
    step = updated_step(model, lambda model, x, y: F.mse_loss(model(x), y), update, *batches)
    run_pipeline(step.module)
    return step


def scaled(parameter: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return parameter - 0.1 * scale * gradient / (torch.sqrt(gradient * gradient) + 1e-3)


def centered(parameter: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return parameter - 0.1 * scale * (gradient - gradient.mean(0, keepdim=True))


def turned(parameter: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return parameter - 0.1 * scale * gradient - (0.01 * parameter.t() if parameter.dim() == 2 else 0)


def skipped(parameter: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, scaled(parameter, gradient, scale), parameter)


@pytest.mark.parametrize(("update", "is_swept"), [(scaled, True), (centered, False), (turned, False)])
def test_only_updates_whose_elements_do_not_mix_are_swept(update: Update, is_swept: bool) -> None:
    step = linear_step(update)
    cut = cut_step(step.module)
    swept = {number for sweep in cut.schedule.sweeps() for number in sweep.results}
    new = set(cut.schedule.replacements.values())
    assert any(cut.schedule.values[number].shape == (WIDTH, WIDTH) for number in swept & new) == is_swept
    outputs, state = run_whole(step.module, step.state, step.batches)
    cut_outputs, cut_state = run_cut(cut, step.state, step.batches)
    np.testing.assert_allclose(cut_outputs, outputs, rtol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(cut_state[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_truth_values_of_a_vector_may_be_small_where_its_numbers_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cgc.layers.pieces.MIN_ELEMENTS", 1)
    step = linear_step(skipped, width=32)
    cut = cut_step(step.module)
    swept = {number for sweep in cut.schedule.sweeps() for number in sweep.results}
    assert {cut.schedule.values[number].shape for number in swept} == {(32, 32)}
    _, state = run_whole(step.module, step.state, step.batches)
    _, cut_state = run_cut(cut, step.state, step.batches)
    for name, value in state.items():
        np.testing.assert_allclose(cut_state[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_tensors_of_all_shapes_have_one_function() -> None:
    cut = cut_step(linear_step(scaled, layers=3).module)
    sweeps = list(cut.schedule.sweeps())
    assert len({sweep.function for sweep in sweeps}) == 1
    shapes = {cut.schedule.values[number].shape for sweep in sweeps for number in sweep.results}
    assert shapes == {(WIDTH, WIDTH), (WIDTH,)}


def test_a_few_elements_are_computed_whole() -> None:
    width = 32
    assert 2 * width * width < MIN_ELEMENTS
    assert not list(cut_step(linear_step(scaled, width, layers=1).module).schedule.sweeps())
