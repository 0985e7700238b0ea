"""Random numbers: published vectors of the generator, quality, and that they depend only on their seeds."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.lowering import random

SHAPE = (300, 401)
COUNT = SHAPE[0] * SHAPE[1]


@pytest.fixture
def uniform(run_op):
    return lambda step, seed=7, op_seed=1, shape=SHAPE: run_op(
        lambda s: ops.RandomUniformOp(s, shape, seed, op_seed), np.int64(step)
    )


@pytest.fixture
def normal(run_op):
    return lambda step, seed=7, op_seed=1, shape=SHAPE: run_op(
        lambda s: ops.RandomNormalOp(s, shape, seed, op_seed), np.int64(step)
    )


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers_of_threefry_2x32_20(key, counter, expected):
    """The vectors that the authors publish with Random123 (kat_vectors)."""
    words = [np.array([word], np.uint32) for word in (*key, *counter)]
    got = random.threefry_2x32((words[0], words[1]), (words[2], words[3]))
    assert (got[0].item(), got[1].item()) == expected


def test_uniform_numbers_fill_the_unit_interval_evenly(uniform):
    x = uniform(3).reshape(-1)
    assert 0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert x.mean() == pytest.approx(0.5, abs=5 * np.sqrt(1 / 12 / COUNT))
    assert x.var() == pytest.approx(1 / 12, abs=5 * np.sqrt(1 / 180 / COUNT))
    counts = np.histogram(x, 100, (0, 1))[0]
    chi2 = ((counts - COUNT / 100) ** 2 / (COUNT / 100)).sum()
    assert 99 - 5 * np.sqrt(198) < chi2 < 99 + 5 * np.sqrt(198)


def test_every_mantissa_bit_is_fair(uniform):
    bits = (uniform(5).reshape(-1) * 2**23).astype(np.int64)
    shares = [((bits >> bit) & 1).mean() for bit in range(23)]
    np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / np.sqrt(COUNT))


def test_normal_numbers_have_the_moments_and_tails_of_a_gaussian(normal):
    x = normal(3).reshape(-1).astype(np.float64)
    assert x.mean() == pytest.approx(0, abs=5 / np.sqrt(COUNT))
    assert x.var() == pytest.approx(1, abs=5 * np.sqrt(2 / COUNT))
    assert (x**3).mean() == pytest.approx(0, abs=5 * np.sqrt(15 / COUNT))
    assert (x**4).mean() == pytest.approx(3, abs=5 * np.sqrt(96 / COUNT))
    assert (np.abs(x) > 2).mean() == pytest.approx(0.0455, abs=0.004)
    assert 3.5 < np.abs(x).max() < 6.7


def correlation(a, b):
    return np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_steps_ops_seeds_and_neighbors_are_independent(kind, request):
    draw = request.getfixturevalue(kind)
    base = draw(3)
    others = [draw(4), draw(3, op_seed=2), draw(3, seed=8), draw(1, op_seed=3), draw(7, seed=3)]
    limit = 5 / np.sqrt(COUNT)
    assert all(abs(correlation(base, other)) < limit for other in others)
    flat = base.reshape(-1)
    half = (COUNT + 1) // 2  # the two words of a block land this far apart
    assert all(abs(correlation(flat[lag:], flat[:-lag])) < 2 * limit for lag in (1, 2, 401, half))


def test_seeds_are_used_with_all_their_bits(uniform):
    small = {
        uniform(0, seed, op_seed, (2,)).tobytes() for seed in (1, 2**32 + 1, -1) for op_seed in (1, 2**40)
    }
    assert len(small) == 6


def test_odd_and_empty_shapes(uniform, normal):
    for shape in [(), (1,), (3,), (0, 4), (5, 7)]:
        assert uniform(1, shape=shape).shape == shape
        assert np.isfinite(normal(1, shape=shape)).all()


def test_bits_are_the_same_in_a_loop_and_fused_into_a_consumer(uniform):
    key = tuple(jnp.uint32(word) for word in random.op_key(7, 1))

    def draw(step):
        return random.uniform(key, step.astype(jnp.uint32), SHAPE)

    alone = [uniform(step) for step in range(3)]
    _, looped = jax.jit(lambda: lax.scan(lambda c, s: (c, draw(s)), 0, jnp.arange(3)))()
    np.testing.assert_array_equal(looped, alone)
    masks = jax.jit(lambda s, x: jnp.where(draw(s) >= 0.2, x, 0))(jnp.int32(2), jnp.ones(SHAPE))
    np.testing.assert_array_equal(np.asarray(masks) == 1, alone[2] >= np.float32(0.2))
    with jax.disable_jit():
        np.testing.assert_array_equal(draw(jnp.int32(1)), alone[1])


def test_numbers_of_a_seed_never_change(uniform):
    """Runs continue from older checkpoints with these numbers."""
    got = (uniform(11, seed=1234, op_seed=56, shape=(4,)) * 2**23).astype(int)
    assert got.tolist() == [25741, 6798241, 6504479, 3072391]


@pytest.mark.parametrize("seeded", [ops.RandomUniformOp, ops.RandomNormalOp])
def test_a_hashed_key_draws_the_numbers_of_its_seeds(seeded, run_op):
    key = np.asarray(random.op_key(1234, -56), np.uint32).view(np.int32)
    expected = run_op(lambda step: seeded(step, SHAPE, 1234, -56), np.int64(7))
    got = run_op(lambda k, step: seeded(step, SHAPE, 1234, -56).with_key(k, step), key, np.int64(7))
    np.testing.assert_array_equal(got, expected)


def test_keyed_numbers_depend_on_both_words(run_op):
    def draw(*key):
        return run_op(lambda k: ops.StatelessRandomUniformOp(k, SHAPE), np.int32(key))

    base = draw(5, -9)
    assert (draw(5, -9) == base).all()
    assert base.mean() == pytest.approx(0.5, abs=0.005)
    assert all(abs(correlation(base, draw(*key))) < 5 / np.sqrt(COUNT) for key in [(5, -8), (6, -9), (-9, 5)])


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
@pytest.mark.parametrize("shape", [(6, 5), (3, 7)])
def test_some_of_the_elements_are_those_of_all(draw, shape):
    key, stream = (jnp.uint32(3), jnp.uint32(4)), jnp.uint32(5)
    whole, columns = draw(key, stream, shape), shape[1]
    for row in range(shape[0]):
        part = draw(key, stream, (1, columns), (jnp.uint32(row * columns), shape[0] * columns))
        np.testing.assert_allclose(part[0], whole[row], rtol=1e-6, atol=1e-6)


def test_keys_of_many_ops_are_those_of_each() -> None:
    seeds = [(1234, 56), (-1, 0), (0, -(2**63)), (2**63 - 1, 7)]
    assert random.op_keys(seeds) == [random.op_key(*pair) for pair in seeds]
    assert len(set(random.op_keys(seeds))) == len(seeds)
