"""The pipelined engine, the choice of an engine, and the size of the input ring."""

import dataclasses

import numpy as np
import pytest

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.lowering.interpret import export_step
from cs_system.engine.base import RingSize, ring_size
from cs_system.engine.pipelined import PipelinedEngine
from cs_system.errors import (
    ArtifactRefusedError,
    CsSystemError,
    DeviceMemoryError,
    ProgramError,
    StateMismatchError,
    WrongOrderError,
)
from cs_system.memoryx.config import MemoryxConfig
from cs_system.server.engine_child import make_engine
from cs_system.server.engines import check_step
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec

K = 4


@pytest.fixture(scope="module")
def compiled(program):
    engine = PipelinedEngine(program.executable, program.interface, K)
    engine.program()
    return engine


@pytest.fixture
def engine(compiled, program):
    compiled.put_state(program.state())
    return compiled


def reference(program, chunk, steps):
    """The same steps in numpy: losses and the weights after each."""
    w, losses = np.zeros((4, 1)), []
    for x, y in list(zip(*chunk, strict=True))[:steps]:
        d = x @ w - y[:, None]
        losses.append(np.mean(d * d))
        w = w - 0.01 * x.T @ d
    return np.array(losses), w


def test_steps_compute_the_values_of_the_program(engine, program):
    chunk = program.chunk(K)
    outputs = engine.run(chunk, 0, K)
    losses, w = reference(program, chunk, K)
    np.testing.assert_allclose(outputs["output_loss"], losses, rtol=1e-5)
    np.testing.assert_array_equal(outputs["output_labels"], chunk[1])
    np.testing.assert_array_equal(outputs["output_step"], np.arange(K))
    state = engine.fetch_state()
    np.testing.assert_allclose(state["state.model.w"], w, rtol=1e-5)
    assert state["state.global_step"] == K


@pytest.mark.parametrize("grouping", [(1, 1, 1, 1), (3, 1), (1, 3), (2, 2)])
def test_grouping_of_steps_does_not_change_a_bit(engine, program, grouping):
    chunk = program.chunk(K)
    together = engine.run(chunk, 0, K)
    expected = engine.fetch_state()
    engine.put_state(program.state())
    offset, losses = 0, []
    for count in grouping:
        losses.append(engine.run(chunk, offset, count)["output_loss"])
        offset += count
    np.testing.assert_array_equal(np.concatenate(losses), together["output_loss"])
    for name, value in engine.fetch_state().items():
        np.testing.assert_array_equal(value, expected[name])


def test_calls_can_be_queued_before_the_first_has_ended(engine, program):
    chunk = program.chunk(K)
    first, second = engine.dispatch(chunk, 0, 1), engine.dispatch(chunk, 1, 3)
    losses = np.concatenate([first.wait()["output_loss"], second.wait()["output_loss"]])
    np.testing.assert_allclose(losses, reference(program, chunk, K)[0], rtol=1e-5)


def test_arrays_keep_the_dtypes_of_the_interface(engine, program):
    outputs = engine.run(program.chunk(K), 0, 2)
    assert {name: (a.dtype.name, a.shape) for name, a in outputs.items()} == {
        "output_loss": ("float32", (2,)),
        "output_labels": ("int32", (2, 8)),
        "output_step": ("int64", (2,)),
    }
    state = engine.fetch_state()
    assert {name: (a.dtype.name, a.shape) for name, a in state.items()} == {
        spec.name: (spec.dtype, spec.shape) for spec in program.interface.state
    }


def test_fetched_and_put_arrays_are_copies(engine, program):
    mine = program.state()
    engine.put_state(mine)
    mine["state.model.w"][:] = 99
    before = engine.fetch_state()
    engine.run(program.chunk(K), 0, K)
    np.testing.assert_array_equal(before["state.model.w"], 0)
    before["state.model.w"][:] = 77
    assert not np.any(engine.fetch_state()["state.model.w"] == 77)


def test_a_snapshot_stays_while_further_steps_run(engine, program):
    chunk = program.chunk(K)
    engine.run(chunk, 0, 1)
    expected = engine.fetch_state()
    kept = engine.snapshot()
    engine.run(chunk, 1, 3)
    found = kept.read(["state.model.w"]) | kept.read()
    assert set(found) == set(expected)
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
    kept.end()
    assert not kept.read()


