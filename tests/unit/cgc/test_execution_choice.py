"""The choice of an execution mode for a step, and the notices about it."""

from __future__ import annotations

import json

import pytest

from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.errors import CompileError, PlacementError, ReplicaError
from cgc.execution.compilation import CompileOptions
from cs_toolkit.fabric import load_fabric
from cs_toolkit.figures import format_rate
from tests.programs.steps import MLP_TRAIN

FABRIC = load_fabric("cs2")
CROWDED = FABRIC.model_copy(update={"width": 3, "height": 3})
"""Too small for all layers together; a layer at a time has the whole wafer all the same."""
TINY = CROWDED.model_copy(update={"streaming_width": 2, "streaming_height": 1})
AUTO = CompileOptions(execution="auto")


@pytest.fixture
def module():
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


def told(result):
    """Return the notice, which is in the result, in all forms of the report and in the artifact."""
    (notice,) = result.notices
    artifact = result.artifact
    assert notice in result.report_text
    assert json.loads(artifact.read("compile_report.json"))["notices"] == [notice]
    assert "execution auto" in artifact.read("compile_report.html").decode()
    return notice


def test_auto_is_pipelined_where_the_step_fits(module, tmp_path):
    result = compile_step(module, tmp_path, AUTO, FABRIC)
    assert result.artifact.step.execution == "pipelined"
    pes = result.artifact.estimates.active_pes
    assert f"pipelined, because all layers fit the wafer together: they take {pes:,} of 307,840" in told(
        result
    )


def test_auto_streams_weights_where_a_step_does_not_fit_and_reports_by_how_much(module, tmp_path):
    stages = []
    result = compile_step(module, tmp_path, AUTO, CROWDED, lambda *stage: stages.append(stage))
    assert result.artifact.step.execution == "weight_streaming"
    assert result.artifact.step.schedule
    notice = told(result)
    assert "weight streaming, because the layers do not fit the wafer together" in notice
    assert "take at least 90 PEs, available are 9; the largest is " in notice
    assert stages[-1][0] == "Completed"
    assert [number for _, number, _ in stages] == [*range(1, len(stages)), len(stages) - 1]
    assert stages[-1][1] == stages[-1][2]
    assert result.artifact.manifest.fabric.processing_elements == 745_500


def test_a_program_that_fits_in_no_mode_is_an_error_of_both(module, tmp_path):
    with pytest.raises(
        PlacementError, match=r"fits in no mode .* Weight streaming: layer .* Pipelined: .*3 x 3"
    ):
        compile_step(module, tmp_path, AUTO, TINY)
    assert not list(tmp_path.glob("cs_*"))


def test_the_requested_mode_is_in_the_key_and_notices_are_repeated_for_a_cached_artifact(module, tmp_path):
    auto = compile_step(module, tmp_path, AUTO, CROWDED)
    again = compile_step(module, tmp_path, AUTO, CROWDED)
    asked = compile_step(module, tmp_path, CompileOptions(execution="weight_streaming"), CROWDED)
    assert again.reused
    assert again.notices == auto.notices
    assert not asked.reused
    assert asked.notices == ()
    assert asked.artifact.key != auto.artifact.key
    assert asked.artifact.step.schedule == auto.artifact.step.schedule


def test_a_pipeline_that_does_not_fit_is_refused_with_the_other_mode(module, tmp_path):
    with pytest.raises(PlacementError, match=r"compile it with execution weight_streaming, or auto$") as told:
        compile_step(module, tmp_path, CompileOptions(), CROWDED)
    rate = compile_step(module, tmp_path, AUTO, CROWDED).artifact.estimates.samples_per_s
    assert f"would run it at {format_rate(rate)} samples/s" in str(told.value)


def test_a_pipeline_that_does_not_fit_is_not_sent_to_a_mode_that_does_not_hold_it_either(module, tmp_path):
    with pytest.raises(PlacementError, match=r"Weight streaming cannot run it either: layer .* PEs"):
        compile_step(module, tmp_path, CompileOptions(), TINY)


