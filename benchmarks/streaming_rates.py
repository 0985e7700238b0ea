"""Predicted rates of weight streaming against published ones: example models through the compiler.

Each row is a parameter file of an example model with the sizes and the batch of a published training. Its
step is traced by TensorFlow, imported, rewritten, cut into layers, placed and estimated as in a compilation;
only the executables are not made. Every row runs in a separate process, which gives its memory back.

    python -m benchmarks.streaming_rates [NAME ...]    # some rows, or all; prints them
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Row

WORST = 0.30
"""Releases and installations differ by about 25 %."""


@dataclass(frozen=True)
class Published:
    """A training whose rate is published.

    Attributes:
        model: folder of the example model, and its parameter file.
        sizes: layers, width, heads, positions, vocabulary; the filter is four times the width.
        batch: samples of all systems.
        samples_per_s: that they train.
        source: where it is published; "fitted" where the latency of a layer was taken from it.
        num_csx: CS-2 systems.
    """

    model: tuple[str, str]
    sizes: tuple[int, int, int, int, int]
    batch: int
    samples_per_s: float
    source: str
    num_csx: int = 1


_BERT = ("bert", "params_bert_base.yaml")
_GPT = ("gpt2", "params_gpt3_13b.yaml")
_USC = "arXiv 2409.00287"
_ALCF = "ALCF user guides"

PUBLISHED: dict[str, Published] = {
    "BERT-base, batch 128": Published(_BERT, (12, 768, 12, 128, 30522), 128, 2267.7, f"{_USC}, fitted"),
    "BERT-base, batch 1,024": Published(_BERT, (12, 768, 12, 128, 30522), 1024, 12335.2, _USC),
    "BERT-base, batch 2,048": Published(_BERT, (12, 768, 12, 128, 30522), 2048, 16189.9, _USC),
    "BERT-large, batch 128": Published(_BERT, (24, 1024, 16, 128, 30522), 128, 1040.5, f"{_USC}, fitted"),
    "BERT-large, batch 1,024": Published(_BERT, (24, 1024, 16, 128, 30522), 1024, 4047.95, f"{_ALCF} R2.0.3"),
    "BERT-large, batch 2,048": Published(_BERT, (24, 1024, 16, 128, 30522), 2048, 7074.6, _USC),
    "GPT-2 small, 2,048 tokens, batch 112": Published(
        _GPT, (12, 768, 12, 2048, 50257), 112, 494.4, f"{_ALCF} R2.3"
    ),
    "GPT-3 256M, batch 128": Published(_GPT, (14, 1088, 17, 2048, 50257), 128, 373.4, _USC),
    "GPT-3 2.7B, batch 128": Published(_GPT, (32, 2560, 32, 2048, 50257), 128, 46.6, _USC),
    "GPT-3 13B, batch 128": Published(_GPT, (40, 5120, 40, 2048, 50257), 128, 11.86, _USC),
    "GPT of the sizes of GPT-J 6B, batch 120": Published(
        _GPT, (28, 4096, 16, 2048, 50257), 120, 43.67, f"{_ALCF} R2.0.3", 2
    ),
}


def rows(names: Sequence[str] = tuple(PUBLISHED)) -> list[Row]:
    """Predicted rates with signed errors; the last row has the median and the worst."""
    found, errors = [], []
    for name in names:
        published = PUBLISHED[name]
        predicted = _predict(name)
        error = predicted / published.samples_per_s - 1
        errors.append(error)
        found.append(
            Row(
                f"weight streaming on paper: {name}{_systems(published.num_csx)}",
                f"{predicted:,.1f} samples/s",
                f"{published.samples_per_s:,.1f} samples/s ({published.source}), error {error:+.0%}",
                predicted / published.samples_per_s,
                f"± {WORST:.0%}",
                abs(error) <= WORST,
            )
        )
    worst = max(errors, key=abs)
    middle = statistics.median(map(abs, errors))
    summary = f"median error {middle:.0%}, worst {worst:+.0%}"
    return [
        *found,
        Row(
            "weight streaming on paper: all",
            summary,
            f"{len(errors)} trainings",
            None,
            "",
            abs(worst) <= WORST,
        ),
    ]


def _systems(count: int) -> str:
    return "" if count == 1 else f", {count} systems"


def _predict(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks.streaming_rates", "--one", name]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _predict_here(published: Published) -> float:
    """Samples per second of all systems: each has its share of the batch, and sums are hidden by compute."""
    from benchmarks.example_step import example_step
    from cgc.execution.compilation import CompileOptions, Stages, rewrite_step
    from cgc.execution.weight_streaming import estimate_streamed
    from cs_toolkit.execution_options import Streaming
    from cs_toolkit.fabric import load_fabric

    options = CompileOptions(precision="mixed_float16")
    stages = Stages(0, None)
    module = rewrite_step(example_step(*published.model, _changes(published)), options.pipeline, stages)
    _, report = estimate_streamed(module, load_fabric("cs2"), stages, Streaming())
    return report.samples_per_s * published.num_csx


def _changes(published: Published) -> dict[str, dict[str, Any]]:
    layers, width, heads, positions, vocabulary = published.sizes
    samples = published.batch // published.num_csx
    model = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_heads": heads,
        "filter_size": 4 * width,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
    }
    data = {"batch_size": samples, "max_sequence_length": positions, "num_examples": 2 * samples}
    return {"model": model, "train_input": data}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help=f"some of {'; '.join(PUBLISHED)}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_predict_here(PUBLISHED[args.one])))
        return
    for row in rows(args.name or tuple(PUBLISHED)):
        print(f"{row.name}: {row.ours} | {row.others} (target {row.target})")


if __name__ == "__main__":
    main()