def test_fetch_and_put_give_the_same_continuation(engine, program):
    chunk = program.chunk(K)
    engine.run(chunk, 0, 2)
    middle = engine.fetch_state()
    engine.run(chunk, 2, 2)
    expected = engine.fetch_state()
    engine.put_state(middle)
    engine.run(chunk, 2, 2)
    for name, value in engine.fetch_state().items():
        np.testing.assert_array_equal(value, expected[name])


def test_some_of_the_state(engine):
    assert list(engine.fetch_state(["state.global_step"])) == ["state.global_step"]
    with pytest.raises(StateMismatchError, match=r"'state\.model\.nothing' is not state of the program"):
        engine.fetch_state(["state.model.nothing"])


def test_all_differences_of_a_state_are_reported_together(engine, program):
    state = program.state()
    state["state.model.w"] = np.zeros((5, 1), np.float32)
    state["state.global_step"] = state["state.global_step"].astype(np.int32)
    state["state.model.other"] = state.pop("state.optimizer.lr")
    with pytest.raises(StateMismatchError) as refused:
        engine.put_state(state)
    assert str(refused.value).splitlines()[1:-1] == [
        "  'state.model.other' is not state of the program",
        "  'state.model.w' is float32[5, 1], expected float32[4, 1]",
        "  'state.global_step' is int32[], expected int64[]",
    ]


def test_a_state_comes_in_parts(engine, program):
    state = program.state(step=7)
    first, *rest = state
    engine.put_state({first: state[first]})
    assert sorted(engine.missing_state) == sorted(rest)
    with pytest.raises(WrongOrderError, match="put_state comes before the first step"):
        engine.run(program.chunk(K), 0, 1)
    engine.put_state({name: state[name] for name in rest})
    assert not engine.missing_state
    assert engine.fetch_state(["state.global_step"])["state.global_step"] == 7


def test_a_count_beyond_32_bits_is_refused(engine, program):
    with pytest.raises(StateMismatchError, match=r"'state\.global_step' has values from 4294967296"):
        engine.put_state(program.state(step=1 << 32))


def test_running_needs_a_state(program):
    engine = PipelinedEngine(program.executable, program.interface, K)
    with pytest.raises(WrongOrderError, match="put_state comes before the first step"):
        engine.run(program.chunk(K), 0, 1)
    with pytest.raises(WrongOrderError, match="none was put"):
        engine.fetch_state()


@pytest.mark.parametrize(("offset", "count"), [(0, 0), (0, K + 1), (K - 1, 2), (-1, 1)])
def test_batches_outside_the_chunk_are_refused(engine, program, offset, count):
    with pytest.raises(ValueError, match=f"of a chunk of {K}"):
        engine.run(program.chunk(K), offset, count)


def test_a_step_beyond_the_memory_is_reported_as_such():
    # More than the address space of a process, so that no setting of the machine lets it pass.
    module = parse_module(
        f"""func.func @graph(%s: tensor<f32> {{tf.resource_name = "state.model.s"}},
                             %x: tensor<2xf32> {{cs.input_name = "input_0"}})
                -> (tensor<{1 << 46}xf32> {{cs.output_name = "output_big"}})
                attributes {{cs.mode = "infer", cs.seed = 1 : i64}} {{
              %b = cirh.BroadcastInDim %s {{broadcast_dimensions = array<i64>}}
                  : (tensor<f32>) -> tensor<{1 << 46}xf32>
              func.return %b : tensor<{1 << 46}xf32>
            }}"""
    )
    engine = PipelinedEngine(export_step(module, step_interface(module)), step_interface(module), 1)
    engine.put_state({"state.model.s": np.full((), 1, np.float32)})
    with pytest.raises(DeviceMemoryError, match="out of memory while running the steps"):
        engine.run([np.zeros((1, 2), np.float32)], 0, 1)
    with pytest.raises(WrongOrderError, match="a failed step lost it"):
        engine.fetch_state()


def test_bytes_that_are_no_executable(program):
    with pytest.raises(CsSystemError) as refused:
        PipelinedEngine(b"nonsense", program.interface, K).program()
    assert refused.value.code == "executable_refused"
    assert "compile again" in str(refused.value)


