"""Loops over the tokens of a sequence inside a step, with which a model generates text.

The operations between `start_implicit_loop` and `update_implicit_loop` are recorded once, and computed once
for each token. The system runs the loop, so generating a batch of texts is one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from cgc.importers.aten import Node
from cstorch.errors import ImplicitLoopError
from cstorch.tracing.device import DeviceTensor, value_of
from cstorch.tracing.places import user_line
from cstorch.tracing.recorder import current_recording
from cstorch.tracing.recording import Recording
from cstorch.tracing.values import map_leaves

_library = torch.library.Library("cstorch", "DEF")
_library.define("start_token_loop(Tensor tokens) -> (Tensor, Tensor)")
_library.define(
    "update_token_loop(Tensor current, Tensor index, Tensor update, Tensor stop, int[] start_tokens, "
    "int max_tokens) -> Tensor"
)


def _start_shapes(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(tokens), tokens.new_empty((len(tokens), 1), dtype=torch.int32)


def _update_shapes(current: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(current)


_library.impl("start_token_loop", _start_shapes, "Meta")
_library.impl("update_token_loop", _update_shapes, "Meta")


def get_loop_iteration_slice(input_tensor: torch.Tensor, index_tensor: torch.Tensor) -> torch.Tensor:
    """Return one element of a dimension, at an index for each sample.

    Args:
        input_tensor: [batch, n, ...].
        index_tensor: Indices below n, [batch] or [batch, 1].

    Returns:
        [batch, 1, ...].
    """
    index = index_tensor.reshape(-1, *[1] * (input_tensor.dim() - 1)).to(torch.int64)
    return torch.gather(input_tensor, 1, index.expand(-1, -1, *input_tensor.shape[2:]))


def start_implicit_loop(input_tensor: torch.Tensor, loop_dim: int) -> torch.Tensor:
    """Begin a loop over the tokens of a batch of sequences.

    From here on `input_tensor` has the tokens of the current iteration: those of the batch, and those that
    were generated before. Generation of a text begins at its first start token.

    Args:
        input_tensor: Tokens, [batch, sequence] of int32 or int64, padded with the start token.
        loop_dim: Dimension of the sequence, 1.

    Returns:
        Position of the last token of each text in the iteration, [batch, 1] of int32: the model computes the
        token after it.

    Raises:
        ImplicitLoopError: The call is outside of a step for the CS system, or type or shape are invalid.
    """
    _require_step("start_implicit_loop")
    _require_tokens(input_tensor, loop_dim)
    current, index = torch.ops.cstorch.start_token_loop(input_tensor)
    input_tensor.copy_(current)
    return index


def update_implicit_loop(
    input_tensor: torch.Tensor,
    index_tensor: torch.Tensor,
    update_tensor: torch.Tensor,
    stop_sequences_tensor: torch.Tensor,
    start_token: int | Sequence[int],
    max_tokens: int | None = None,
) -> torch.Tensor:
    """End the loop: each iteration writes a token at the position after `index_tensor`.

    A text ends after one of its stop sequences, which it keeps, after `max_tokens` tokens, or when the
    sequence is full; start tokens after the end stay. A sequence without a start token does not change.

    Args:
        input_tensor: Argument of `start_implicit_loop`.
        index_tensor: Return value of `start_implicit_loop`.
        update_tensor: The next token of each text, [batch] or [batch, 1].
        stop_sequences_tensor: [batch, n, length] or [n, length], padded with the start token.
        start_token: Token, or several, that mark positions to generate.
        max_tokens: Maximum number of tokens to generate; None for the length of the sequence.

    Returns:
        The sequences with all generated tokens, [batch, sequence].

    Raises:
        ImplicitLoopError: The call is outside of a step for the CS system, or shapes do not fit.
    """
    _require_step("update_implicit_loop")
    samples, size = input_tensor.shape
    dtype = input_tensor.dtype
    stop = stop_sequences_tensor
    if stop.dim() == 2:
        stop = stop.unsqueeze(0).expand(samples, -1, -1)
    if stop.dim() != 3 or len(stop) != samples or update_tensor.numel() != samples:
        raise ImplicitLoopError(
            f"got update_tensor {list(update_tensor.shape)} and stop_sequences_tensor "
            f"{list(stop_sequences_tensor.shape)}, expected [{samples}, 1] and [{samples}, n, length]",
            user_line(),
        )
    tokens = [start_token] if isinstance(start_token, int) else list(start_token)
    most = size if max_tokens is None else max_tokens
    if not tokens or most < 1:
        raise ImplicitLoopError(
            f"got {len(tokens)} start tokens and max_tokens {max_tokens}, expected 1 or more of each",
            user_line(),
        )
    update = update_tensor.reshape(samples, 1).to(dtype)
    return torch.ops.cstorch.update_token_loop(
        input_tensor, index_tensor, update, stop.to(dtype), tokens, most
    )


def run_implicit_autoregressive_loop(
    input_tensor: torch.Tensor,
    output_tensor: torch.Tensor,
    loop_dim: int,
    start_token: int | Sequence[int],
    stop_sequences: Sequence[Sequence[int]] | int | None = None,
    max_tokens: int | None = None,
) -> torch.Tensor:
    """Run the whole step, which is already recorded, as a loop over tokens, as releases 2.1 and 2.2 do.

    Args:
        input_tensor: Tokens of the batch, [batch, sequence].
        output_tensor: The token that follows each position, [batch, sequence].
        loop_dim: As for `start_implicit_loop`.
        start_token: As for `update_implicit_loop`.
        stop_sequences: Sequences, or a token, that end a text.
        max_tokens: As for `update_implicit_loop`.

    Returns:
        The sequences with all generated tokens, [batch, sequence].

    Raises:
        ImplicitLoopError: The call is outside of a step for the CS system, or type or shape are invalid.
    """
    recording = _require_step("run_implicit_autoregressive_loop")
    index = _start_before_all(recording, input_tensor, loop_dim)
    tokens = [start_token] if isinstance(start_token, int) else list(start_token)
    if isinstance(stop_sequences, int):
        stop_sequences = [[stop_sequences]]
    sequences = list(stop_sequences or [])
    longest = max(map(len, sequences), default=0)
    stop = [[*sequence, *tokens[:1] * (longest - len(sequence))] for sequence in sequences]
    prompt = input_tensor
    final = update_implicit_loop(
        prompt,
        index,
        get_loop_iteration_slice(output_tensor, index),
        torch.tensor(stop or [tokens[:1]], dtype=prompt.dtype),
        tokens,
        max_tokens,
    )
    # The output has each token one position earlier than the sequence.
    is_generated = torch.isin(prompt[:, 1:], torch.tensor(tokens, dtype=prompt.dtype))
    generated = torch.where(is_generated, final[:, 1:].to(output_tensor.dtype), output_tensor[:, :-1])
    output_tensor.copy_(torch.cat((generated, output_tensor[:, -1:]), dim=1))
    return final


def _require_step(name: str) -> Recording:
    recording = current_recording()
    if recording is None:
        raise ImplicitLoopError(
            f"experimental.{name} is called outside of a step for the CS system, expected a call in a "
            "function with @cstorch.trace and the backend CSX; on this CPU write a loop in Python",
            user_line(),
        )
    return recording


def _require_tokens(tokens: torch.Tensor, loop_dim: int) -> None:
    if tokens.dim() != 2 or loop_dim not in (1, -1) or tokens.dtype not in (torch.int32, torch.int64):
        raise ImplicitLoopError(
            f"got {tokens.dtype} of shape {list(tokens.shape)} and loop_dim {loop_dim}, expected int32 or "
            "int64 of [batch, sequence] and loop_dim 1",
            user_line(),
        )


def _start_before_all(recording: Recording, tokens: torch.Tensor, loop_dim: int) -> torch.Tensor:
    """Start the loop before the operations recorded so far, which then use the tokens of each iteration."""
    _require_tokens(tokens, loop_dim)
    given = value_of(cast(DeviceTensor, tokens)).value
    graph = recording.graph
    if given not in graph.inputs:
        raise ImplicitLoopError("input_tensor is computed, expected a tensor of the batch", user_line())
    recorded = list(graph.nodes)
    index = start_implicit_loop(tokens, loop_dim)
    start, *later = graph.nodes[len(recorded) :]
    current = start.results[0]

    def reads_current(node: Node) -> Node:
        arguments = map_leaves(lambda x: current if x == given else x, dict(node.arguments))
        return replace(node, arguments=arguments)

    graph.nodes[:] = [start, *map(reads_current, recorded), *later]
    return index
