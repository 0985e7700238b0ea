"""Executables: exported here, loaded in a process without framework, equal to the interpreted step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import lax

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.lowering.interpret import export_step, step_function
from cs_system.engine.executable import load_step
from cs_system.errors import ExecutableError
from cs_toolkit.step import device_dtype
from tests.programs.steps import MLP_TRAIN

BATCHES = 4


@pytest.fixture(scope="module")
def module():
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


@pytest.fixture(scope="module")
def exported(module):
    return export_step(module, step_interface(module))


@pytest.fixture(scope="module")
def values(module):
    """(state, stacked inputs of several batches)."""
    rng = np.random.default_rng(3)
    interface = step_interface(module)
    state = [
        np.abs(rng.standard_normal(s.shape)).astype(device_dtype(s.dtype)) / 2
        if s.dtype == "float32"
        else np.zeros(s.shape, device_dtype(s.dtype))
        for s in interface.state
    ]
    x, labels = interface.inputs
    inputs = [
        rng.standard_normal((BATCHES, *x.shape)).astype(np.float32),
        rng.integers(0, 4, (BATCHES, *labels.shape)).astype(np.int32),
    ]
    return state, inputs


def run(step, state, inputs):
    """All batches one by one; (state, losses)."""
    jitted, losses = jax.jit(step), []
    for index in range(BATCHES):
        state, (loss,) = jitted(tuple(state), tuple(array[index] for array in inputs))
        losses.append(np.asarray(loss))
    return [np.asarray(value) for value in state], losses


@pytest.fixture(scope="module")
def results(exported, values):
    """(state, losses) of the loaded step."""
    return run(load_step(exported), *values)


def test_loaded_step_equals_the_interpreted_one_bit_for_bit(module, values, results):
    expected, got = run(step_function(module), *values), results
    for left, right in zip((*expected[0], *expected[1]), (*got[0], *got[1]), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_loop_over_stacked_batches_gives_the_same_bits_however_it_is_cut(exported, values):
    step = load_step(exported)

    @jax.jit
    def loop(state, stacked, offset, count):
        def body(index, carry):
            inputs = tuple(lax.dynamic_index_in_dim(array, index, keepdims=False) for array in stacked)
            return step(carry, inputs)[0]

        return lax.fori_loop(offset, offset + count, body, state)

    state, inputs = tuple(values[0]), tuple(values[1])
    once = loop(state, inputs, 0, BATCHES)
    for offset in range(BATCHES):
        state = loop(state, inputs, offset, 1)
    for left, right in zip(once, state, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_fresh_process_loads_it_without_framework(exported, values, results, tmp_path):
    (tmp_path / "step").write_bytes(exported)
    np.savez(tmp_path / "values.npz", *values[0], **dict(zip("xy", values[1], strict=True)))
    script = """
import sys
import numpy as np, jax
from pathlib import Path
from cs_system.engine.executable import load_step
folder = Path(sys.argv[1])
arrays = np.load(folder / "values.npz")
state = tuple(arrays[name] for name in arrays.files if name.startswith("arr_"))
step = jax.jit(load_step((folder / "step").read_bytes()))
for x, y in zip(arrays["x"], arrays["y"]):
    state, outputs = step(state, (x, y))
np.savez(folder / "result.npz", *state, loss=outputs[0])
print([name for name in ("tensorflow", "torch") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    state, losses = results
    result = np.load(tmp_path / "result.npz")
    np.testing.assert_array_equal(result["loss"], losses[-1])
    for index, value in enumerate(state):
        np.testing.assert_array_equal(result[f"arr_{index}"], value)


def test_bytes_depend_only_on_the_module(module, exported):
    assert export_step(module, step_interface(module)) == exported
    assert b".py" not in exported


def test_it_is_lowered_for_cpu_and_cuda(exported):
    assert jax.export.deserialize(bytearray(exported)).platforms == ("cpu", "cuda")


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_bytes_that_are_no_executable_are_refused(exported, damage):
    data = exported[: len(exported) // 2] if damage is None else damage
    with pytest.raises(ExecutableError, match=rf"got {len(data)} bytes, expected an executable"):
        load_step(data)
