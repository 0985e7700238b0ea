"""Recomputed layers for a limit of memory, and the notices about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.text import parse_module
from cgc.driver import CompileResult, compile_step
from cgc.errors import CompileError
from cgc.execution.compilation import CompileOptions
from cgc.execution.weight_streaming import memory_limit
from cgc.layers.traffic import peak_bytes
from cs_toolkit.execution_options import Streaming
from cs_toolkit.fabric import load_fabric
from cs_toolkit.layered_step import schedule_from_json
from tests.programs.steps import MLP_TRAIN

Compile = Callable[[Streaming], CompileResult]


@pytest.fixture(scope="module")
def module() -> ModuleOp:
    return parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))


@pytest.fixture
def compiled(module: ModuleOp, tmp_path: Path) -> Compile:
    def run(streaming: Streaming) -> CompileResult:
        options = CompileOptions(execution="weight_streaming", streaming=streaming)
        return compile_step(module, tmp_path, options, load_fabric("cs2"))

    return run


def peak(result: CompileResult) -> int:
    return peak_bytes(schedule_from_json(result.artifact.step.schedule))


def recomputed(result: CompileResult) -> int:
    found: int = json.loads(result.artifact.read("compile_report.json"))["overall"]["recomputed_layers"]
    return found


def test_nothing_is_computed_again_where_all_fits_and_nothing_is_said(compiled: Compile) -> None:
    plain = compiled(Streaming())
    assert recomputed(plain) == 0
    assert plain.notices == ()


def test_a_limit_is_kept_by_computing_layers_again(compiled: Compile) -> None:
    need = peak(compiled(Streaming()))
    enough, short = compiled(Streaming(max_act_bytes=need)), compiled(Streaming(max_act_bytes=need - 1))
    assert (recomputed(enough), peak(enough)) == (0, need)
    assert recomputed(short) > 0
    assert peak(short) < need
    (notice,) = short.notices
    assert f"activations (recompute auto): {recomputed(short)} of " in notice
    assert f"max_act_per_csx allows {need - 1} bytes" in notice
    assert notice in short.report_text
    assert "too little" not in notice


def test_systems_that_share_a_batch_share_its_activations(compiled: Compile) -> None:
    need = peak(compiled(Streaming()))
    half = (need + 1) // 2
    assert recomputed(compiled(Streaming(max_act_bytes=half, micro_batch_size=8))) > 0
    shared = compiled(Streaming(num_csx=2, max_act_bytes=half))
    assert recomputed(shared) == 0
    assert "in each of 2 systems" in shared.notices[0]


def test_all_or_no_layers_are_recomputed_as_the_user_asks(compiled: Compile) -> None:
    every, none = (
        compiled(Streaming(recompute="all")),
        compiled(Streaming(recompute="none", max_act_bytes=1, micro_batch_size=8)),
    )
    least = compiled(Streaming(max_act_bytes=1, micro_batch_size=8))
    assert recomputed(every) == recomputed(least) > 0
    assert recomputed(none) == 0
    assert "which is not enough: set recompute: auto, or use a smaller batch" in none.notices[0]
    assert len({result.artifact.key for result in (every, none, least)}) == 3


def test_a_limit_above_what_the_wafer_has_changes_nothing() -> None:
    assert memory_limit(500, Streaming(max_act_bytes=501)) == memory_limit(500, Streaming())
    assert memory_limit(500, Streaming(max_act_bytes=499, num_csx=3)).room_bytes == 3 * 499


def overall(result: CompileResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.artifact.read("compile_report.json"))["overall"]
    return found


def test_micro_batches_have_the_size_that_was_asked_for(compiled: Compile) -> None:
    result = compiled(Streaming(micro_batch_size=2))
    schedule = schedule_from_json(result.artifact.step.schedule)
    assert schedule.micro.count == 4
    assert (overall(result)["micro_batches"], overall(result)["micro_batch_size"]) == (4, 2)
    assert result.artifact.manifest.batch_size == 8
    assert "in 4 micro-batches of 2 samples (as requested)" in result.notices[0]
    shared = compiled(Streaming(num_csx=2, micro_batch_size=2))
    assert schedule_from_json(shared.artifact.step.schedule).micro.count == 2
    assert "in 2 micro-batches of 2 samples in each of 2 systems" in shared.notices[0]


def test_a_whole_batch_is_one_micro_batch(compiled: Compile) -> None:
    whole = compiled(Streaming(micro_batch_size=8))
    assert whole.artifact.step.schedule == compiled(Streaming()).artifact.step.schedule


def test_the_largest_micro_batch_that_fits_is_found(compiled: Compile) -> None:
    need = {size: peak(compiled(Streaming(recompute="none", micro_batch_size=size))) for size in (8, 4, 2)}
    for limit, size in ((need[8], 8), (need[8] - 1, 4), (need[4] - 1, 2)):
        found = compiled(Streaming(recompute="none", max_act_bytes=limit))
        assert overall(found)["micro_batch_size"] == size
        assert "too little" not in found.notices[0]
    assert "in 4 micro-batches of 2 samples (auto)" in found.notices[0]


def test_a_micro_batch_that_does_not_divide_is_refused(compiled: Compile) -> None:
    with pytest.raises(CompileError, match="micro_batch_size is 3, expected a divisor of the batch of 8"):
        compiled(Streaming(micro_batch_size=3))
