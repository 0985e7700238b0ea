"""The two ends of a loop over the positions of a sequence: text that a model generates token by token.

What depends on `StartTokenLoop` and leads to `UpdateTokenLoop` is the body of the loop: it is computed once
for each token that is generated, of the sequence so far. `cgc.lowering.token_loop` says in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import (
    INT,
    INTS,
    CirhOp,
    IntParameter,
    IntsParameter,
    Value,
    int_attr,
    ints_attr,
    operand_type,
)
from cgc.cirh.traits import STREAM, OpTraits, mixes
from cgc.cirh.types import Tensor, tensor_of, tensor_type

_TOKENS = frozenset({"int32", "int64"})


@irdl_op_definition
class StartTokenLoopOp(CirhOp):
    """The sequences of tokens in the round that is computed, and the place of each one's last token.

    By itself it is the round before the first: the tokens as they are, at place 0.
    """

    name = "cirh.StartTokenLoop"
    TRAITS: ClassVar[OpTraits] = mixes(STREAM)
    tokens = operand_def()
    current = result_def()
    index = result_def()

    def __init__(self, tokens: Value) -> None:
        super().__init__([tokens], self.infer(operand_type(tokens)))

    @classmethod
    def infer(cls, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Result types: the type of tokens, `[B, S]`, and i32 of `[B, 1]`."""
        cls.require_dtype("tokens", tokens, _TOKENS)
        shape = tokens.get_shape()
        if len(shape) != 2 or shape[1] < 1:
            cls.fail(f"tokens has type {tokens}, expected [B, S] with one token or more")
        return tokens, tensor_type([shape[0], 1], "int32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return self.infer(tensor_of(self.tokens))


@irdl_op_definition
class UpdateTokenLoopOp(CirhOp):
    """The sequences with all tokens that the loop generates.

    A sequence is generated from the first of its `start_tokens` on, until one of its `stop` sequences has
    been generated, or `max_tokens` tokens, or it is full. By itself the op is one round: `update` takes the
    place after `index`.
    """

    name = "cirh.UpdateTokenLoop"
    TRAITS: ClassVar[OpTraits] = mixes(STREAM)
    current = operand_def()
    index = operand_def()
    update = operand_def()
    stop = operand_def()
    result = result_def()
    start_tokens_attr = prop_def(INTS, prop_name="start_tokens")
    max_tokens_attr = prop_def(INT, prop_name="max_tokens")
    start_tokens = IntsParameter("start_tokens")
    max_tokens = IntParameter("max_tokens")

    def __init__(
        self,
        current: Value,
        index: Value,
        update: Value,
        stop: Value,
        start_tokens: Sequence[int],
        max_tokens: int,
    ) -> None:
        result = self.infer(
            operand_type(current),
            operand_type(index),
            operand_type(update),
            operand_type(stop),
            start_tokens,
            max_tokens,
        )
        properties = {"start_tokens": ints_attr(start_tokens), "max_tokens": int_attr(max_tokens)}
        super().__init__([current, index, update, stop], [result], properties)

    @classmethod
    def infer(
        cls,
        current: Tensor,
        index: Tensor,
        update: Tensor,
        stop: Tensor,
        start_tokens: Sequence[int],
        max_tokens: int,
    ) -> Tensor:
        """Result type: that of current, `[B, S]`; update `[B, 1]` and stop `[B, N, L]` have its elements."""
        _, place = StartTokenLoopOp.infer(current)
        cls.require_same("index", index, "a place of each sequence", place)
        samples, kind = current.get_shape()[0], current.element_type
        cls.require_same("update", update, "a token of each sequence", tensor_type([samples, 1], kind))
        shape = stop.get_shape()
        if stop.element_type != kind or len(shape) != 3 or shape[0] != samples:
            cls.fail(f"stop has type {stop}, expected [{samples}, N, L] of {kind}")
        if not start_tokens or max_tokens < 1:
            cls.fail(
                f"got {len(start_tokens)} start_tokens and max_tokens {max_tokens}, "
                "expected 1 or more of each"
            )
        return current

    @property
    def rounds(self) -> int:
        """The most rounds of the loop: a token for each place but the first."""
        return min(self.max_tokens, tensor_of(self.current).get_shape()[1] - 1)

    def _infer_results(self) -> tuple[Tensor, ...]:
        result = self.infer(
            tensor_of(self.current),
            tensor_of(self.index),
            tensor_of(self.update),
            tensor_of(self.stop),
            self.start_tokens,
            self.max_tokens,
        )
        return (result,)
