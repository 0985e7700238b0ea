"""The pipelines of `benchmarks.input_analysis` have the documented properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import input_pipelines
from benchmarks.input_analysis import GROUPS, TRUTH, Profiled, advice, chosen
from benchmarks.input_profile import hint_for
from input_analyzer.tf.eager_graph import rebuild_in_graph
from input_rules.tf.pipeline import trace


@pytest.mark.parametrize("name", TRUTH)
def test_the_slowest_stage_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(input_pipelines.FOLDER_VARIABLE, str(tmp_path))
    pipeline = trace(getattr(input_pipelines, name), in_graph=rebuild_in_graph).pipeline
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
def test_operations_of_the_profiler_are_distinguished(name: str, right: str, wrong: str) -> None:
    right, wrong = (f"Iterator::Root::Prefetch::{path}" for path in (right, wrong))
    conclusion = "Your program is HIGHLY input-bound because 81.5% of the total step time is waiting"
    hint = "Data preprocessing: you may increase num_parallel_calls"
    assert Profiled(right, conclusion, hint, 9.0).right(TRUTH[name])
    assert not Profiled(wrong, conclusion, hint, 9.0).right(TRUTH[name])
    text = Profiled(wrong, conclusion, hint, 9.0).text(TRUTH[name])
    assert text.endswith(f'(wrong), 9 s; highly input-bound; "{hint}" (gain not told)')
    assert Profiled(right, "", "", 9.0).text(TRUTH[name]).endswith("9 s; not input-bound; nothing to change")


def test_every_recommendation_states_its_gain() -> None:
    gain = {"kind": "not-speed", "text": "it compiles"}
    finding = {"op": "map", "source": "data.py:7", "recommended": "map(fast)", "gain": gain}
    layout = {"nodes": 1, "tasks_per_node": 2, "cpus_per_task": 1}
    stage = {"name": "map_2", "op": "map", "source": "data.py:7"}
    found: dict[str, Any] = {"bottleneck": {"stage": "map_2"}, "stages": [stage], "recommendation": layout}
    found["findings"] = [finding, finding, {**finding, "source": "data.py:8"}]
    assert advice(found) == "`map(fast)` (not speed: it compiles); layout 1 x 2 x 1"
    found["findings"] = [{**finding, "gain": None}, {**finding, "op": "batch"}]
    assert advice(found) == "`map(fast)` (gain not known); layout 1 x 2 x 1"
    assert advice({**found, "findings": []}) == "nothing to change in it; layout 1 x 2 x 1"


def test_the_profilers_hint_is_that_for_what_took_longest() -> None:
    hints = ["Enqueuing data: larger chunks.", "Data preprocessing: OFFLINE."]
    assert hint_for(hints, {"enqueue_us": 1.0, "preprocessing_us": 2.0}) == hints[1]
    assert hint_for(hints, {"enqueue_us": 0.0, "preprocessing_us": 0.0}) == ""


def test_words_choose_among_groups_and_rows() -> None:
    assert chosen([]) == {group: [] for group in GROUPS}, "all of each"
    assert chosen(["peers", "cached"]) == {"peers": ["cached"]}
    assert chosen(["bert"]) == {"time": ["bert"], "overhead": ["bert"]}
    for words in (["nonsense"], ["time", "cached"], ["--help"]):
        with pytest.raises(ValueError, match=f"unknown word '{words[-1]}'; expected time, overhead, peers"):
            chosen(words)
