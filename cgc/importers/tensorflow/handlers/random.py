"""Random numbers.

TensorFlow's own generators are not reproduced: here a number depends on the seeds of the op and the step
alone, so that a resumed run draws the same ones. Stateless ops depend on the seed that they are given.
"""

from __future__ import annotations

import hashlib

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.tensorflow.emit import Array
from cgc.importers.tensorflow.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import Handler, NodeContext, SeedKey, Table, Value

STEP_DEPENDENT = frozenset({"RandomUniform", "RandomStandardNormal"})
"""Op types whose numbers change with the global step."""


def node_seed(name: str) -> int:
    """A 31-bit number that is always the same for a node name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


def _seeds(node: NodeContext) -> tuple[int, int]:
    """TensorFlow's graph seed and op seed; both 0 mean that the program left them open."""
    seed, op_seed = int(node.attr("seed")), int(node.attr("seed2"))
    return (seed, op_seed) if seed or op_seed else (node.step.seed, node_seed(node.op.name))


def _step_number(node: NodeContext) -> SSAValue:
    step = node.step
    if step.mode == "train" and not step.advances_global_step:
        raise RefusedError(
            Kind.USAGE,
            "random numbers differ from step to step by the global step, which this step does not advance; "
            "pass global_step=tf.compat.v1.train.get_or_create_global_step() to minimize()",
        )
    return step.global_step or node.emit.constant(np.asarray(0, np.int64))


def _stateful(op_type: type[ops.RandomUniformOp] | type[ops.RandomNormalOp]) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        shape = tuple(node.ints(0, "shape"))
        return _as_dtype(node, node.emit.emit(op_type(_step_number(node), shape, *_seeds(node))))

    return handler


def _as_dtype(node: NodeContext, drawn: SSAValue) -> SSAValue:
    if node.out_dtype() not in FLOATS:
        raise RefusedError(Kind.TYPE, f"random numbers of type {node.out_dtype()}; draw float32 and convert")
    return node.emit.cast(drawn, node.out_dtype())


def _key_and_counter(node: NodeContext) -> tuple[Value, Value]:
    """The seed itself stands for the key and the counter that TensorFlow would mix from it."""
    key = SeedKey(_seed_words(node, 0))
    return key, key


def _seed_words(node: NodeContext, position: int) -> SSAValue:
    """The two seed integers as i32; known ones lose their upper halves, as the others do on the device."""
    known = node.known(position)
    if known is not None:
        return node.emit.constant(known.astype(np.int64).astype(np.int32))
    seed = node.x(position)
    if shape_of(seed) != (2,):
        raise RefusedError(Kind.USAGE, f"the seed has shape {list(shape_of(seed))}, expected [2]")
    return node.emit.cast(seed, "int32")


def _algorithm(node: NodeContext) -> Array:
    """The choice of TensorFlow's generator, which is not used here."""
    return np.zeros((), np.int32)


def _stateless_v2(node: NodeContext) -> SSAValue:
    key = node.inputs[1]
    if not isinstance(key, SeedKey):
        raise RefusedError(
            Kind.USAGE,
            "its key does not come from StatelessRandomGetKeyCounter; use tf.random.stateless_uniform",
        )
    return _uniform(node, key.seed)


def _stateless_v1(node: NodeContext) -> SSAValue:
    return _uniform(node, _seed_words(node, 1))


def _uniform(node: NodeContext, key: SSAValue) -> SSAValue:
    shape = tuple(node.ints(0, "shape"))
    return _as_dtype(node, node.emit.emit(ops.StatelessRandomUniformOp(key, shape)))


TABLE: Table = {
    "RandomUniform": _stateful(ops.RandomUniformOp),
    "RandomStandardNormal": _stateful(ops.RandomNormalOp),
    "StatelessRandomGetKeyCounter": _key_and_counter,
    "StatelessRandomGetAlg": _algorithm,
    "StatelessRandomUniformV2": _stateless_v2,
    "StatelessRandomUniform": _stateless_v1,
}
