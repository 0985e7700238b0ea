"""A step compiled for weight streaming: its artifact, and what its executables compute call by call."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from cgc.artifact import open_artifact
from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cgc.lowering.interpret import step_function
from cgc.manifest import StreamedEstimates
from cs_system.engine.executable import load_step
from cs_toolkit.fabric import load_fabric
from cs_toolkit.layered_step import schedule_from_json
from cs_toolkit.step import device_dtype
from tests.programs.steps import MLP_TRAIN

TRAIN = MLP_TRAIN.read_text()
FORWARD = """
func.func @graph(
    %0: tensor<12x6xf32> {tf.resource_name = "state.model.a"},
    %1: tensor<6x4xf32> {tf.resource_name = "state.model.b"},
    %2: tensor<8x12xf32> {cs.input_name = "input_0"}
) -> (tensor<8x4xf32> {cs.output_name = "output_logits"}) attributes {cs.mode = "MODE"} {
    %3 = cirh.MatMul %2, %0 {transpose_a = false, transpose_b = false} :
        (tensor<8x12xf32>, tensor<12x6xf32>) -> tensor<8x6xf32>
    %4 = cirh.Relu %3 : (tensor<8x6xf32>) -> tensor<8x6xf32>
    %5 = cirh.MatMul %4, %1 {transpose_a = false, transpose_b = false} :
        (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    func.return %5 : tensor<8x4xf32>
}
"""
STREAMED = CompileOptions(execution="weight_streaming")


@pytest.fixture(scope="module", params=["train", "eval", "infer"])
def module(request):
    return parse_module(TRAIN if request.param == "train" else FORWARD.replace("MODE", request.param))


@pytest.fixture(scope="module")
def compiled(module, tmp_path_factory):
    return compile_step(module, tmp_path_factory.mktemp("streamed"), STREAMED, load_fabric("cs2"))


def test_the_artifact_has_the_schedule_of_its_functions(compiled, module):
    step = compiled.artifact.step
    assert step.execution == "weight_streaming"
    assert step.interface == step_interface(module)
    assert step.schedule == (compiled.artifact.path / "schedule.json").read_text()
    schedule = schedule_from_json(step.schedule)
    assert [executable.name for executable in step.executables] == [
        f"function_{index}" for index in range(1 + max(call.function for call in schedule.calls()))
    ]
    assert schedule.state.keys() == {spec.name for spec in step.interface.state}
    for call in schedule.calls():
        taken = step.executables[call.function].interface
        assert len(taken.state) + len(taken.inputs) == len(call.arguments) + len(call.keys)
        assert len(taken.outputs) == len(call.results)
        assert taken.updated == ()
    assert open_artifact(compiled.artifact.path) == compiled.artifact


def test_the_executables_in_the_order_of_the_schedule_compute_the_step(compiled, module):
    interface = step_interface(module)
    rng = np.random.default_rng(0)

    def value(spec):
        if spec.dtype == "float32":
            return np.abs(rng.standard_normal(spec.shape)).astype(np.float32) / 2
        return rng.integers(0, 4, spec.shape).astype(device_dtype(spec.dtype))

    state, inputs = tuple(map(value, interface.state)), tuple(map(value, interface.inputs))
    new_state, outputs = jax.jit(step_function(module))(state, inputs)
    artifact, schedule = compiled.artifact, schedule_from_json(compiled.artifact.step.schedule)
    named = {spec.name: array for spec, array in zip(interface.state, state, strict=True)}
    known = {number: named[name] for name, number in schedule.state.items()}
    known.update(zip(schedule.inputs, inputs, strict=True))
    for call in schedule.calls():
        executable = artifact.step.executables[call.function]
        keys = [np.asarray(key, np.uint32).view(np.int32) for key in call.keys]
        arguments = [*(known[number] for number in call.arguments), *keys]
        weights = len(executable.interface.state)
        function = jax.jit(load_step(artifact.executable_bytes(executable.name)))
        _, results = function(tuple(arguments[:weights]), tuple(arguments[weights:]))
        known.update(zip(call.results, results, strict=True))
    for number, expected in zip(schedule.outputs, outputs, strict=True):
        np.testing.assert_allclose(known[number], expected, rtol=1e-5, atol=1e-6)
    for spec, expected in zip(interface.state, new_state, strict=True):
        number = schedule.state[spec.name]
        got = known[schedule.replacements.get(number, number)]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_estimates_are_those_of_the_report(compiled, module):
    artifact = compiled.artifact
    estimates = artifact.estimates
    assert isinstance(estimates, StreamedEstimates)
    assert artifact.manifest.batch_size == 8
    assert estimates.layers == len(schedule_from_json(artifact.step.schedule).layers)
    assert estimates.samples_per_s == pytest.approx(8 / estimates.step_s)
    overall = json.loads(artifact.read("compile_report.json"))["overall"]
    assert overall["samples_per_s"] == pytest.approx(estimates.samples_per_s)
    assert overall["bound_by"] == estimates.bound_by
    assert f"{estimates.samples_per_s:.1f}" in compiled.report_text


def test_it_is_found_again_and_is_another_program_than_the_pipelined_one(compiled, module):
    compile_dir, fabric = compiled.artifact.path.parent, load_fabric("cs2")
    again = compile_step(module, compile_dir, STREAMED, fabric)
    assert again.reused
    assert again.artifact == compiled.artifact
    pipelined = compile_step(module, compile_dir, CompileOptions(), fabric)
    assert not pipelined.reused
    assert pipelined.artifact.step.schedule == ""


def test_stages_count_up_to_the_end(module, tmp_path):
    stages = []
    compile_step(module, tmp_path, STREAMED, load_fabric("cs2"), lambda *stage: stages.append(stage))
    names, numbers, totals = zip(*stages, strict=True)
    assert numbers == (*range(1, len(stages)), len(stages) - 1)
    assert set(totals) == {len(stages) - 1}
    assert len(set(names)) == len(names)
