"""Predicted against published compile reports: the example models through the compiler, row by row.

    python -m benchmarks.performance_model             # all rows; writes the page
    python -m benchmarks.performance_model --row NAME  # one row, as JSON

Each row is a parameter file of an example model with the sizes of the published network. Its step is traced
by TensorFlow, imported, rewritten, matched, placed and estimated as in `--mode=compile_only`; only the
executable is not made. A row runs in a separate process, which gives its memory back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.example_step import example_step
from benchmarks.published import OverallRow, overall_rows
from cs_toolkit.loader import load_model
from models.common.tf.params import Params

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance-model.md"
BEGIN, END = "<!-- predictions: begin -->", "<!-- predictions: end -->"
_FILES = {
    "transformer": "params_transformer_d256_6_6.yaml",
    "gpt2": "params_gpt2_small.yaml",
    "fc_mnist": "params_fc_mnist.yaml",
    "unet": "params_unet_256.yaml",
}
"""Parameter file of each model; it says the precision as well."""

_FIGURES = (
    "samples_per_s",
    "compute_samples_per_s",
    "transmission_samples_per_s",
    "active_pes_percent",
    "compute_utilization_percent",
)
_LABELS = ("samples/s", "compute", "transmission", "active PEs %", "utilization %")


@dataclass(frozen=True)
class Prediction:
    """A published row and the prediction of the compiler.

    Attributes:
        row: what is published.
        overall: `overall` of the compile report.
        bottleneck: the kernel that bounds the speed.
        kernels: how many there are.
    """

    row: OverallRow
    overall: dict[str, float]
    bottleneck: str
    kernels: int

    def published(self) -> tuple[float | None, ...]:
        """The published figures in the order of the columns."""
        row = self.row
        share = row.active_pes_percent
        if row.active_pes is not None:
            share = 100 * row.active_pes / 307_840
        return (
            row.samples_per_s,
            row.compute_samples_per_s,
            row.transmission_samples_per_s,
            share,
            row.utilization_percent,
        )

    def errors(self) -> list[float | None]:
        """Signed relative errors in the order of the columns, None where nothing is published."""
        return [
            None if wanted is None else self.overall[name] / wanted - 1
            for name, wanted in zip(_FIGURES, self.published(), strict=True)
        ]


def changes(row: OverallRow) -> dict[str, dict[str, Any]]:
    """Changes of the parameter file of a row's model."""
    model = row.sizes["model"]
    if model in ("fc_mnist", "unet"):
        return {}
    layers, heads, size = row.size("encoder_layers"), row.size("heads"), row.size("head_size")
    common = {"num_heads": heads, "attention_dropout_rate": 0.0}
    if model == "gpt2":
        return {
            "model": {
                **common,
                "hidden_size": row.size("hidden"),
                "num_hidden_layers": layers,
                "filter_size": row.size("filter"),
                "vocab_size": row.size("vocabulary"),
                "max_position_embeddings": row.size("positions"),
                # The published report has no kernel for dropout.
                "dropout_rate": 0.0,
                "embedding_dropout_rate": 0.0,
            },
            "train_input": {"max_sequence_length": row.size("positions")},
        }
    return {
        "model": {
            **common,
            "d_model": row.size("hidden"),
            "d_kv": size,
            "d_ff": row.size("filter"),
            "encoder_num_hidden_layers": layers,
            "decoder_num_hidden_layers": row.size("decoder_layers"),
            "src_vocab_size": row.size("vocabulary"),
            "tgt_vocab_size": row.size("vocabulary"),
        },
        "train_input": {
            "src_max_sequence_length": row.size("positions"),
            "tgt_max_sequence_length": row.size("positions"),
        },
    }


def compiled(row: OverallRow) -> dict[str, Any]:
    """The compile report of a row as `compile_report.json` has it."""
    return report_of(row.sizes["model"], _FILES[row.sizes["model"]], changes(row))


