"""A compile with the first suggestion of a report reaches the rate that the report predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.example_step import example_step
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cgc.report import CompileReport
from cs_toolkit.fabric import load_fabric
from cs_toolkit.step import ExecutionChoice

# Names of the compiler's options, where they differ from those of a program.
_COMPILER_OPTIONS = {"num_replicas": "replicas"}


def compiled(
    folder: Path, model: str, params_file: str, batch_size: int, options: CompileOptions
) -> CompileReport:
    changes: dict[str, dict[str, Any]] = {"train_input": {"batch_size": batch_size}}
    if model == "bert":
        changes["model"] = {"num_hidden_layers": 1}
    module = example_step(model, params_file, changes)
    report = compile_step(module, folder, options, load_fabric("cs2")).report
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("model", "params_file", "batch_size", "execution", "lever"),
    [
        ("fc_mnist", "params_fc_mnist.yaml", 256, "pipelined", "replicas"),
        ("resnet", "params_resnet_tiny.yaml", 8, "pipelined", "precision"),
        ("unet", "params_unet_tiny.yaml", 8, "pipelined", "replicas"),
        ("bert", "params_bert_tiny.yaml", 16, "pipelined", "replicas"),
        ("fc_mnist", "params_fc_mnist.yaml", 256, "weight_streaming", "execution"),
    ],
)
def test_the_first_suggestion_reaches_its_predicted_rate(
    model: str, params_file: str, batch_size: int, execution: ExecutionChoice, lever: str, tmp_path: Path
) -> None:
    options = CompileOptions(execution=execution)
    now = compiled(tmp_path, model, params_file, batch_size, options)
    first = now.suggestions[0]
    assert first.lever == lever
    assert first.times == pytest.approx(first.samples_per_s / now.samples_per_s)
    if first.option is None:
        changed = compiled(tmp_path, model, params_file, 2 * batch_size, options)
    else:
        name, value = first.option
        chosen = options.model_copy(update={_COMPILER_OPTIONS.get(name, name): value})
        changed = compiled(tmp_path, model, params_file, batch_size, chosen)
    assert changed.samples_per_s == pytest.approx(first.samples_per_s, rel=0.01)
    assert changed.samples_per_s > 1.01 * now.samples_per_s
