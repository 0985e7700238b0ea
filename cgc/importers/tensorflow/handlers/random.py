"""Random numbers.

TensorFlow's own generators are not reproduced: a number depends only on the seeds of the op and the step, so
that a resumed run draws the same ones. Stateless ops depend on the seed that they are given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.decompositions.special import normal_quantile
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Array, Emitter, dtype_of
from cgc.importers.tensorflow.node import Handler, NodeContext, SeedKey, Table, Value

# Turns numbers that are uniform in [0, 1) into those of another distribution.
Distribution: TypeAlias = Callable[[Emitter, SSAValue], SSAValue]

_DIFFERENT_UNIFORM = 2**23  # as many different float32 numbers are drawn from [0, 1)

# Op types whose numbers change with the global step.
STEP_DEPENDENT = frozenset(
    {"RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "Multinomial"}
)


def node_seed(name: str) -> int:
    """Return a 31-bit number that is always the same for a node name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


def _seeds(node: NodeContext) -> tuple[int, int]:
    """Return TensorFlow's graph seed and op seed; both are 0 if the program sets none.

    An operation of a function draws other numbers in every call and every iteration of a loop.
    """
    seed, op_seed = int(node.attr("seed")), int(node.attr("seed2"))
    if not seed and not op_seed:
        return node.step.seed, node_seed(node.name)
    return seed, op_seed if node.name == node.op.name else op_seed ^ node_seed(node.name)


def _step_number(node: NodeContext) -> SSAValue:
    step = node.step
    if step.mode == "train" and not step.advances_global_step:
        raise RefusedError(
            Kind.USAGE,
            "random numbers depend on the global step, which this step does not advance; "
            "pass global_step=tf.compat.v1.train.get_or_create_global_step() to minimize()",
        )
    return step.global_step or node.emit.constant(np.asarray(0, np.int64))


def _draw(node: NodeContext, op_type: type[ops.RandomUniformOp] | type[ops.RandomNormalOp]) -> SSAValue:
    shape = tuple(node.ints(0, "shape"))
    return node.emit.emit(op_type(_step_number(node), shape, *_seeds(node)))


def _uniform(node: NodeContext) -> SSAValue:
    return _draw(node, ops.RandomUniformOp)


def _stateful(distribution: Distribution) -> Handler:
    return lambda node: _as_dtype(node, distribution(node.emit, _uniform(node)))


def _standard_normal(node: NodeContext) -> SSAValue:
    return _as_dtype(node, _draw(node, ops.RandomNormalOp))


def _uniform_int(node: NodeContext) -> SSAValue:
    return _whole_numbers(node, _uniform(node), 1)


def _multinomial(node: NodeContext) -> SSAValue:
    (count,) = node.ints(1, "num_samples")
    op = ops.RandomMultinomialOp(_step_number(node), node.x(0), count, *_seeds(node))
    return node.emit.cast(node.emit.emit(op), node.out_dtype())


def _itself(e: Emitter, uniform: SSAValue) -> SSAValue:
    return uniform


def _normal(e: Emitter, uniform: SSAValue) -> SSAValue:
    # Not 0, whose quantile is infinite; half the distance between two numbers that are drawn.
    least = e.scalar(2.0**-24, dtype_of(uniform))
    return normal_quantile(e, e.binary(ops.MaxOp, uniform, least))


def _truncated_normal(e: Emitter, uniform: SSAValue) -> SSAValue:
    """Draw normal numbers within two standard deviations, as quantiles of that part of the distribution."""
    below = 0.5 * math.erfc(math.sqrt(2.0))
    part = e.add(e.scale(uniform, 1.0 - 2.0 * below), e.scalar(below, dtype_of(uniform)))
    return normal_quantile(e, part)


def _whole_numbers(node: NodeContext, uniform: SSAValue, least_at: int) -> SSAValue:
    """Return integers from the input at `least_at` to below the next one."""
    e = node.emit
    least, beyond = (int(node.static(least_at + i, what)) for i, what in enumerate(("minval", "maxval")))
    if not 0 < beyond - least <= _DIFFERENT_UNIFORM:
        raise RefusedError(
            Kind.USAGE,
            f"it draws from {least} to below {beyond}, expected 1 to {_DIFFERENT_UNIFORM} different numbers",
        )
    number = e.cast(e.unary(ops.FloorOp, e.scale(uniform, float(beyond - least))), node.out_dtype())
    return e.add(number, e.scalar(least, node.out_dtype()))


def _as_dtype(node: NodeContext, drawn: SSAValue) -> SSAValue:
    if node.out_dtype() not in FLOATS:
        raise RefusedError(Kind.TYPE, f"random numbers of type {node.out_dtype()}; draw float32 and convert")
    return node.emit.cast(drawn, node.out_dtype())


def _key_and_counter(node: NodeContext) -> tuple[Value, Value]:
    """Return the seed instead of the key and the counter that TensorFlow would mix from it."""
    key = SeedKey(_seed_words(node, 0))
    return key, key


def _seed_words(node: NodeContext, position: int) -> SSAValue:
    """Return the two seed integers as i32, without the upper halves of known ones."""
    known = node.known(position)
    if known is not None:
        return node.emit.constant(known.astype(np.int64).astype(np.int32))
    seed = node.x(position)
    if shape_of(seed) != (2,):
        raise RefusedError(Kind.USAGE, f"the seed has shape {list(shape_of(seed))}, expected [2]")
    return node.emit.cast(seed, "int32")


def _algorithm(node: NodeContext) -> Array:
    """Return the choice of TensorFlow's generator, which is not used here."""
    return np.zeros((), np.int32)


def _uniform_of(node: NodeContext) -> SSAValue:
    """Draw uniform numbers from the key of a V2 op, or the seed of an older one."""
    key = node.inputs[1]
    if "key" not in (argument.name for argument in node.op.op_def.input_arg):
        words = _seed_words(node, 1)
    elif isinstance(key, SeedKey):
        words = key.seed
    else:
        raise RefusedError(
            Kind.USAGE,
            "its key does not come from StatelessRandomGetKeyCounter; use tf.random.stateless_uniform",
        )
    return node.emit.emit(ops.StatelessRandomUniformOp(words, tuple(node.ints(0, "shape"))))


def _stateless(distribution: Distribution) -> Handler:
    return lambda node: _as_dtype(node, distribution(node.emit, _uniform_of(node)))


def _stateless_int(node: NodeContext) -> SSAValue:
    return _whole_numbers(node, _uniform_of(node), len(node.inputs) - 2)


TABLE: Table = {
    "RandomUniform": _stateful(_itself),
    "RandomStandardNormal": _standard_normal,
    "TruncatedNormal": _stateful(_truncated_normal),
    "RandomUniformInt": _uniform_int,
    "Multinomial": _multinomial,
    "StatelessRandomGetKeyCounter": _key_and_counter,
    "StatelessRandomGetAlg": _algorithm,
    **dict.fromkeys(("StatelessRandomUniform", "StatelessRandomUniformV2"), _stateless(_itself)),
    **dict.fromkeys(("StatelessRandomNormal", "StatelessRandomNormalV2"), _stateless(_normal)),
    **dict.fromkeys(
        ("StatelessTruncatedNormal", "StatelessTruncatedNormalV2"), _stateless(_truncated_normal)
    ),
    **dict.fromkeys(("StatelessRandomUniformInt", "StatelessRandomUniformIntV2"), _stateless_int),
}