def test_replicas_are_in_key_estimates_and_plan_and_run_the_same_executable(module, tmp_path):
    one = compile_step(module, tmp_path, CompileOptions(), FABRIC)
    two = compile_step(module, tmp_path, CompileOptions(replicas=2), FABRIC)
    assert one.artifact.key != two.artifact.key
    assert (one.artifact.estimates.replicas, two.artifact.estimates.replicas) == (1, 2)
    assert (
        two.artifact.estimates.active_pes
        == 2 * json.loads(two.artifact.read("compile_report.json"))["replicas"]["active_pes_of_one"]
    )
    assert two.artifact.executable_bytes("step") == one.artifact.executable_bytes("step")
    plans = [json.loads(result.artifact.read("plan.json")) for result in (one, two)]
    assert "copies" not in plans[0]
    assert len(plans[1]["copies"]) == 2
    assert two.notices == ()


def test_auto_gives_the_reason_for_its_number_of_replicas(module, tmp_path):
    result = compile_step(module, tmp_path, CompileOptions(replicas="auto"), FABRIC)
    count = result.artifact.estimates.replicas
    (notice,) = result.notices
    assert notice.startswith(f"num_replicas auto: {count}, the best predicted rate of the numbers that fit")
    assert f"{result.artifact.estimates.samples_per_s:,.0f} samples/s" in notice
    tried = json.loads(result.artifact.read("compile_report.json"))["replicas"]["tried"]
    assert [row["replicas"] for row in tried] == [1, 2, 4, 8]
    assert max(tried, key=lambda row: row["samples_per_s"])["replicas"] == count
    assert notice in result.report_text


def test_replicas_of_what_does_not_fit_once_are_refused_in_every_mode(module, tmp_path):
    for execution in ("pipelined", "auto"):
        options = CompileOptions(execution=execution, replicas=2)
        with pytest.raises(
            ReplicaError, match="num_replicas is 2, but one copy of the model does not fit the wafer"
        ):
            compile_step(module, tmp_path, options, CROWDED)
    with pytest.raises(ReplicaError, match="num_replicas is 2 with execution 'weight_streaming'"):
        compile_step(module, tmp_path, CompileOptions(execution="weight_streaming", replicas=2), FABRIC)
    assert not list(tmp_path.glob("cs_*"))


def test_auto_replicas_leave_the_choice_of_the_mode_as_it_is(module, tmp_path):
    both = CompileOptions(execution="auto", replicas="auto")
    crowded = compile_step(module, tmp_path, both, CROWDED)
    assert crowded.artifact.step.execution == "weight_streaming"
    assert len(compile_step(module, tmp_path, both, FABRIC).notices) == 2
    asked = CompileOptions(execution="weight_streaming", replicas="auto")
    (notice,) = compile_step(module, tmp_path, asked, FABRIC).notices
    assert notice.startswith("num_replicas auto: one copy of the model, because with weight streaming")


TOKEN_LOOP = """builtin.module {
  func.func @graph(%tokens : tensor<2x5xi32> {cs.input_name = "input_0"},
      %stop : tensor<2x1x1xi32> {cs.input_name = "input_1"})
      -> (tensor<2x5xi32> {cs.output_name = "output_text"}) attributes {cs.mode = "infer"} {
    %now, %last = cirh.StartTokenLoop %tokens : (tensor<2x5xi32>) -> (tensor<2x5xi32>, tensor<2x1xi32>)
    %text = cirh.UpdateTokenLoop %now, %last, %last, %stop
        {start_tokens = array<i64: 9>, max_tokens = 3 : i64}
        : (tensor<2x5xi32>, tensor<2x1xi32>, tensor<2x1xi32>, tensor<2x1x1xi32>) -> tensor<2x5xi32>
    func.return %text : tensor<2x5xi32>
  }
}"""


def test_a_loop_over_tokens_has_all_layers_on_the_wafer(tmp_path):
    module = parse_module(TOKEN_LOOP)
    streamed = CompileOptions(execution="weight_streaming")
    with pytest.raises(CompileError, match=r"UpdateTokenLoop: a loop over tokens .*, expected 'pipelined'"):
        compile_step(module, tmp_path, streamed, FABRIC)
    result = compile_step(module, tmp_path, CompileOptions(), FABRIC)
    assert result.artifact.step.execution == "pipelined"
    (notice,) = result.notices
    assert "one round per generated token, at most 3" in notice
