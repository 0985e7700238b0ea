"""Run the body of a loop over tokens, once for each generated token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh.op_table import OpTable
from cgc.cirh.ops import StartTokenLoopOp, UpdateTokenLoopOp
from cgc.errors import LoweringError
from cgc.lowering.base import Table, describe


@dataclass(frozen=True)
class TokenLoop:
    """The loop over tokens of a step; ops are positions in an `OpTable`.

    Attributes:
        start: the `StartTokenLoop`.
        update: the `UpdateTokenLoop`.
        before: ops that the loop does not change, ascending.
        body: ops between the two ends, ascending.
        after: all others, ascending.
        reads_body: ops after the loop, or the step, read results of the last round.
    """

    start: int
    update: int
    before: tuple[int, ...]
    body: tuple[int, ...]
    after: tuple[int, ...]
    reads_body: bool


class Round(NamedTuple):
    """Sequences before a round of the loop.

    Attributes:
        tokens: [B, S].
        last: [B], the position of the last token.
        active: [B], whether a token follows.
        previous_tokens: [B, S], the tokens before the previous round.
        previous_last: [B], the position of the last token before the previous round.
    """

    tokens: jax.Array
    last: jax.Array
    active: jax.Array
    previous_tokens: jax.Array
    previous_last: jax.Array


def find_token_loop(step: OpTable) -> TokenLoop | None:
    """Find the loop over tokens of a step and divide its ops; return None if there is no loop.

    Raises:
        LoweringError: there are several.
    """
    ends = [
        (int(step.producer[step.operands(position)[0]]), position)
        for position, op in enumerate(step.ops)
        if isinstance(op, UpdateTokenLoopOp)
    ]
    loops = [pair for pair in ends if pair[0] >= 0 and isinstance(step.ops[pair[0]], StartTokenLoopOp)]
    if not loops:
        return None
    if len(loops) > 1:
        raise LoweringError(
            f"{describe(step.ops[loops[1][1]])}: got {len(loops)} loops over tokens in a step, expected one"
        )
    ((start, update),) = loops
    depends = np.zeros(len(step.types), bool)
    depends[step.results(start)] = True
    changed = [False] * len(step.ops)
    for position in range(start + 1, len(step.ops)):
        changed[position] = bool(depends[step.operands(position)].any())
        depends[step.results(position)] = changed[position]
    needed = {int(step.producer[value]) for value in step.operands(update)}
    for position in range(update - 1, start, -1):
        if position in needed:
            needed.update(int(step.producer[value]) for value in step.operands(position))
    body = tuple(
        position for position in range(start + 1, update) if changed[position] and position in needed
    )
    own = {start, update, *body}
    rest = [position for position in range(len(step.ops)) if position not in own]
    before = tuple(position for position in rest if not changed[position])
    after = tuple(position for position in rest if changed[position])
    produced = {value for position in body for value in step.results(position)}
    read = {value for position in after for value in step.operands(position)} | set(step.returned)
    return TokenLoop(start, update, before, body, after, bool(produced & read))


def run_token_loop(
    op: UpdateTokenLoopOp, tokens: jax.Array, stop: jax.Array, body: Callable[[Round], jax.Array]
) -> Round:
    """Generate tokens until all sequences end; each begins before the first of its start tokens.

    Args:
        op: The end of the loop.
        tokens: [B, S].
        stop: [B, N, L], sequences that end a text, filled up with a start token.
        body: Computes the next token of each sequence, [B, 1].
    """
    _, size = tokens.shape
    starts = _is_start(op, tokens)
    # A token can only be generated after another one, so a text that begins with a start token keeps it.
    first = jnp.maximum(jnp.argmax(starts, axis=1), 1).astype(jnp.int32)
    active = starts.any(axis=1) & (first < size)
    begin = Round(tokens, first - 1, active, tokens, first - 1)
    ends = _Ends(op, first, stop)

    def advance(now: Round) -> Round:
        tokens = write_next(now.tokens, now.last, body(now), now.active)
        position = now.last + 1
        is_active = now.active & ~ends.ends_at(tokens, position)
        return Round(tokens, jnp.where(is_active, position, now.last), is_active, now.tokens, now.last)

    return lax.while_loop(lambda now: now.active.any(), advance, begin)


def write_next(
    tokens: jax.Array, last: jax.Array, update: jax.Array, active: jax.Array | None = None
) -> jax.Array:
    """Write tokens of `update` at the positions after `last`, in the sequences that are active."""
    is_next = lax.broadcasted_iota(jnp.int32, tokens.shape, 1) == last[:, None] + 1
    if active is not None:
        is_next &= active[:, None]
    return jnp.where(is_next, update.reshape(-1, 1).astype(tokens.dtype), tokens)


class _Ends:
    """Detects the ends of texts."""

    def __init__(self, op: UpdateTokenLoopOp, first: jax.Array, stop: jax.Array) -> None:
        self._max_tokens = op.max_tokens
        self._first = first
        self._stop, self._counts = stop, ~_is_start(op, stop)
        self._length = self._counts.sum(axis=2, dtype=jnp.int32)

    def ends_at(self, tokens: jax.Array, position: jax.Array) -> jax.Array:
        """Return [B], true for texts that end with the token at a position, [B]."""
        size, length = tokens.shape[1], self._stop.shape[2]
        is_full = (position + 1 >= size) | (position + 1 - self._first >= self._max_tokens)
        offsets = lax.iota(jnp.int32, length)
        positions = (position[:, None] - self._length + 1)[:, :, None] + offsets
        rows = lax.iota(jnp.int32, len(tokens))[:, None, None]
        equal = tokens[rows, jnp.clip(positions, 0, size - 1)] == self._stop
        is_generated = positions >= self._first[:, None, None]
        stopped = ((equal & is_generated) | ~self._counts).all(axis=2) & (self._length > 0)
        return is_full | stopped.any(axis=1)


def _is_start(op: UpdateTokenLoopOp, tokens: jax.Array) -> jax.Array:
    return jnp.isin(tokens, jnp.array(op.start_tokens, tokens.dtype))


def start_token_loop(_op: StartTokenLoopOp, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the tokens, and their positions before the first round."""
    return tokens, jnp.zeros((len(tokens), 1), jnp.int32)


def update_token_loop(
    _op: UpdateTokenLoopOp, current: jax.Array, index: jax.Array, update: jax.Array, _stop: jax.Array
) -> jax.Array:
    """Run one round."""
    return write_next(current, index[:, 0], update)


LOWERINGS: Table = {StartTokenLoopOp: start_token_loop, UpdateTokenLoopOp: update_token_loop}
