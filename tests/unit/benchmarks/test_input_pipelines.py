"""The pipelines of `benchmarks.input_analysis` are what it says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import input_pipelines
from benchmarks.input_analysis import TRUTH, Profiled
from input_analyzer.tf.graph import trace


@pytest.mark.parametrize("name", TRUTH)
def test_the_slowest_stage_is_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(input_pipelines.FOLDER_VARIABLE, str(tmp_path))
    pipeline = trace(getattr(input_pipelines, name), eager=True).pipeline
    assert TRUTH[name].stage in pipeline.by_name
    assert pipeline.samples_per_element == input_pipelines.BATCH


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("computing_map", "MapAndBatch", "MapAndBatch::Range"),
        ("after_batch", "ParallelMapV2", "ParallelMapV2::MapAndBatch"),
        ("waiting_files", "MapAndBatch::Interleave[0]::Map", "MapAndBatch"),
        ("second_of_two", "BatchV2::Zip[1]::ParallelMapV2", "BatchV2::Zip[0]::ParallelMapV2"),
        ("generator", "MapAndBatch::FlatMap[0]::Generator", "MapAndBatch"),
        ("filtered", "MapAndBatch::Filter::ParallelMapV2", "MapAndBatch::Filter"),
    ],
)  # fmt: skip
def test_operations_of_the_profiler_are_told_apart(name: str, right: str, wrong: str) -> None:
    right, wrong = (f"Iterator::Root::Prefetch::{path}" for path in (right, wrong))
    conclusion = "Your program is HIGHLY input-bound because 81.5% of the total step time is waiting"
    assert Profiled(right, conclusion, 5, 9.0).right(TRUTH[name])
    assert not Profiled(wrong, conclusion, 5, 9.0).right(TRUTH[name])
    text = Profiled(wrong, conclusion, 5, 9.0).text(TRUTH[name])
    assert text.endswith("(wrong), 9 s; highly input-bound, 5 general hints")
    assert Profiled(right, "", 5, 9.0).text(TRUTH[name]).endswith("9 s; not input-bound, 5 general hints")
