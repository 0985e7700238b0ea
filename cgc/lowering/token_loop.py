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
    """The loop over tokens of a step; ops are places in a `Scan`.

    Attributes:
        start: the `StartTokenLoop`.
        update: the `UpdateTokenLoop`.
        before: ops that the loop does not change, ascending.
        body: ops between the two ends, ascending.
        after: all others, ascending.
        reads_body: some of those read results of the last round.
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
        last: [B], the place of the last token.
        active: [B], whether a token follows.
        before: the tokens before the last round.
        place: [B], that of the last token in the last round.
    """

    tokens: jax.Array
    last: jax.Array
    active: jax.Array
    before: jax.Array
    place: jax.Array


def find_token_loop(step: OpTable) -> TokenLoop | None:
    """Find the loop over tokens of a step and divide its ops; None without one.

    Raises:
        LoweringError: there are several.
    """
    ends = [
        (int(step.producer[step.operands(place)[0]]), place)
        for place, op in enumerate(step.ops)
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
    for place in range(start + 1, len(step.ops)):
        changed[place] = bool(depends[step.operands(place)].any())
        depends[step.results(place)] = changed[place]
    needed = {int(step.producer[value]) for value in step.operands(update)}
    for place in range(update - 1, start, -1):
        if place in needed:
            needed.update(int(step.producer[value]) for value in step.operands(place))
    body = tuple(place for place in range(start + 1, update) if changed[place] and place in needed)
    own = {start, update, *body}
    rest = [place for place in range(len(step.ops)) if place not in own]
    before = tuple(place for place in rest if not changed[place])
    after = tuple(place for place in rest if changed[place])
    made = {value for place in body for value in step.results(place)}
    read = {value for place in after for value in step.operands(place)} | set(step.returned)
    return TokenLoop(start, update, before, body, after, bool(made & read))


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
    # A text needs a token to follow: one that begins with a start token keeps that.
    first = jnp.maximum(jnp.argmax(starts, axis=1), 1).astype(jnp.int32)
    active = starts.any(axis=1) & (first < size)
    begin = Round(tokens, first - 1, active, tokens, first - 1)
    ends = _Ends(op, first, stop)

    def advance(now: Round) -> Round:
        made = write_next(now.tokens, now.last, body(now), now.active)
        place = now.last + 1
        goes_on = now.active & ~ends.at_end(made, place)
        return Round(made, jnp.where(goes_on, place, now.last), goes_on, now.tokens, now.last)

    return lax.while_loop(lambda now: now.active.any(), advance, begin)


def write_next(
    tokens: jax.Array, last: jax.Array, update: jax.Array, active: jax.Array | None = None
) -> jax.Array:
    """Write tokens of `update` at the places after `last`, in the sequences that are active."""
    here = lax.broadcasted_iota(jnp.int32, tokens.shape, 1) == last[:, None] + 1
    if active is not None:
        here &= active[:, None]
    return jnp.where(here, update.reshape(-1, 1).astype(tokens.dtype), tokens)


class _Ends:
    """Detects ends of texts."""

    def __init__(self, op: UpdateTokenLoopOp, first: jax.Array, stop: jax.Array) -> None:
        self._most = op.max_tokens
        self._first = first
        self._stop, self._counts = stop, ~_is_start(op, stop)
        self._length = self._counts.sum(axis=2, dtype=jnp.int32)

    def at_end(self, tokens: jax.Array, place: jax.Array) -> jax.Array:
        """Return [B], true if a text ends with the token at a place, [B]."""
        size, length = tokens.shape[1], self._stop.shape[2]
        full = (place + 1 >= size) | (place + 1 - self._first >= self._most)
        offsets = lax.iota(jnp.int32, length)
        places = (place[:, None] - self._length + 1)[:, :, None] + offsets
        rows = lax.iota(jnp.int32, len(tokens))[:, None, None]
        equal = tokens[rows, jnp.clip(places, 0, size - 1)] == self._stop
        is_generated = places >= self._first[:, None, None]
        stopped = ((equal & is_generated) | ~self._counts).all(axis=2) & (self._length > 0)
        return full | stopped.any(axis=1)


def _is_start(op: UpdateTokenLoopOp, tokens: jax.Array) -> jax.Array:
    return jnp.isin(tokens, jnp.array(op.start_tokens, tokens.dtype))


def start_token_loop(_op: StartTokenLoopOp, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the tokens, and the place before the first round."""
    return tokens, jnp.zeros((len(tokens), 1), jnp.int32)


def update_token_loop(
    _op: UpdateTokenLoopOp, current: jax.Array, index: jax.Array, update: jax.Array, _stop: jax.Array
) -> jax.Array:
    """Run one round."""
    return write_next(current, index[:, 0], update)


LOWERINGS: Table = {StartTokenLoopOp: start_token_loop, UpdateTokenLoopOp: update_token_loop}
