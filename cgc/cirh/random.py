"""Random numbers as pure functions of seeds and a counter: a resumed run draws the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from cgc.cirh.base import INT, CirhOp, IntParameter, Value, int_attr, operand_type
from cgc.cirh.types import INTEGERS, Tensor, tensor_of, tensor_type

_FLOAT32 = frozenset({"float32"})


class SeededRandomOp(CirhOp):
    """Base of ops whose numbers depend on `seed` (the program's), `op_seed` (the op's) and the step alone."""

    step = operand_def()
    result = result_def()
    seed_attr = prop_def(INT, prop_name="seed")
    op_seed_attr = prop_def(INT, prop_name="op_seed")
    seed = IntParameter("seed")
    op_seed = IntParameter("op_seed")

    def __init__(self, step: Value, shape: Sequence[int], seed: int, op_seed: int) -> None:
        result = self.infer(operand_type(step), tensor_type(shape, "float32"))
        super().__init__([step], [result], {"seed": int_attr(seed), "op_seed": int_attr(op_seed)})

    @classmethod
    def infer(cls, step: Tensor, result: Tensor) -> Tensor:
        """Result type: any shape of f32; step is a rank-0 integer."""
        cls.require_dtype("step", step, INTEGERS)
        cls.require_scalar("step", step)
        cls.require_dtype("result", result, _FLOAT32)
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.step), tensor_of(self.result)),)


@irdl_op_definition
class RandomUniformOp(SeededRandomOp):
    """Uniform numbers in [0, 1)."""

    name = "cirh.RandomUniform"


@irdl_op_definition
class RandomNormalOp(SeededRandomOp):
    """Numbers of the normal distribution with mean 0 and standard deviation 1."""

    name = "cirh.RandomNormal"


@irdl_op_definition
class StatelessRandomUniformOp(CirhOp):
    """Uniform numbers in [0, 1) of a key of two integers, which the program itself keeps and advances."""

    name = "cirh.StatelessRandomUniform"
    key = operand_def()
    result = result_def()

    def __init__(self, key: Value, shape: Sequence[int]) -> None:
        super().__init__([key], [self.infer(operand_type(key), tensor_type(shape, "float32"))])

    @classmethod
    def infer(cls, key: Tensor, result: Tensor) -> Tensor:
        """Result type: any shape of f32."""
        cls.require_same("key", key, "a key", tensor_type([2], "int32"))
        cls.require_dtype("result", result, _FLOAT32)
        return result

    def _infer_results(self) -> tuple[Tensor, ...]:
        return (self.infer(tensor_of(self.key), tensor_of(self.result)),)
