"""A step in micro-batches computes the numbers of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cgc.cirh.text import parse_module
from cgc.errors import CompileError
from cgc.execution.weight_streaming import MemoryLimit, activation_notices, choose_step
from cgc.layers.micro_batches import NotSplitError
from cgc.layers.traffic import peak_bytes
from cs_toolkit.execution_options import Streaming
from tests.programs.pytorch.residual_stack import Loss, Stack, Step, sgd_step

from .cut_steps import cut_step, run_cut, run_whole

VOCABULARY, BATCH = 12, 8


def token_loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).reshape(-1, VOCABULARY), labels.reshape(-1))


def by_place(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of the third and fifth word of each sample, picked by their places in the whole batch."""
    rows = torch.as_tensor(np.arange(BATCH)[:, None] * 6 + [2, 4], dtype=torch.int32)
    places = (rows + (labels[:, :2] > 12).int()).reshape(-1)
    picked = model(ids).reshape(-1, VOCABULARY).index_select(0, places)
    return F.cross_entropy(picked, labels[:, :2].reshape(-1))


def each_loss(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).reshape(-1, VOCABULARY), labels.reshape(-1), reduction="none")


def penalized(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    penalty = sum(torch.sum(weight * weight) for weight in model.parameters())
    return token_loss(model, ids, labels) + 1e-3 * penalty


def of_some_words(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over words that count: how many, all samples decide."""
    counts = (labels > 3).float().reshape(-1)
    return (each_loss(model, ids, labels) * counts).sum() / counts.sum()


def if_all_are_words(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss where all samples hold words and any has a late one: every batch does."""
    whole = (ids < VOCABULARY).all() & (labels > 7).any()
    return torch.where(whole, token_loss(model, ids, labels), 0.0)


def worst(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The largest loss of a sample, which all samples decide."""
    return each_loss(model, ids, labels).reshape(BATCH, -1).mean(1).max()


def stack_step(loss: Loss, depth: int = 2, tied: bool = True) -> Step:
    torch.manual_seed(3)
    batches = [tuple(torch.randint(0, VOCABULARY, (2, BATCH, 6))) for _ in range(3)]
    return sgd_step(Stack(depth, tied=tied), loss, *batches)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        (token_loss, 2),
        *((loss, 8) for loss in (penalized, of_some_words, by_place, if_all_are_words)),
        pytest.param(token_loss, 8, marks=pytest.mark.soak),
        *(
            pytest.param(loss, 2, marks=pytest.mark.soak)
            for loss in (penalized, of_some_words, by_place, if_all_are_words)
        ),
    ],
)
def test_losses_and_weights_are_those_of_the_whole_batch(loss: Loss, count: int) -> None:
    step = stack_step(loss)
    expected, expected_state = run_whole(step.module, step.state, step.batches)
    cut = cut_step(step.module, micro_batches=count)
    assert cut.schedule.micro.count == count
    assert len(cut.schedule.layers) > 2
    found, state = run_cut(cut, step.state, step.batches)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-5)
    for name, value in expected_state.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class Encoder(nn.Module):
    """PyTorch's own blocks; their attention puts words before samples and joins the two."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.block(self.table(ids), src_key_padding_mask=ids == 0)
        logits: torch.Tensor = self.head(x)
        return logits


def test_attention_of_pytorch_in_micro_batches() -> None:
    torch.manual_seed(3)
    batches = [tuple(torch.randint(0, VOCABULARY, (2, BATCH, 6))) for _ in range(3)]
    step = sgd_step(Encoder(), token_loss, *batches)  # type: ignore[arg-type]
    expected, expected_state = run_whole(step.module, step.state, step.batches)
    cut = cut_step(step.module, micro_batches=4)
    found, state = run_cut(cut, step.state, step.batches)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-5)
    for name, value in expected_state.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


CLIPPED_ROWS = """
func.func @graph(
    %w: tensor<5x3xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64},
    %step: tensor<i64> {tf.resource_name = "state.global_step", tf.aliasing_output = 1 : i64},
    %ids: tensor<8xi32> {cs.input_name = "input_0"})
    -> (tensor<5x3xf32>, tensor<i64>, tensor<f32> {cs.output_name = "output_0"})
    attributes {cs.mode = "train", cs.seed = 1 : i64} {
  %one = cirh.Const dense<1> : tensor<i64>
  %next = cirh.Add %step, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %rows = cirh.Gather %w, %ids {axis = 0 : i64} : (tensor<5x3xf32>, tensor<8xi32>) -> tensor<8x3xf32>
  %squares = cirh.Mul %rows, %rows : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
  %loss = cirh.Reduce %squares {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false}
    : (tensor<8x3xf32>) -> tensor<f32>
  %norm = cirh.L2Norm %rows : (tensor<8x3xf32>) -> tensor<f32>
  %unit = cirh.Const dense<-1.0> : tensor<f32>
  %scale = cirh.Div %unit, %norm : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %all = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<8x3xf32>
  %clipped = cirh.Mul %all, %rows : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
  %sum = cirh.ScatterNd %ids, %clipped {reduce_kind = "ADD"}
    : (tensor<8xi32>, tensor<8x3xf32>) -> tensor<5x3xf32>
  %new = cirh.Add %w, %sum : (tensor<5x3xf32>, tensor<5x3xf32>) -> tensor<5x3xf32>
  func.return %new, %next, %loss : tensor<5x3xf32>, tensor<i64>, tensor<f32>
}
"""


def test_rows_of_a_table_that_are_clipped_before_they_are_summed() -> None:
    random = np.random.default_rng(5)
    state = {
        "state.model.w": random.standard_normal((5, 3), np.float32),
        "state.global_step": np.asarray(0, np.int64),
    }
    batches = [[random.integers(0, 5, BATCH).astype(np.int32)] for _ in range(3)]
    module = parse_module(CLIPPED_ROWS)
    expected, expected_state = run_whole(module, state, batches)
    found, got = run_cut(cut_step(module, micro_batches=4), state, batches)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-5)
    np.testing.assert_allclose(got["state.model.w"], expected_state["state.model.w"], rtol=1e-5, atol=1e-6)


class Normalized(nn.Module):
    """Two layers with a batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids).reshape(-1, 16))
        logits: torch.Tensor = self.head(x)
        return logits


def test_samples_that_need_each_other_are_not_separated() -> None:
    with pytest.raises(NotSplitError, match=r"residual_stack\.py.* that depends on all samples of the batch"):
        cut_step(stack_step(worst).module, micro_batches=2)
    torch.manual_seed(3)
    batch = tuple(torch.randint(0, VOCABULARY, (2, BATCH, 6)))
    module = sgd_step(Normalized(), token_loss, batch).module  # type: ignore[arg-type]
    with pytest.raises(NotSplitError, match="mean and variance over the samples of the whole batch"):
        cut_step(module, micro_batches=2)


def test_a_batch_that_cannot_be_cut_is_computed_whole_and_the_log_gives_the_reason() -> None:
    torch.manual_seed(3)
    batch = tuple(torch.randint(0, VOCABULARY, (2, BATCH, 6)))
    module = sgd_step(Normalized(), token_loss, batch).module  # type: ignore[arg-type]
    whole, limit = cut_step(module), MemoryLimit(1, "there is no room")
    choice = choose_step(module, whole, limit, Streaming())
    assert choice.step.micro is None
    (notice,) = activation_notices(choice, limit, Streaming())
    assert "cannot be cut into micro-batches: cirh.FusedBatchNorm" in notice
    with pytest.raises(CompileError, match=r"micro_batch_size is 4, .* cannot be cut: cirh.FusedBatchNorm"):
        choose_step(module, whole, limit, Streaming(micro_batch_size=4))


def test_activations_of_one_micro_batch_wait_at_a_time() -> None:
    module = stack_step(token_loss).module
    whole, half, least = (peak_bytes(cut_step(module, micro_batches=n).schedule) for n in (1, 2, 8))
    assert half < 0.6 * whole
    assert least < 0.2 * whole
