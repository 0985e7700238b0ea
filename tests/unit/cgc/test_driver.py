"""The compiler from end to end, on a small training step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from cgc.artifact import open_artifact
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import step_interface
from cgc.cirh.text import canonical_text, parse_module, print_module
from cgc.driver import compile_step, validate_step
from cgc.errors import InvalidModuleError, PipelineError
from cgc.execution.compilation import CompileOptions
from cgc.lowering.interpret import step_function
from cs_system.engine.executable import load_step
from cs_toolkit.fabric import load_fabric
from cs_toolkit.step import device_dtype
from tests.programs.steps import MLP_TRAIN


@pytest.fixture
def module():
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


@pytest.fixture(scope="session")
def fabric():
    return load_fabric("cs2")


@pytest.fixture(scope="module")
def compiled(fabric, tmp_path_factory):
    """The step, compiled into a separate folder, which tests do not change."""
    parsed = parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))
    return compile_step(parsed, tmp_path_factory.mktemp("compiled"), CompileOptions(), fabric)


@pytest.fixture
def compile_dir(compiled):
    return compiled.artifact.path.parent


def test_the_artifact_holds_everything(compiled, module, compile_dir):
    artifact = compiled.artifact
    assert not compiled.reused
    assert compiled.warnings == ()
    assert compile_dir / f"cs_{artifact.key}" == artifact.path
    assert sorted(path.name for path in artifact.path.iterdir()) == [
        "cirh.mlir",
        "compile_report.html",
        "compile_report.json",
        "compile_report.txt",
        "deltat_estimate.json",
        "kernels.mlir",
        "lair.mlir",
        "manifest.json",
        "plan.json",
        "step.jaxexport",
    ]
    assert artifact.interface == step_interface(module)
    assert [(e.name, e.interface) for e in artifact.step.executables] == [("step", artifact.interface)]
    assert artifact.manifest.mode == "train"
    assert artifact.manifest.precision == "float32"
    assert artifact.manifest.batch_size == 8
    assert artifact.manifest.fabric.name == "cs2"
    assert open_artifact(artifact.path) == artifact


def test_the_files_tell_one_story(compiled):
    """Users grep for these two keys; the numbers are those of report and manifest."""
    artifact = compiled.artifact
    estimates = artifact.estimates
    plan = artifact.read("plan.json").decode()
    assert f'"total_utilization":{json.loads(plan)["total_utilization"]}' in plan
    assert json.loads(plan)["total_utilization"] == estimates.total_utilization
    deltat = artifact.read("deltat_estimate.json").decode()
    assert f'"estimated_deltat":{estimates.deltat_cycles}' in deltat
    report = json.loads(artifact.read("compile_report.json"))
    assert report["overall"]["active_pes"] == estimates.active_pes
    assert report["overall"]["samples_per_s"] == pytest.approx(850e6 / estimates.deltat_cycles)
    assert compiled.report_text.startswith("Estimated Overall Performance\n")
    assert f"{estimates.samples_per_s:.1f}" in compiled.report_text
    assert f'value="{estimates.samples_per_s}"' in artifact.read("compile_report.html").decode()


def test_the_executable_computes_the_module(compiled, module):
    interface = step_interface(module)
    rng = np.random.default_rng(0)

    def values(specs):
        return tuple(
            np.abs(rng.standard_normal(s.shape)).astype(device_dtype(s.dtype)) / 2
            if s.dtype == "float32"
            else rng.integers(0, 4, s.shape).astype(device_dtype(s.dtype))
            for s in specs
        )

    state, inputs = values(interface.state), values(interface.inputs)
    expected = jax.jit(step_function(module))(state, inputs)
    got = jax.jit(load_step(compiled.artifact.executable_bytes("step")))(state, inputs)
    for left, right in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-7)


def kernel_names(result):
    return {row["name"] for row in json.loads(result.artifact.read("compile_report.json"))["kernels"]}


def test_both_texts_are_modules_and_every_op_names_its_kernel(compiled):
    artifact = compiled.artifact
    optimized = parse_module(artifact.read("cirh.mlir").decode())
    kernels = parse_module(artifact.read("kernels.mlir").decode())
    names = kernel_names(compiled)
    (function,) = kernels.body.block.ops
    *ops, _ = function.body.block.ops
    assert {op.attributes["cs.kernel"].data for op in ops} == names
    for op in ops:
        del op.attributes["cs.kernel"]
    assert canonical_text(kernels) == canonical_text(optimized)


def test_a_second_compilation_is_a_look_at_the_first(compiled, module, fabric, compile_dir):
    stages = []
    again = compile_step(module, compile_dir, CompileOptions(), fabric, lambda *s: stages.append(s))
    assert again.reused
    assert again.artifact == compiled.artifact
    assert again.report_text == compiled.report_text
    assert stages == []


def test_names_and_lines_of_the_source_do_not_make_another_program(module, fabric, compile_dir):
    for op in module.walk():
        if "cs.source" in op.attributes:
            del op.attributes["cs.source"]
    assert compile_step(module, compile_dir, CompileOptions(), fabric).reused


def test_other_layers_make_another_program_whose_report_has_their_names(module, fabric, tmp_path):
    options = CompileOptions(execution="weight_streaming")
    first = compile_step(module, tmp_path, options, fabric)
    for op in module.walk():
        if isinstance(op, CirhOp) and op.layer:
            op.set_origin(layer=("renamed", *op.layer))
    second = compile_step(module, tmp_path, options, fabric)
    assert not second.reused
    assert "renamed" in second.report_text
    assert "renamed" not in first.report_text


def test_seed_options_and_fabric_make_another_program(compiled, module, fabric, tmp_path):
    text = MLP_TRAIN.read_text()
    reseeded = parse_module(text.replace("seed = 1 : i64, op_seed = 0", "seed = 2 : i64, op_seed = 0"))
    smaller = fabric.model_copy(update={"height": fabric.height // 2})
    results = [
        compile_step(reseeded, tmp_path, CompileOptions(), fabric),
        compile_step(module, tmp_path, CompileOptions(passes="dce"), fabric),
        compile_step(module, tmp_path, CompileOptions(), smaller),
    ]
    assert not any(result.reused for result in results)
    assert len({compiled.artifact.key, *(result.artifact.key for result in results)}) == 4


def test_the_callers_module_is_unchanged(module, fabric, tmp_path):
    before = print_module(module)
    validate_step(module, CompileOptions(), fabric)
    compile_step(module, tmp_path, CompileOptions(), fabric)
    assert print_module(module) == before


def test_stages_count_up_to_the_end(module, fabric, tmp_path):
    for run in (
        lambda progress: validate_step(module, CompileOptions(), fabric, progress),
        lambda progress: compile_step(module, tmp_path, CompileOptions(), fabric, progress),
    ):
        stages = []
        run(lambda *stage, seen=stages: seen.append(stage))
        names, numbers, totals = zip(*stages, strict=True)
        assert numbers == (*range(1, len(stages)), len(stages) - 1)
        assert set(totals) == {len(stages) - 1}
        assert len(set(names)) == len(names)


def test_validation_lists_the_kernels_and_writes_nothing(module, fabric, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = validate_step(module, CompileOptions(), fabric)
    assert result.graph.batch_size == 8
    assert sum(len(kernel.ops) for kernel in result.graph.kernels) > 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", [validate_step, compile_step])
def test_uncompilable_steps_are_refused_and_leave_nothing(function, fabric, tmp_path):
    def run(text, options):
        parsed = parse_module(text, verify=False)
        directory = () if function is validate_step else (tmp_path,)
        function(parsed, *directory, options, fabric)

    text = MLP_TRAIN.read_text()
    with pytest.raises(
        InvalidModuleError, match=r"cs\.mode is \"dance\", expected one of train, eval, infer"
    ):
        run(text.replace('cs.mode = "train"', 'cs.mode = "dance"'), CompileOptions())
    with pytest.raises(InvalidModuleError, match="input_0"):
        run(text.replace('"input_0"', '"images"'), CompileOptions())
    with pytest.raises(PipelineError, match="unknown pass 'inline'"):
        run(text, CompileOptions(passes="inline"))
    assert list(tmp_path.iterdir()) == []


def test_reusing_needs_neither_jax_nor_a_framework_nor_passes(compile_dir):
    script = """
import sys
from pathlib import Path
from cgc.cirh.text import parse_module
from cgc.driver import CompileOptions, compile_step
from cs_toolkit.fabric import load_fabric
import cs_runtime.compile
module = parse_module(Path(sys.argv[1]).read_text())
result = compile_step(module, Path(sys.argv[2]), CompileOptions(), load_fabric("cs2"))
slow = ("jax", "tensorflow", "torch", "cgc.passes.pipeline", "xdsl.interpreters", "cgc.kernels", "jinja2")
print(result.reused, [name for name in slow if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, MLP_TRAIN, compile_dir],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.stdout == "True []\n", done.stderr


def test_two_machines_write_the_same_bytes(module, compiled, fabric, tmp_path):
    other = compile_step(module, tmp_path / "other", CompileOptions(), fabric).artifact
    for file in compiled.artifact.path.iterdir():
        assert (other.path / file.name).read_bytes() == file.read_bytes()