def test_an_interface_of_another_program(program):
    outputs = (*program.interface.outputs[:2], TensorSpec("output_step", "float32", ()))
    interface = dataclasses.replace(program.interface, outputs=outputs)
    with pytest.raises(ProgramError, match="output 'output_step' of the executable is"):
        PipelinedEngine(program.executable, interface, K).program()
    with pytest.raises(ProgramError, match="3 output results, its interface 2"):
        PipelinedEngine(program.executable, dataclasses.replace(interface, outputs=outputs[:2]), K).program()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_convolution_is_given_to_the_routine_that_uses_all_threads(threads):
    import jax

    from cs_system.engine.device import compiler_options

    def convolved(image, kernel):
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    arrays = np.ones((4, 16, 16, 32), np.float32), np.ones((3, 3, 32, 32), np.float32)
    text = jax.jit(convolved).lower(*arrays).compile(compiler_options=compiler_options(threads)).as_text()
    assert ("__ynn_fusion" in text) == (threads == 1)


def compiled_step(program, *names):
    """The whole step under several names, as a pipelined step; (step, bytes by name)."""
    executables = tuple(
        Executable(name, program.interface, "0" * 64, len(program.executable)) for name in names
    )
    step = CompiledStep("0" * 64, "cs2", "pipelined", program.interface, executables)
    return step, dict.fromkeys(names, program.executable)


def test_an_artifact_of_an_unknown_execution_mode_is_refused(program):
    step, data = compiled_step(program, "step")
    with pytest.raises(ArtifactRefusedError, match="execution 'other', this system has pipelined"):
        check_step(dataclasses.replace(step, execution="other"))
    assert isinstance(make_engine(step, data, K, MemoryxConfig()), PipelinedEngine)


def test_the_pipelined_engine_takes_exactly_one_executable(program):
    two, _ = compiled_step(program, "forward", "backward")
    with pytest.raises(
        ArtifactRefusedError,
        match=r"has 2 executable\(s\) \(forward, backward\), execution 'pipelined' expects exactly one",
    ):
        check_step(two)
    with pytest.raises(ArtifactRefusedError, match=r"has 0 executable\(s\) \(\)"):
        check_step(dataclasses.replace(two, executables=()))
    part = dataclasses.replace(two.executables[0], interface=StepInterface((), (), (), ()))
    with pytest.raises(ArtifactRefusedError, match="with the interface of the whole step; compile it again"):
        check_step(dataclasses.replace(two, executables=(part,)))


MIB = 1 << 20


def interface(input_bytes: int, output_bytes: int = 4) -> StepInterface:
    return StepInterface(
        inputs=(TensorSpec("input_0", "uint8", (input_bytes,)),),
        state=(),
        outputs=(TensorSpec("output_0", "uint8", (output_bytes,)),),
        updated=(),
    )


@pytest.mark.parametrize(
    ("input_bytes", "output_bytes", "memory", "expected"),
    [
        (256 * 784 * 4, 4, 1024 * MIB, RingSize(32, 3)),  # FC-MNIST
        (100, 4, 1024 * MIB, RingSize(32, 3)),
        (3 * MIB, 4, 1024 * MIB, RingSize(8, 3)),  # 10 batches fit into 32 MiB; a power of two is taken
        (100 * MIB, 4, 1024 * MIB, RingSize(1, 3)),
        (100 * MIB, 4, 250 * MIB, RingSize(1, 2)),
        (1 * MIB, 4, 24 * MIB, RingSize(8, 3)),
        (100, 16 * MIB, 1024 * MIB, RingSize(2, 3)),  # large outputs are stacked as well
    ],
)
def test_size_follows_batch_and_memory(input_bytes, output_bytes, memory, expected):
    size = ring_size(interface(input_bytes, output_bytes), memory)
    assert size == expected
    assert size.chunk_batches * size.chunks * input_bytes <= memory


def test_64_bit_integers_take_32_bits_in_the_ring():
    tokens = StepInterface((TensorSpec("input_0", "int64", (MIB,)),), (), (), ())
    assert ring_size(tokens, 1024 * MIB) == RingSize(8, 3)


def test_a_batch_that_does_not_fit_is_refused():
    with pytest.raises(
        DeviceMemoryError, match=r"needs 200 bytes for input, the system has 150; use a smaller"
    ):
        ring_size(interface(100), 150)
