"""Several CS systems at a fixed batch for each: how much of the time is their communication.

All systems of a group share the cores of this machine, so N of them take N times the CPU time of one at best.
What they take beyond that is communication: weights that go to each, sums of gradients, threads that wait. On
paper it is continued to the 192 systems that SwarmX connects, for the sum goes through a tree.

    python -m benchmarks.streaming_scaling [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.streamed_step import Measured, measured

SYSTEMS = (1, 2, 4)
MOST_SYSTEMS = 192
SAMPLES, LENGTH = 4, 128
LAYERS, WIDTH = 4, 512
ROUNDS, STEPS = 2, 3


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Measure each number of systems, and the estimate."""
    found: dict[int, list[Measured]] = {count: [] for count in SYSTEMS}
    with tempfile.TemporaryDirectory(prefix="cs-bench-") as directory:
        folder = Path(directory)
        artifacts = {count: _compile(count, folder) for count in SYSTEMS}
        for _ in range(rounds):
            for count in SYSTEMS:
                flags = (f"--num-csx={count}", f"--steps={STEPS}")
                found[count].append(measured(artifacts[count], folder, *flags))
    efficiency = {count: _efficiency(found, count) for count in SYSTEMS}
    return [*(_row(count, found, efficiency[count]) for count in SYSTEMS[1:]), _paper(efficiency)]


def _efficiency(found: Mapping[int, Sequence[Measured]], count: int) -> float:
    """Median over the rounds of N times the CPU time of one system over that of N."""
    return statistics.median(
        count * one.cpu_s / many.cpu_s for one, many in zip(found[1], found[count], strict=True)
    )


def _row(count: int, found: Mapping[int, Sequence[Measured]], efficiency: float) -> Row:
    cpu, step = (
        {many: statistics.median(getattr(one, name) for one in of) for many, of in found.items()}
        for name in ("cpu_s", "step_s")
    )
    return Row(
        f"weight streaming, {count} systems with {SAMPLES} samples each: efficiency of communication",
        f"{1e3 * cpu[count]:,.0f} ms CPU time a step, {1e3 * step[count]:,.0f} ms on these cores",
        f"{count} times one system {1e3 * count * cpu[1]:,.0f} ms, {1e3 * count * step[1]:,.0f} ms",
        efficiency,
        "",
        True,
    )


def _paper(found: Mapping[int, float]) -> Row:
    """Sums over a tree: each doubling of the systems adds the same time to a step."""
    added = statistics.mean((1 / found[count] - 1) / math.log2(count) for count in SYSTEMS[1:])
    efficiency = 1 / (1 + max(added, 0.0) * math.log2(MOST_SYSTEMS))
    return Row(
        f"weight streaming, {MOST_SYSTEMS} systems on paper: efficiency of communication",
        f"{efficiency:.2f}",
        f"a doubling of the systems adds {max(added, 0.0):.1%} of a step of one",
        efficiency,
        "",
        True,
    )


def _compile(count: int, folder: Path) -> Path:
    command = [sys.executable, "-m", "benchmarks.streaming_scaling", "--compile", str(count), str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(json.loads(done.stdout.splitlines()[-1]))


def _compile_here(count: int, folder: Path) -> str:
    from benchmarks.example_step import example_step
    from cgc.driver import compile_step
    from cgc.execution.compilation import CompileOptions
    from cs_toolkit.execution_options import Streaming
    from cs_toolkit.fabric import load_fabric

    model = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_heads": 8, "filter_size": 4 * WIDTH}
    changes = {
        "model": {**model, "vocab_size": 2048, "max_position_embeddings": LENGTH},
        "train_input": {"batch_size": count * SAMPLES, "max_sequence_length": LENGTH, "num_examples": 64},
    }
    module = example_step("gpt2", "params_gpt2_tiny.yaml", changes)
    options = CompileOptions(execution="weight_streaming", streaming=Streaming(num_csx=count))
    return str(compile_step(module, folder / str(count), options, load_fabric("cs2")).artifact.path)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--compile", nargs=2, metavar=("COUNT", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        print(json.dumps(_compile_here(int(args.compile[0]), Path(args.compile[1]))))
        return
    for row in rows(args.rounds):
        print(f"{row.name}: {row.ours} | {row.others} | {row.ratio} (target {row.target})")


if __name__ == "__main__":
    main()
