"""Text that a model generates in one step, compared with a loop in Python around the same model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

import cstorch
from cstorch import experimental, predict
from cstorch.errors import ImplicitLoopError
from tests.systems import RunningSystem

VOCABULARY, WIDTH, SIZE, START = 23, 16, 12, 22
PROMPTS = [
    [3, 1, 4],
    [1, 5, 9, 2, 6],
    [5],
    [3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3],
]


@pytest.fixture(autouse=True)
def configured(fresh_process: None, system: RunningSystem, tmp_path: Path) -> None:
    cstorch.configure(model_dir=tmp_path, mgmt_address=system.address, seed=1)


class Decoder(nn.Module):
    """A causal layer of attention; the token at each place follows from those up to it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SIZE, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCABULARY - 1)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Generator(Decoder):
    """Generates as releases 2.3 and later do; also returns the logits of the last round."""

    def __init__(self, max_tokens: int | None = None) -> None:
        super().__init__()
        self.max_tokens = max_tokens

    def forward(self, tokens: torch.Tensor, stop: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index = experimental.start_implicit_loop(tokens, loop_dim=1)
        last = experimental.get_loop_iteration_slice(self.hidden(tokens), index)
        logits = self.out(last)
        update = torch.argmax(logits, dim=-1).int()
        texts = experimental.update_implicit_loop(
            input_tensor=tokens,
            index_tensor=index,
            update_tensor=update,
            stop_sequences_tensor=stop,
            start_token=START,
            max_tokens=self.max_tokens,
        )
        return texts, logits


class EarlierGenerator(Decoder):
    """Generates as releases 2.1 and 2.2 do: the call follows the model."""

    def __init__(self, stop: list[list[int]], max_tokens: int | None) -> None:
        super().__init__()
        self.stop, self.max_tokens = stop, max_tokens

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        predictions = torch.argmax(self.out(self.hidden(tokens)), dim=-1).int()
        experimental.run_implicit_autoregressive_loop(
            input_tensor=tokens,
            output_tensor=predictions,
            loop_dim=1,
            start_token=START,
            stop_sequences=self.stop,
            max_tokens=self.max_tokens,
        )
        return predictions


def _batch(prompts: Sequence[Sequence[int]] = PROMPTS) -> torch.Tensor:
    return torch.tensor([[*prompt, *[START] * (SIZE - len(prompt))] for prompt in prompts], dtype=torch.int32)


def _stop(sequences: list[list[int]], samples: int = len(PROMPTS)) -> torch.Tensor:
    longest = max(map(len, sequences))
    rows = [[*sequence, *[START] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor([rows] * samples, dtype=torch.int32)


@torch.no_grad()
def _expected(model: Decoder, stop: list[list[int]], max_tokens: int | None) -> list[list[int]]:
    texts = []
    for prompt in PROMPTS:
        text, begin = list(prompt), len(prompt)
        while len(text) < SIZE and (max_tokens is None or len(text) - begin < max_tokens):
            text.append(int(model.out(model.hidden(torch.tensor([text])))[0, -1].argmax()))
            if any(len(text) - begin >= len(s) and text[-len(s) :] == s for s in stop):
                break
        texts.append([*text, *[START] * (SIZE - len(text))])
    return texts


def _without_end() -> list[list[int]]:
    return _expected(Decoder(), [[START]], None)


def test_texts_of_different_prompts_equal_those_of_a_loop_in_python() -> None:
    texts, _ = predict(Generator(), (_batch(), _stop([[START]])))
    assert texts.tolist() == _without_end()
    assert texts.dtype == torch.int32


def test_stop_sequences_and_a_maximum_end_each_text() -> None:
    long = _without_end()
    stop = [long[0][4:6], [long[1][7]]]  # two tokens in the first text, one in the second
    for most in (None, 4, 1):
        model = Generator(most)
        texts, _ = predict(copy.deepcopy(model), (_batch(), _stop(stop)))
        assert texts.tolist() == _expected(model, stop, most)
    ends = [row.index(START) for row in _expected(Decoder(), stop, None)[:2]]
    assert ends == [6, 8]


def test_a_stop_sequence_in_the_prompt_ends_nothing() -> None:
    stop = [PROMPTS[0][-1:]]
    texts, _ = predict(Generator(), (_batch(), _stop(stop)))
    assert texts.tolist() == _expected(Decoder(), stop, None)
    assert texts[0, 3] != START


def test_what_the_step_computes_is_that_of_the_last_round() -> None:
    model, tokens = Generator(), _batch(PROMPTS[:1])
    texts, logits = predict(copy.deepcopy(model), (tokens, _stop([[START]], 1)))
    with torch.no_grad():
        last = model.out(model.hidden(texts[:, :-1]))[:, -1:]
    torch.testing.assert_close(logits, last, rtol=1e-5, atol=1e-6)


def test_stop_sequences_of_a_batch_may_differ() -> None:
    long = _without_end()
    first = [[*row, 0][len(prompt)] for row, prompt in zip(long, PROMPTS, strict=True)]
    texts, _ = predict(Generator(), (_batch(), torch.tensor(first).reshape(-1, 1, 1)))
    for text, prompt, row in zip(texts.tolist(), PROMPTS, long, strict=True):
        generated = row[: len(prompt) + 1]
        assert text == generated[:SIZE] + [START] * (SIZE - len(generated))


def test_the_loop_of_releases_before_2_3() -> None:
    long = _without_end()
    stop = [long[0][4:6]]
    found = predict(EarlierGenerator(stop, 6), _batch())
    expected = _expected(Decoder(), stop, 6)
    for row, text, prompt in zip(found.tolist(), expected, PROMPTS, strict=True):
        assert row[len(prompt) - 1 : SIZE - 1] == text[len(prompt) :]


class Misused(Decoder):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.kind == "floats":
            return experimental.start_implicit_loop(tokens.float(), 1)
        if self.kind == "dimension":
            return experimental.start_implicit_loop(tokens, 0)
        index = experimental.start_implicit_loop(tokens, 1)
        update = self.hidden(tokens).argmax(-1) if self.kind == "update" else index
        stop = tokens if self.kind == "stop" else tokens[:, None]
        most = 0 if self.kind == "none" else 3
        return experimental.update_implicit_loop(tokens, index, update, stop, START, most)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("floats", r"got torch.float32 of shape \[5, 12\] and loop_dim 1, expected int32 or int64"),
        ("dimension", r"loop_dim 0, expected .* loop_dim 1"),
        ("update", r"got update_tensor \[5, 12\] .*, expected \[5, 1\]"),
        ("none", "max_tokens 0, expected 1 or more"),
    ],
)
def test_calls_that_cannot_be(kind: str, message: str) -> None:
    with pytest.raises(ImplicitLoopError, match=message):
        predict(Misused(kind), _batch())


def test_a_loop_outside_of_a_step_is_refused() -> None:
    with pytest.raises(ImplicitLoopError, match="called outside of a step for the CS system"):
        experimental.start_implicit_loop(_batch(), loop_dim=1)
