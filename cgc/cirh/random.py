"""Random numbers as pure functions of seeds and a counter: a resumed run draws the same numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)

from cgc.cirh.base import INT, CirhOp, IntParameter, Value, int_attr, operand_type
from cgc.cirh.traits import OpTraits, Samples, Work, draws, mixes
from cgc.cirh.types import FLOATS, INTEGERS, Tensor, shape_of, tensor_of, tensor_type

_FLOAT32 = frozenset({"float32"})

KEY = tensor_type([2], "int32")  # the type of a key


def _check_part(op: CirhOp, first: Sequence[SSAValue], elements: int | None) -> None:
    if len(first) != (elements is not None):
        op.fail(f"got {len(first)} first elements and elements {elements}, expected one of each or none")
    for value in first:
        op.require_same("first", tensor_of(value), "an i32 of rank 0", tensor_type([], "int32"))


class SeededRandomOp(CirhOp):
    """Base of ops whose numbers depend on `global_seed`, the program's, `op_seed`, the op's, and the step.

    With one more operand, a rank-0 i32, they are those from that element on of `elements` in all.
    """

    step = operand_def()
    first = var_operand_def()
    result = result_def()
    elements_attr = opt_prop_def(INT, prop_name="elements")
    seed_attr = prop_def(INT, prop_name="global_seed")
    op_seed_attr = prop_def(INT, prop_name="op_seed")
    seed = IntParameter("global_seed")
    op_seed = IntParameter("op_seed")

    def __init__(self, step: Value, shape: Sequence[int], seed: int, op_seed: int) -> None:
        result = self.infer(operand_type(step), tensor_type(shape, "float32"))
        super().__init__([step], [result], {"global_seed": int_attr(seed), "op_seed": int_attr(op_seed)})

    @classmethod
    def infer(cls, step: Tensor, result: Tensor) -> Tensor:
        """Result type: any shape of f32; step is a rank-0 integer."""
        cls.require_dtype("step", step, INTEGERS)
        cls.require_scalar("step", step)
        cls.require_dtype("result", result, _FLOAT32)
        return result

    @abstractmethod
    def with_key(self, key: Value, step: Value, *first: Value) -> KeyedRandomOp:
        """Return the op that draws the same numbers, its two seeds hashed to a key."""

    @property
    def elements(self) -> int | None:
        """Of how many numbers the result has some; None where it has all."""
        return None if self.elements_attr is None else self.elements_attr.value.data

    def _infer_results(self) -> tuple[Tensor, ...]:
        _check_part(self, self.first, self.elements)
        return (self.infer(tensor_of(self.step), tensor_of(self.result)),)


class KeyedRandomOp(CirhOp):
    """Base of ops whose numbers depend on a key of two integers and the step: copies of a layer share it.

    With one more operand they are some of `elements`, see `SeededRandomOp`.
    """

    key = operand_def()
    step = operand_def()
    first = var_operand_def()
    result = result_def()
    elements_attr = opt_prop_def(INT, prop_name="elements")

    def __init__(
        self,
        key: Value,
        step: Value,
        shape: Sequence[int],
        first: Sequence[Value] = (),
        elements: int | None = None,
    ) -> None:
        result = self.infer(operand_type(key), operand_type(step), tensor_type(shape, "float32"))
        properties = {} if elements is None else {"elements": int_attr(elements)}
        super().__init__([key, step, *first], [result], properties)

    @property
    def elements(self) -> int | None:
        """Of how many numbers the result has some; None where it has all."""
        return None if self.elements_attr is None else self.elements_attr.value.data

    @classmethod
    def infer(cls, key: Tensor, step: Tensor, result: Tensor) -> Tensor:
        """Result type: any shape of f32; key is a pair of i32, step a rank-0 integer."""
        cls.require_same("key", key, "a key", KEY)
        cls.require_dtype("step", step, INTEGERS)
        cls.require_scalar("step", step)
        cls.require_dtype("result", result, _FLOAT32)
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        _check_part(self, self.first, self.elements)
        return (self.infer(tensor_of(self.key), tensor_of(self.step), tensor_of(self.result)),)


@irdl_op_definition
class KeyedRandomUniformOp(KeyedRandomOp):
    """Uniform numbers in [0, 1) of a key and the step."""

    name = "cirh.KeyedRandomUniform"
    TRAITS: ClassVar[OpTraits] = draws(Work(random=1))


@irdl_op_definition
class KeyedRandomNormalOp(KeyedRandomOp):
    """Numbers of the normal distribution with mean 0 and standard deviation 1, of a key and the step."""

    name = "cirh.KeyedRandomNormal"
    TRAITS: ClassVar[OpTraits] = draws(Work(random=1, transcendental=2))


@irdl_op_definition
class RandomUniformOp(SeededRandomOp):
    """Uniform numbers in [0, 1)."""

    name = "cirh.RandomUniform"
    TRAITS: ClassVar[OpTraits] = draws(Work(random=1))

    def with_key(self, key: Value, step: Value, *first: Value) -> KeyedRandomUniformOp:
        """Return the op that draws the same numbers, its two seeds hashed to a key."""
        return KeyedRandomUniformOp(key, step, shape_of(self.result), first, self.elements)


@irdl_op_definition
class RandomNormalOp(SeededRandomOp):
    """Numbers of the normal distribution with mean 0 and standard deviation 1."""

    name = "cirh.RandomNormal"
    TRAITS: ClassVar[OpTraits] = draws(Work(random=1, transcendental=2))

    def with_key(self, key: Value, step: Value, *first: Value) -> KeyedRandomNormalOp:
        """Return the op that draws the same numbers, its two seeds hashed to a key."""
        return KeyedRandomNormalOp(key, step, shape_of(self.result), first, self.elements)


@irdl_op_definition
class RandomMultinomialOp(CirhOp):
    """Draws classes with the probabilities `softmax(logits)`: `[B, C]` gives `[B, num_samples]` of i32."""

    name = "cirh.RandomMultinomial"
    TRAITS: ClassVar[OpTraits] = mixes(Work(random=1), samples=Samples.DRAWN)
    step = operand_def()
    logits = operand_def()
    result = result_def()
    num_samples_attr = prop_def(INT, prop_name="num_samples")
    seed_attr = prop_def(INT, prop_name="global_seed")
    op_seed_attr = prop_def(INT, prop_name="op_seed")
    num_samples = IntParameter("num_samples")
    seed = IntParameter("global_seed")
    op_seed = IntParameter("op_seed")

    def __init__(self, step: Value, logits: Value, num_samples: int, seed: int, op_seed: int) -> None:
        result = self.infer(operand_type(step), operand_type(logits), num_samples)
        properties = {"num_samples": num_samples, "global_seed": seed, "op_seed": op_seed}
        super().__init__(
            [step, logits], [result], {name: int_attr(value) for name, value in properties.items()}
        )

    @classmethod
    def infer(cls, step: Tensor, logits: Tensor, num_samples: int) -> Tensor:
        """Result type: `num_samples` class numbers for each row; step is a rank-0 integer."""
        cls.require_dtype("step", step, INTEGERS)
        cls.require_scalar("step", step)
        cls.require_dtype("logits", logits, FLOATS)
        shape = logits.get_shape()
        if len(shape) != 2 or shape[1] < 1 or num_samples < 0:
            cls.fail(
                f"logits has type {logits} and num_samples is {num_samples}, "
                "expected [B, C] of one class or more, and 0 or more"
            )
        return tensor_type([shape[0], num_samples], "int32")

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.step), tensor_of(self.logits), self.num_samples),)


@irdl_op_definition
class StatelessRandomUniformOp(CirhOp):
    """Uniform numbers in [0, 1) of a key of two integers, which the program itself keeps and advances."""

    name = "cirh.StatelessRandomUniform"
    TRAITS: ClassVar[OpTraits] = draws(Work(random=1))
    key = operand_def()
    result = result_def()

    def __init__(self, key: Value, shape: Sequence[int]) -> None:
        super().__init__([key], [self.infer(operand_type(key), tensor_type(shape, "float32"))])

    @classmethod
    def infer(cls, key: Tensor, result: Tensor) -> Tensor:
        """Result type: any shape of f32."""
        cls.require_same("key", key, "a key", KEY)
        cls.require_dtype("result", result, _FLOAT32)
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.key), tensor_of(self.result)),)