def parameters_of(model: str, params_file: str) -> Params:
    """A parameter file of an example model as the model's own schema reads it."""
    schema: type[Params] = import_module(f"models.{model}.tf.params").Params
    return load_model(ROOT / "models" / model / "tf" / "configs" / params_file, schema)


def report_of(
    model: str, params_file: str, different: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The compile report of a parameter file, with other values in places."""
    from cgc.driver import validate_step
    from cgc.execution.compilation import CompileOptions
    from cgc.placement import place
    from cgc.report import build_json, build_report
    from cs_toolkit.fabric import load_fabric

    fabric = load_fabric()
    precision = parameters_of(model, params_file).runconfig.precision or "float32"
    module = example_step(model, params_file, different)
    graph = validate_step(module, CompileOptions(precision=precision), fabric).graph
    return build_json(build_report(graph, place(graph, fabric), fabric))


def predict(row: OverallRow) -> Prediction:
    """Run one row in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.performance_model", "--row", row.name],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return Prediction(row, report["overall"], report["bottleneck"], report["kernels"])


def table(predictions: Sequence[Prediction]) -> str:
    """The table in Markdown: published, predicted and signed error of every figure."""
    titles = ("row", "set", "figure", "published", "predicted", "error")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---:|---:|---:|"]
    for prediction in predictions:
        kind = "held out" if prediction.row.held_out else "seen"
        figures = zip(_FIGURES, _LABELS, prediction.published(), prediction.errors(), strict=True)
        for name, label, wanted, error in figures:
            if wanted is not None and error is not None:
                got = prediction.overall[name]
                cells = (prediction.row.name, kind, label, _number(wanted), _number(got), f"{error:+.1%}")
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(predictions: Sequence[Prediction]) -> str:
    """Median and worst errors, by figure and by set."""
    lines = ["| figures | values | median \\|error\\| | worst |", "|---|---:|---:|---:|"]
    for position, label in enumerate(_LABELS):
        lines.append(_summary_line(label, (p.errors()[position] for p in predictions)))
    for title, held_out in (("all figures of rows seen", False), ("all figures of rows held out", True)):
        chosen = [error for p in predictions if p.row.held_out is held_out for error in p.errors()]
        lines.append(_summary_line(title, chosen))
    lines.append(_summary_line("all figures", (error for p in predictions for error in p.errors())))
    return "\n".join(lines)


def _summary_line(title: str, found: Iterable[float | None]) -> str:
    errors = [error for error in found if error is not None]
    if not errors:
        return f"| {title} | 0 | | |"
    median = statistics.median(abs(error) for error in errors)
    return f"| {title} | {len(errors)} | {median:.1%} | {max(errors, key=abs):+.1%} |"


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"


def write_page(predictions: Sequence[Prediction]) -> None:
    """Replaces the generated part of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    generated = f"{BEGIN}\n\n{summary(predictions)}\n\n{table(predictions)}\n\n{END}"
    PAGE.write_text(f"{before}{generated}{after}", encoding="utf-8")


def run() -> str:
    """Predict all rows, write the page, and return its text for the terminal."""
    predictions = []
    for row in overall_rows():
        prediction = predict(row)
        predictions.append(prediction)
        overall = prediction.overall
        print(
            f"{row.name}: {overall['samples_per_s']:.1f} samples/s, {overall['active_pes_percent']:.1f}% of "
            f"the PEs, {prediction.kernels} kernels, bounded by {prediction.bottleneck}",
            flush=True,
        )
    write_page(predictions)
    return f"{summary(predictions)}\n\n{table(predictions)}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", choices=[row.name for row in overall_rows()], help="one row, as JSON")
    args = parser.parse_args()
    if args.row is None:
        print(run())
        return
    row = next(row for row in overall_rows() if row.name == args.row)
    report = compiled(row)
    found = {
        "overall": report["overall"],
        "bottleneck": report["bottleneck"]["kernel"],
        "kernels": len(report["kernels"]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
