"""Ops that move elements, with arbitrary shapes and attributes, against numpy indexing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.indexing import PADDING_INDEX
from cgc.cirh.types import tensor_type
from cgc.lowering.base import result_shape
from cgc.lowering.jax_table import lower
from cgc.lowering.random import op_key, threefry_2x32

from .examples import examples

few = settings(max_examples=examples(10))
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
words = st.integers(0, 2**32 - 1)


def run(build, *arrays):
    operands = [np.asarray(array) for array in arrays]
    block = Block(arg_types=[tensor_type(array.shape, array.dtype) for array in operands])
    op = build(*block.args)
    op.verify()
    (result,) = lower(op, *(jnp.asarray(array) for array in operands))
    assert result.shape == result_shape(op)
    return np.asarray(result)


def counted(shape, dtype=np.float32):
    """An array of which every element is different."""
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@few
@given(shapes, st.data())
def test_slices(shape, data):
    starts = [data.draw(st.integers(0, size)) for size in shape]
    limits = [data.draw(st.integers(start, size)) for start, size in zip(starts, shape, strict=True)]
    strides = [data.draw(st.integers(1, 3)) for _ in shape]
    x = counted(shape)
    index = tuple(slice(*bounds) for bounds in zip(starts, limits, strides, strict=True))
    np.testing.assert_array_equal(run(lambda v: ops.SliceOp(v, starts, limits, strides), x), x[index])


@few
@given(shapes, st.data())
def test_pads(shape, data):
    sizes = st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape))
    low, high = data.draw(sizes), data.draw(sizes)
    x = counted(shape)
    got = run(lambda v, p: ops.PadOp(v, p, low, high), x, np.float32(-1))
    np.testing.assert_array_equal(got, np.pad(x, list(zip(low, high, strict=True)), constant_values=-1))


@few
@given(shapes, st.randoms(use_true_random=False))
def test_transposes(shape, random):
    permutation = random.sample(range(len(shape)), len(shape))
    x = counted(shape)
    np.testing.assert_array_equal(run(lambda v: ops.TransposeOp(v, permutation), x), x.transpose(permutation))


@few
@given(shapes, st.data())
def test_broadcasts(shape, data):
    kept = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True).map(sorted))
    source = [shape[dim] if data.draw(st.booleans()) else 1 for dim in kept]
    x = counted(source)
    expanded = x.reshape([source[kept.index(dim)] if dim in kept else 1 for dim in range(len(shape))])
    got = run(lambda v: ops.BroadcastInDimOp(v, shape, kept), x)
    np.testing.assert_array_equal(got, np.broadcast_to(expanded, shape))


@few
@given(shapes, st.lists(st.integers(0, 4), max_size=3), st.data())
def test_gathers(shape, index_shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = int(np.prod(index_shape, dtype=int))
    picked = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=count, max_size=count))
    indices = np.array(picked, np.int32).reshape(index_shape)
    x = counted(shape)
    got = run(lambda v, i: ops.GatherOp(v, i, axis), x, indices)
    np.testing.assert_array_equal(got, np.take(x, indices, axis))


@few
@given(st.lists(st.integers(-3, 8), min_size=1, max_size=12), st.lists(st.integers(1, 3), max_size=2))
def test_scatters(indices, inner):
    updates = counted((len(indices), *inner)) + 1
    got = run(lambda i, u: ops.ScatterNdOp(i, u, [5, *inner]), np.array(indices, np.int32), updates)
    expected = np.zeros((5, *inner), np.float32)
    inside = [row for row, index in enumerate(indices) if 0 <= index < 5]
    np.add.at(expected, [indices[row] for row in inside], updates[inside])
    np.testing.assert_array_equal(got, expected)


@few
@given(st.lists(st.integers(-2, 6), max_size=12, unique=True), st.lists(st.integers(1, 3), max_size=2))
def test_scatters_into_rows(indices, inner):
    x, updates = counted((5, *inner)), 100 + counted((len(indices), *inner))
    numbers = np.array(indices, np.int32)
    inside = (numbers >= 0) & (numbers < 5)
    replaced, increased = x.copy(), x.copy()
    replaced[numbers[inside]] = updates[inside]
    increased[numbers[inside]] += updates[inside]
    for kind, expected in (("SET", replaced), ("ADD", increased)):
        got = run(lambda v, i, u, kind=kind: ops.ScatterOp(v, i, u, kind), x, numbers, updates)
        np.testing.assert_array_equal(got, expected)


@few
@given(st.lists(st.integers(-3, 6), max_size=30), st.sampled_from([np.int32, np.int64]))
def test_unique_values_come_in_order_of_first_appearance(elements, dtype):
    x = np.array(elements, dtype)
    block = Block(arg_types=[tensor_type(x.shape, x.dtype)])
    op = ops.UniqueOp(block.args[0])
    op.verify()
    values, idx = (np.asarray(result) for result in lower(op, jnp.asarray(x.astype(np.int32))))
    different = list(dict.fromkeys(elements))
    assert values.tolist() == different + [PADDING_INDEX] * (len(elements) - len(different))
    assert idx.tolist() == [different.index(element) for element in elements]


@few
@given(shapes, st.data())
def test_concatenations_are_undone_by_slices(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    parts = [counted((*shape[:axis], size, *shape[axis + 1 :])) for size in sizes]
    whole = run(lambda *values: ops.ConcatOp(values, axis), *parts)
    for part, end in zip(parts, np.cumsum(sizes), strict=True):
        piece = np.take(whole, range(end - part.shape[axis], end), axis)
        np.testing.assert_array_equal(piece, part)


@given(words, words, st.lists(st.tuples(words, words), min_size=2, max_size=50, unique=True))
def test_blocks_of_one_key_never_collide(left, right, counters):
    """Encryption is a bijection: other (element, step) pairs give other words."""
    key = tuple(np.array([word], np.uint32) for word in (left, right))
    lows, highs = (np.array(side, np.uint32) for side in zip(*counters, strict=True))
    blocks = set(zip(*(part.tolist() for part in threefry_2x32(key, (lows, highs))), strict=True))
    assert len(blocks) == len(counters)


signed = st.integers(-(2**63), 2**63 - 1)


@given(signed, signed, signed, signed)
def test_keys_of_ops_differ_when_seeds_do(seed, op_seed, other_seed, other_op_seed):
    same = (seed, op_seed) == (other_seed, other_op_seed)
    assert (op_key(seed, op_seed) == op_key(other_seed, other_op_seed)) is same
